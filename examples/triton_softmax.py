"""A kernel in Triton beside ours: `harness run softmax --ops examples/triton_softmax.py --variants tuned,triton`.

A program has one row, which stays in registers: it is read once and written once.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from harness.ops import Case, Context, Launch, find

LONGEST = 2**16
"""Elements of the longest row: a program keeps a whole row, and a longer one doesn't fit its registers."""


def obstacle(case: Case) -> str | None:
    """Why the kernel can't run a case; None if it can. Such a case is 'unsupported', with this reason."""
    if importlib.util.find_spec("triton") is None:
        return "Triton isn't installed: pip install triton"
    return f"rows of more than {LONGEST} elements" if case.symbols["N"] > LONGEST else None


def kernel() -> Any:
    """The kernel. Triton compiles it at the first call, which isn't timed."""
    import triton
    import triton.language as tl

    @triton.jit
    def rows(x, y, length, block: tl.constexpr):  # type: ignore[no-untyped-def]
        start = tl.program_id(0).to(tl.int64) * length
        columns = tl.arange(0, block)
        inside = columns < length
        row = tl.load(x + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
        powers = tl.exp(row - tl.max(row, axis=0))
        tl.store(y + start + columns, (powers / tl.sum(powers, axis=0)).to(y.dtype.element_ty), mask=inside)

    return rows


@find("softmax").variant("triton", "a program a row, in Triton", role="peer", unsupported=obstacle)
def in_triton(ctx: Context) -> Launch:
    """It writes into the op's output, as kernels do: no `returns`."""
    import triton

    rows, length = kernel(), ctx.s.N
    block = triton.next_power_of_2(length)
    warps = min(16, max(1, block // 512))
    return lambda t: rows[(ctx.s.M,)](t.x, t.y, length, block=block, num_warps=warps)
