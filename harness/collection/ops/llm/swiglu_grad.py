"""The backward of SwiGLU: the gradients of gate and up: beyond the texts. Twin of swiglu_grad.cu."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.llm import _swiglu as shared
from harness.model import Traffic
from harness.ops import Compile, Context, Expected, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

_CHECKED = 2**22  # elements checked at a time


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What the gradients must be. The slope of silu is a difference, which may be far smaller than its terms.

    Torch's functions round dy * up, and silu, to the case's type.
    """
    import torch

    before, unit = t.before, torch.finfo(ctx.dtype)
    lost = 2 * unit.eps if ctx.op.variants[ctx.case.variant].is_library else 2**-18
    step = max(1, _CHECKED // max(1, ctx.s.H))
    for first in range(0, ctx.s.M, step):
        part = slice(first, first + step)
        # What lies behind the gate in its rows has no rows of its own.
        up = before.up.double() if shared.is_packed(ctx) else before.up[part].double()
        dy, gate = before.dy[part].double(), before.gate[part].double()
        wanted = _gradients(ctx, dy, gate, up)
        of_gate, of_up = (dy * half for half in reversed(shared.halves(ctx, gate, up)))
        sizes = (torch.cat((of_gate, of_up), -1), up) if shared.is_packed(ctx) else (of_gate, of_up)
        for output, want, size in zip(ctx.op.outputs, wanted, sizes, strict=True):
            got = getattr(t, output.name)
            got = got[part] if got.numel() else got
            allowed = lost * size.abs() + unit.eps / 2 * want.abs() + unit.tiny * unit.eps
            yield Expected(output.name, got, want, allowed, first * want.shape[-1] if want.numel() else 0)


OP = Op(
    "swiglu_grad",
    "dgate = dy * up * silu'(gate); dup = dy * silu(gate)",
    symbols=shared.SYMBOLS,
    choices={"layout": shared.LAYOUT},
    inputs=(Tensor("dy", ("M", "H")), Tensor("gate", shared.gate_shape), Tensor("up", shared.up_shape)),
    outputs=(Tensor("dgate", shared.gate_shape), Tensor("dup", shared.up_shape)),
    check=check,
    items="M",
    item="rows",
)


def _gradients(
    ctx: Context, dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What autograd does for silu(gate) * up; halves of rows are put together again."""
    import torch

    first, second = shared.halves(ctx, gate, up)
    of_silu, of_up = dy * second, dy * torch.nn.functional.silu(first)
    of_gate = torch.ops.aten.silu_backward(of_silu, first)
    return (torch.cat((of_gate, of_up), -1), up.clone()) if shared.is_packed(ctx) else (of_gate, of_up)


def _four_kernels(symbols: Symbols, size: int) -> Traffic:
    """The traffic of two products, silu and silu's gradient; halves of rows are copied once more."""
    tensor = symbols["M"] * symbols["H"] * size
    copies = 2 if symbols["layout"] == "packed" else 0
    return Traffic((7 + copies) * tensor, (4 + copies) * tensor)


@OP.variant("eager", "what autograd calls", role="baseline", devices=ANY, returns=True, traffic=_four_kernels)
def eager(ctx: Context) -> Launch:
    """Silu is made again, as a checkpoint of silu would; autograd would keep it."""
    return lambda t: _gradients(ctx, t.dy, t.gate, t.up)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel for exactly this shape."""
    function = compiled(lambda dy, gate, up: _gradients(ctx, dy, gate, up))
    return lambda t: function(t.dy, t.gate, t.up)


def _arguments(t: Tensors) -> tuple[Any, ...]:
    return t.dy, t.gate, t.up, t.dgate, t.dup


@OP.variant("fused", "one kernel, an element a thread; any length and address")
def fused(ctx: Context) -> Launch:
    """The starting point."""
    return shared.one_element(ctx, _arguments)


@OP.variant("tuned", "16 bytes an access, a pack of each tensor a thread", tuning=shared.TUNING)
def tuned(ctx: Context) -> Launch:
    """`fused` runs where rows aren't whole packs, or a tensor doesn't begin on 16 bytes."""
    return shared.in_packs(ctx, _arguments)
