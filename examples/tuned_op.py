"""Plans of a kernel of your own: `harness tune row_sum --ops examples/tuned_op.py --sizes M=4096,N=4096`.

The kernel in tuned_op.cu has two macros, THREADS and EACH. A plan is a value of both. `Tuning` below says which values
there are, which plans are legal at a size, what a plan compiles, and which plan is taken where no table has one.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from harness.ops import Built, Context, Launch, Op, Plan, Tensor, Tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.model import Case

OP = Op(
    "row_sum",
    "y[m] = the sum of |x[m, n]| over n",
    symbols={"M": "rows", "N": "columns"},
    inputs=(Tensor("x", ("M", "N")),),
    outputs=(Tensor("y", ("M",)),),
    dtypes=("float32",),
    reference=lambda _, t: {"y": t.x.double().abs().sum(1)},
    tolerance={"float32": (1e-5, 1e-5)},  # relative and absolute; a plan that is farther off is told and dropped
)


@OP.variant("eager", "torch", role="baseline", devices=("cuda", "cpu"), returns=True)
def eager(_: Context) -> Launch:
    """What a user writes today."""
    return lambda t: (t.x.abs().sum(1),)


def refuse(case: Case, plan: Plan) -> str | None:
    """Why a plan would be wrong at a size, or isn't worth a try; None if it is legal."""
    threads, each = int(plan["threads"]), int(plan["each"])
    too_many = threads > 32 and threads * each > case.symbols["N"]
    return "some threads would have nothing to do" if too_many else None


def built(plan: Plan) -> Built:
    """What a plan compiles. `harness tune` drops it before it is timed if it spills or doesn't fit."""
    threads, each = int(plan["threads"]), int(plan["each"])
    return Built("tuned_op.cu", "row_sum", {"THREADS": threads, "EACH": each}, threads)


def kernels(_: Case, plan: Plan) -> Iterator[Built]:
    """A plan may compile several kernels; this one compiles one."""
    yield built(plan)


TUNING = Tuning(
    parameters=lambda _: {"threads": (32, 64, 128, 256, 512, 1024), "each": (1, 2, 4, 8)},
    rule=lambda _: {"threads": 256, "each": 1},  # on a GPU that wasn't searched, or at a size far from all that were
    refuse=refuse,
    kernels=kernels,
)


@OP.variant("tuned", "a block a row, as its plan has it", tuning=TUNING)
def tuned(ctx: Context) -> Launch:
    """`ctx.plan()` gives the plan that a search tries now, or one from a table, or the rule's."""
    plan = ctx.plan()
    assert plan  # the rule has one for every size
    of_plan, columns = built(plan), ctypes.c_uint32(ctx.s.N)
    kernel = ctx.kernel(of_plan.file, of_plan.entry, of_plan.macros)
    return lambda t: kernel(ctx.s.M, of_plan.threads, t.x, t.y, columns)
