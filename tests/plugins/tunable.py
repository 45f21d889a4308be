"""An op in plain torch whose variant has plans: how many rows are done at a time, and in which way; one is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.ops import Context, Launch, Op, Tensor, Tensors, Tuning

if TYPE_CHECKING:
    from harness.model import Case
    from harness.ops import Plan

OP = Op(
    "chunked",
    "y = -x",
    symbols={"M": "rows", "N": "columns"},
    inputs=(Tensor("x", ("M", "N")),),
    outputs=(Tensor("y", ("M", "N")),),
    reference=lambda _, t: {"y": -t.x.double()},
    dtypes=("float32",),
)


def _parameters(_: Case) -> dict[str, tuple[int | str, ...]]:
    return {"rows": (1, 8, 64, 512), "way": ("neg", "wrong")}


def _refuse(case: Case, plan: Plan) -> str | None:
    return "more rows than there are" if int(plan["rows"]) > case.symbols["M"] else None


def _rule(case: Case) -> dict[str, int | str] | None:
    return None if case.symbols["M"] == 7 else {"rows": 1, "way": "neg"}


TUNING = Tuning(parameters=_parameters, rule=_rule, refuse=_refuse)


@OP.variant("eager", "torch", role="baseline", devices=("any",), returns=True)
def eager(_: Context) -> Launch:
    return lambda t: (-t.x,)


@OP.variant("tuned", "rows in chunks", devices=("any",), tuning=TUNING)
def tuned(ctx: Context) -> Launch:
    import torch

    plan = ctx.plan()
    assert plan is not None
    rows, way = int(plan["rows"]), plan["way"]

    def launch(t: Tensors) -> None:
        for x, y in zip(t.x.split(rows), t.y.split(rows), strict=True):
            torch.neg(x, out=y) if way == "neg" else torch.mul(x, -2.0, out=y)

    return launch
