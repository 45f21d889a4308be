"""ReLU and its backward, one after the other, y = relu(x) and dx = dy where y > 0: row O9. Twin of relu_training.cu.

Bits cost the forward a little and save the backward a lot, so only both together say what they are worth. In a training
step other layers run between the two; so take sizes at which y doesn't stay in the L2 until the backward reads it.
"""

from __future__ import annotations

import ctypes
from typing import Any

from harness.collection.ops.activation import relu_grad, relu_mask
from harness.collection.ops.activation.relu_mask import NATURAL
from harness.collection.ops.bits import bytes_of_bits
from harness.collection.ops.elementwise import BLOCK, BOTH, CUDA_TYPE, PACK_BYTES, aligned, blocks
from harness.model import Traffic, Work
from harness.ops import FLOATS, ITEMSIZE, Compile, Context, Launch, Op, Symbols, Tensor, Tensors, compiled_variants


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """A selection has no rounding, so the case's precision is exact."""
    return {"y": t.x.clamp(min=0), "dx": t.dy.where(t.x > 0, 0)}


def work(s: Symbols, size: int) -> Work:
    """The forward leaves a bit an element to the backward, whatever a variant leaves."""
    both = 2 * s["N"] * size + bytes_of_bits(s["N"])
    return Work(read=both, written=both)


def with_y(s: Symbols, size: int) -> Traffic:
    """The backward reads y."""
    return Traffic(read=3 * s["N"] * size, written=2 * s["N"] * size)


def with_bits(s: Symbols, size: int) -> Traffic:
    """The forward writes whole words of bits, and the backward reads them."""
    both = 2 * s["N"] * size + relu_mask.mask_bytes(s["N"])
    return Traffic(read=both, written=both)


_Y, _DX = Tensor("y", ("N",)), Tensor("dx", ("N",))
OP = Op(
    "relu_training",
    "y = relu(x), then dx = dy where y > 0 else 0",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)), Tensor("dy", ("N",))),
    outputs=(_Y, _DX),
    reference=reference,
    tolerance=dict.fromkeys(FLOATS, (0.0, 0.0)),
    work=work,
)

_FROM_Y: dict[str, Any] = {"traffic": with_y}
_BITS: dict[str, Any] = {"outputs": (_Y, NATURAL, _DX), "traffic": with_bits}


@OP.variant(
    "eager", "relu(x), then what autograd calls", role="baseline", rows=("O9",), devices=BOTH, returns=True, **_FROM_Y
)
def eager(_: Context) -> Launch:
    """What users have: y is kept, and the backward reads it."""
    import torch

    def launch(t: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(t.x)
        return y, torch.ops.aten.threshold_backward(t.dy, y, 0)

    return launch


@compiled_variants(OP, "torch.compile of each of the two", **_FROM_Y)
def compile_(_: Context, compiled: Compile) -> Launch:
    """They are compiled apart: in a training step dy comes long after y."""
    import torch

    forward = compiled(torch.relu)
    backward = compiled(lambda dy, y: torch.ops.aten.threshold_backward(dy, y, 0))

    def launch(t: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        y = forward(t.x)
        return y, backward(t.dy, y)

    return launch


@OP.variant("from_y", "one element a thread; the backward reads y", role="published", rows=("O9",), **_FROM_Y)
def from_y(ctx: Context) -> Launch:
    """The text before."""
    forward = ctx.kernel("relu_training.cu", "relu_scalar", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    grid, n, backward = blocks(ctx.s.N), ctypes.c_int64(ctx.s.N), relu_grad.from_y(ctx)

    def launch(t: Tensors) -> None:
        forward(grid, BLOCK, t.x, t.y, n)
        backward(t)

    return launch


@OP.variant("bitset", "one element a thread; a ballot makes a word of bits", role="published", rows=("O9",), **_BITS)
def bitset(ctx: Context) -> Launch:
    """The text after, in its plainest form."""
    return _one_after_the_other(relu_mask.ballot(ctx), relu_grad.bitset(ctx))


@OP.variant("from_y_packed", "packs of 16 bytes; the backward reads y", **_FROM_Y)
def from_y_packed(ctx: Context) -> Launch:
    """`tuned` without its bits."""
    forward = ctx.kernel("relu_training.cu", "relu_packed", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    backward = relu_grad.from_y_packed(ctx)
    packs = -(-ctx.s.N * ITEMSIZE[ctx.case.dtype] // PACK_BYTES)
    grid, n = blocks(packs), ctypes.c_int64(ctx.s.N)

    def launch(t: Tensors) -> None:
        forward(grid, BLOCK, t.x, t.y, n, ctypes.c_int32(aligned(t.x, t.y)))
        backward(t)

    return launch


@OP.variant("tuned", "packs of 16 bytes and their bits", rows=("O9",), **_BITS)
def tuned(ctx: Context) -> Launch:
    """The tuned kernels of relu_mask and relu_grad."""
    return _one_after_the_other(relu_mask.tuned(ctx), relu_grad.tuned(ctx))


def _one_after_the_other(forward: Launch, backward: Launch) -> Launch:
    def launch(t: Tensors) -> None:
        forward(t)
        backward(t)

    return launch
