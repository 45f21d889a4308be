"""The backward of cross-entropy, into a tensor of its own: beyond the texts. Twin of cross_entropy_grad.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, PACK_BYTES, aligned, blocks
from harness.collection.ops.llm import _cross_entropy as shared
from harness.collection.ops.llm.cross_entropy import LSE
from harness.model import Case, Traffic
from harness.ops import (
    ITEMSIZE,
    Built,
    Compile,
    Context,
    Expected,
    Launch,
    Op,
    Plan,
    Symbols,
    Tensor,
    Tensors,
    Tuning,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch

_UNITS, _EVERY_UNITS = 4, (1, 2, 4, 8)  # packs of a thread of `tuned`, by the rule, and those that there may be
_GRID = 2**31 - 1  # blocks
_FLOAT = 4  # bytes


def make(ctx: Context) -> dict[str, Any]:
    """Logits and targets, their lse, and a gradient of the loss."""
    import torch

    made = shared.make(ctx)
    dloss = 0.5 + torch.rand(1, generator=ctx.generator, device=ctx.device)
    return made | {"lse": torch.logsumexp(made["logits"].float(), 1), "dloss": dloss}


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """Each element may be off by what float32 loses of the exponential's argument, and by its rounding."""
    import torch

    before, unit = t.before, torch.finfo(ctx.dtype)
    factor = before.dloss.double() / before.valid.double()
    for part in shared.parts(ctx):
        lse = before.lse[part].double()
        want = shared.gradient(before.logits[part], before.targets[part], lse, factor)
        size = want.abs() + torch.where(want < 0, 2 * factor, 0.0)
        lost = 2**-21 * (1 + (before.logits[part].double() - lse[:, None]).abs().clamp(max=128))
        allowed = lost * size + unit.eps / 2 * want.abs() + unit.tiny * unit.eps + 2**-126
        yield Expected("dlogits", t.dlogits[part], want, allowed, part.start * ctx.s.V, loose=True)


OP = Op(
    "cross_entropy_grad",
    "dlogits = (exp(x - lse) - onehot(target)) * dloss / valid",
    symbols=shared.SYMBOLS,
    inputs=(shared.LOGITS, shared.TARGETS, LSE, shared.VALID, Tensor("dloss", (1,), "float32")),
    outputs=(Tensor("dlogits", ("M", "V")),),
    make=make,
    check=check,
    extremes=shared.extremes("lse", "valid", "dloss"),
    items="M",
    item="rows",
)


def _steps(
    logits: torch.Tensor, targets: torch.Tensor, lse: torch.Tensor, valid: torch.Tensor, dloss: torch.Tensor
) -> torch.Tensor:
    return shared.gradient(logits, targets, lse, dloss / valid).to(logits.dtype)


def _by_torch(symbols: Symbols, size: int) -> Traffic:
    """In float32: logits, their distance to lse, exponentials, products, zeros for rows that don't count; a result."""
    elements = symbols["M"] * symbols["V"]
    return Traffic(elements * (size + 5 * _FLOAT), elements * (5 * _FLOAT + size))


@OP.variant("eager", "single steps, in float32", role="baseline", devices=ANY, returns=True, traffic=_by_torch)
def eager(_: Context) -> Launch:
    """From lse. What autograd calls needs the logarithms of the softmax, a tensor that this op hasn't."""
    return lambda t: (_steps(t.logits, t.targets, t.lse, t.valid, t.dloss),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor's kernels for exactly this shape."""
    function = compiled(_steps)
    return lambda t: (function(t.logits, t.targets, t.lse, t.valid, t.dloss),)


def _arguments(t: Tensors) -> tuple[Any, ...]:
    return t.logits, t.targets, t.lse, t.valid, t.dloss, t.dlogits


@OP.variant("fused", "one kernel, an element a thread; any length and address")
def fused(ctx: Context) -> Launch:
    """The starting point."""
    elements, columns = ctx.s.M * ctx.s.V, max(1, ctx.s.V)
    kernel = shared.kernel(ctx, "fused")
    sizes = ctypes.c_int64(elements), ctypes.c_int64(columns), *cuda.fast_divisor(columns, 64)
    return lambda t: kernel(blocks(elements), BLOCK, *_arguments(t), *sizes)


def _parts(case: Case, units: int) -> int:
    """Blocks that share a row."""
    return blocks(max(1, case.symbols["V"] * ITEMSIZE[case.dtype] // PACK_BYTES), BLOCK * units)


def _rule(case: Case) -> Plan | None:
    """The plan where no table has one; None where there are too few blocks."""
    return None if _too_many_blocks(case, {"units": _UNITS}) else {"units": _UNITS}


def _too_many_blocks(case: Case, plan: Plan) -> str | None:
    return "a grid has fewer blocks" if case.symbols["M"] * _parts(case, int(plan["units"])) > _GRID else None


def _kernels(case: Case, plan: Plan) -> Iterator[Built]:
    macros: dict[str, str | int] = {"SCALAR": CUDA_TYPE[case.dtype], "UNITS": int(plan["units"])}
    yield Built("cross_entropy_grad.cu", "cross_entropy_grad_tuned", macros, BLOCK)


@OP.variant(
    "tuned",
    "16 bytes an access, four of them a thread; a block has a part of one row",
    tuning=Tuning(lambda _: {"units": _EVERY_UNITS}, _rule, _too_many_blocks, _kernels),
)
def tuned(ctx: Context) -> Launch:
    """`fused` runs where a tensor doesn't begin on 16 bytes, or a grid hasn't as many blocks as there are parts."""
    fallback: Launch = fused(ctx)
    plan = ctx.plan()
    if plan is None:
        return fallback
    units = int(plan["units"])
    parts = _parts(ctx.case, units)
    kernel, grid = shared.kernel(ctx, "tuned", UNITS=units), ctx.s.M * parts if ctx.s.V else 0
    sizes = ctypes.c_uint32(ctx.s.V), ctypes.c_uint32(parts), *cuda.fast_divisor(parts, 32)

    def launch(t: Tensors) -> None:
        if aligned(t.logits, t.dlogits):
            kernel(grid, BLOCK, *_arguments(t), *sizes)
        else:
            fallback(t)

    return launch
