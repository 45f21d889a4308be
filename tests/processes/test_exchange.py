"""A call of one code, judged by another one: which inputs a code makes in another way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.devices.cpu import Cpu
from harness.model import Case, Job
from harness.ops import Op, Tensor
from harness.processes import exchange


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
