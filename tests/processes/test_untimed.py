"""Which steps of variants no time holds, in two codes."""

from __future__ import annotations

from typing import Any

from harness.ops import Op
from harness.processes.untimed import newly_untimed, untimed

STEP: dict[str, Any] = {"encode": lambda *_: {}, "decode": lambda *_: {}}


def op(**variants: tuple[str, ...]) -> Op:
    made = Op("mine", "y = x", {"N": "elements"})
    for name, steps in variants.items():
        fields: dict[str, Any] = {step: STEP[step] for step in steps}
        made.variant(name, "one way", **fields)(lambda _: lambda _: None)
    return made


def test_steps_that_a_variant_of_both_has_now_are_told() -> None:
    before = untimed([op(moved=(), kept=("encode",), less=("encode", "decode"), gone=("decode",))])
    assert before == (
        ("mine", "kept", "encode"), ("mine", "less", "encode"), ("mine", "less", "decode"), ("mine", "gone", "decode"),
    )  # fmt: skip
    now = {"mine": op(moved=("decode",), kept=("encode", "decode"), less=("decode",), new=("encode",))}
    both = [("mine", name) for name in ("moved", "kept", "kept", "less")]
    assert list(newly_untimed(before, both, now)) == [
        f"mine/{name} has a step 'decode' now, which isn't timed: work may have moved there"
        for name in ("moved", "kept")
    ]
