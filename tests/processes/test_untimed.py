"""What lets work of variants escape the time, in two codes."""

from __future__ import annotations

from typing import Any

from harness.ops import Op, Tensor
from harness.processes.untimed import newly_untimed, untimed

STEP: dict[str, Any] = {"encode": lambda *_: {}, "decode": lambda *_: {}}
X, UPDATED = (Tensor("x", ("N",), inplace=inplace) for inplace in (False, True))


def op(fields: dict[str, Any] | None = None, **variants: tuple[str, ...]) -> Op:
    made = Op("mine", "y = x", {"N": "elements"}, (X,), **(fields or {}))
    for name, steps in variants.items():
        made.variant(name, "one way", **{step: STEP[step] for step in steps})(lambda _: lambda _: None)
    return made


def test_steps_that_a_variant_of_both_has_now_are_told() -> None:
    before = untimed([op(moved=(), kept=("encode",), less=("encode", "decode"), gone=("decode",))])
    assert before == (
        ("mine", "kept", "encode"), ("mine", "less", "encode"), ("mine", "less", "decode"), ("mine", "gone", "decode"),
    )  # fmt: skip
    now = {"mine": op(moved=("decode",), kept=("encode", "decode"), less=("decode",), new=("encode",))}
    both = [("mine", name) for name in ("moved", "kept", "kept", "less")]
    assert list(newly_untimed(before, both, now)) == [
        f"mine/{name} has 'decode' now: a step after the call, which isn't timed" for name in ("moved", "kept")
    ]


def test_work_that_calls_leave_and_inputs_that_they_update_are_told() -> None:
    own = op(v=())
    own.variant("own", "its own input", inputs=(UPDATED,))(lambda _: lambda _: None)
    assert untimed([own]) == (("mine", "own", "inplace x"),)
    before = untimed([op(v=())])
    ahead = op({"works_ahead": "the next batch"}, v=())
    assert list(newly_untimed(before, [("mine", "v")], {"mine": ahead})) == [
        "mine/v has 'works_ahead' now: so calls may leave work that isn't in their time"
    ]
    updating = Op("mine", "y = x", {"N": "elements"}, (UPDATED,))
    updating.variant("v", "one way", inputs=(UPDATED,))(lambda _: lambda _: None)
    [told] = newly_untimed(before, [("mine", "v")], {"mine": updating})
    assert told.startswith("mine/v has 'inplace x' now")
