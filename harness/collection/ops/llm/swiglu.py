"""SwiGLU, y = silu(gate) * up: beyond the texts. Twin of swiglu.cu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.llm import _swiglu as shared
from harness.model import Traffic
from harness.ops import Compile, Context, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch


def reference(ctx: Context, t: Tensors) -> dict[str, Any]:
    """The result in float64."""
    from torch.nn import functional

    gate, up = shared.halves(ctx, t.gate.double(), t.up.double())
    return {"y": functional.silu(gate) * up}


OP = Op(
    "swiglu",
    "y = silu(gate) * up",
    symbols=shared.SYMBOLS,
    choices={"layout": shared.LAYOUT},
    inputs=(Tensor("gate", shared.gate_shape), Tensor("up", shared.up_shape)),
    outputs=(Tensor("y", ("M", "H")),),
    reference=reference,
    tolerance=shared.TOLERANCE,
    items="M",
    item="rows",
)


def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional

    return functional.silu(gate) * up


def _two_kernels(symbols: Symbols, size: int) -> Traffic:
    """The traffic of silu, which writes a tensor, and of the product, which reads that tensor and up."""
    tensor = symbols["M"] * symbols["H"] * size
    return Traffic(3 * tensor, 2 * tensor)


@OP.variant("eager", "silu, then a product", role="baseline", devices=ANY, returns=True, traffic=_two_kernels)
def eager(ctx: Context) -> Launch:
    """What a user writes today; halves of rows are views."""
    return lambda t: (_swiglu(*shared.halves(ctx, t.gate, t.up)),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel for exactly this shape."""
    function = compiled(lambda gate, up: _swiglu(*shared.halves(ctx, gate, up)))
    return lambda t: (function(t.gate, t.up),)


def _arguments(t: Tensors) -> tuple[Any, ...]:
    return t.gate, t.up, t.y


@OP.variant("fused", "one kernel, an element a thread; any length and address")
def fused(ctx: Context) -> Launch:
    """The starting point."""
    return shared.one_element(ctx, _arguments)


@OP.variant("tuned", "16 bytes an access, a pack of each tensor a thread", tuning=shared.TUNING)
def tuned(ctx: Context) -> Launch:
    """`fused` runs where rows aren't whole packs, or a tensor doesn't begin on 16 bytes."""
    return shared.in_packs(ctx, _arguments)
