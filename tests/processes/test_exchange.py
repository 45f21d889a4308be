"""A call of one code, judged by another one: which inputs a code makes in another way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.devices.cpu import Cpu
from harness.model import Case, Job
from harness.ops import Op, Tensor
from harness.processes import exchange
from harness.ranks import Group

X, Y = (Tensor(name, ("N",)) for name in "xy")


def op(**fields: Any) -> Op:
    made = Op(
        "twice",
        "y = 2 x",
        {"N": "elements"},
        inputs=(Tensor("x", ("N",)), Tensor("factor", ("N",))),
        outputs=(Tensor("y", ("N",)),),
        dtypes=("float32",),
        reference=lambda _, t: {"y": t.factor * t.x.double()},
        **fields,
    )
    made.variant("plain", "one pass", devices=("cpu",))(lambda ctx: lambda t: t.y.copy_(t.factor * t.x))
    return made


def sparse(ctx: Any) -> dict[str, Any]:
    import torch

    return {"x": torch.randn(64, generator=ctx.generator), "factor": torch.zeros(64)}


@pytest.mark.parametrize(("now", "other"), [({}, ""), ({"make": sparse}, "factor")])
def test_inputs_that_are_made_in_another_way_are_told(tmp_path: Path, now: dict[str, Any], other: str) -> None:
    job = Job(Case("twice", "plain", "float32", (("N", 64),), device="cpu"))
    assert exchange.take("give", job, op(), Cpu(), tmp_path) == ("", "")
    assert exchange.take("own", job, op(**now), Cpu(), tmp_path)[0] == other
    assert exchange.take("work", job, op(**now), Cpu(), tmp_path) == ("", "")
    assert exchange.take("judge", job, op(), Cpu(), tmp_path) == ("", ""), "the outputs are right all the same"


@pytest.mark.parametrize(("factor", "wrong"), [(2.0, ""), (3.0, "rank 1: y")])
def test_each_rank_judges_what_it_holds_by_files_of_its_own(tmp_path: Path, factor: float, wrong: str) -> None:
    """Ranks have other inputs. Rank 1 computes with another factor, and its own reference is wrong alike."""

    def take(step: Any, of: Op) -> list[tuple[str, str]]:
        groups = (Group(rank, 2, lambda value, _: [value, value]) for rank in range(2))
        return [exchange.take(step, job, of, Cpu(), tmp_path, group=group) for group in groups]

    def scaled(ctx: Any) -> float:
        return factor if ctx.group.rank else 2.0

    job = Job(Case("twice", "plain", "float32", (("N", 64),), world=2, device="cpu"))
    base, now = (Op("twice", "y = 2 x", {"N": "elements"}, (X,), (Y,), dtypes=("float32",), reference=reference)
                 for reference in (lambda _, t: {"y": 2 * t.x}, lambda ctx, t: {"y": scaled(ctx) * t.x}))  # fmt: skip
    base.variant("plain", "one pass", devices=("cpu",))(lambda ctx: lambda t: t.y.copy_(2 * t.x))
    now.variant("plain", "one pass", devices=("cpu",))(lambda ctx: lambda t: t.y.copy_(scaled(ctx) * t.x))
    for step, code in (("give", base), ("work", now), ("own", now)):
        assert take(step, code) == [("", "")] * 2
    assert len({file.read_bytes() for file in tmp_path.glob("*-inputs.pt")}) == 2
    found = take("judge", base)
    assert found[0] == ("", "")
    assert (found[1][0][: len("rank 1: y")], found[1][1]) == (wrong, "")


@pytest.mark.parametrize(
    ("does", "written", "wrong"),
    [
        (lambda t: None, {"y"}, ""),
        (lambda t: t.x.add_(1), {"y", "x"}, "x"),
        (lambda t: t.x.resize_(8, 8), {"y", "x"}, "x"),
        (lambda t: t.x.t_(), {"y"}, ""),  # of one dimension
    ],
)
def test_an_input_is_written_again_if_the_call_has_changed_it(
    tmp_path: Path, does: Any, written: set[str], wrong: str
) -> None:
    """The base's reference says what becomes of it. Another shape is a change, too."""
    import torch

    job = Job(Case("twice", "plain", "float32", (("N", 64),), device="cpu"))
    x = replace(X, inplace=True)

    def made(does: Any) -> Op:
        of = Op("twice", "y = 2 x", {"N": "elements"}, (x,), (Y,), dtypes=("float32",),
                reference=lambda _, t: {"x": t.x, "y": 2 * t.x})  # fmt: skip

        def launch(t: Any) -> None:
            t.y.copy_(2 * t.x)
            does(t)

        of.variant("plain", "one pass", devices=("cpu",))(lambda ctx: launch)
        return of

    for step, code in (("give", made(lambda t: None)), ("work", made(does))):
        assert exchange.take(step, job, code, Cpu(), tmp_path) == ("", "")
    outputs = torch.load(tmp_path / "0-outputs.pt", weights_only=True)
    assert {name for name, value in outputs.items() if isinstance(value, torch.Tensor)} == written
    found, unable = exchange.take("judge", job, made(lambda t: None), Cpu(), tmp_path)
    assert (found[: len(wrong)], bool(found), unable) == (wrong, bool(wrong), "")
