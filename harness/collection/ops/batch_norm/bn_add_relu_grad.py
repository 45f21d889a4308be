"""The backward of y = relu(batch_norm(x) * gamma + beta + z) in training: technique O12.

Twin of bn_add_relu_grad.cu. dz is dy where y > 0, and 0 elsewhere. It is the gradient of z and, times gamma, of the
normalised x. All of our variants but `from_y` read one bit an element in place of y, as the forward writes it. mean and
invstd are the batch's, which the forward keeps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.batch_norm import _whole
from harness.collection.ops.batch_norm._batch_norm import (
    CHOICES,
    EPSILON,
    MASK,
    MOMENTUM,
    SYMBOLS,
    ImageSizes,
    as_user_has_it,
    divisor,
    elements,
    floats,
    image_shape,
    images,
    in_declared_order,
    kernel,
    of_channels,
)
from harness.collection.ops.batch_norm._bn_add_relu_grad_check import check, make, reference
from harness.collection.ops.batch_norm._bn_add_relu_grad_cut import TUNING, WHOLE, GradCut
from harness.collection.ops.bits import pack
from harness.collection.ops.elementwise import ANY, BLOCK, PACK_BYTES, aligned, blocks
from harness.model import Traffic, Work
from harness.ops import ITEMSIZE, Compile, Context, Extremes, Launch, Op, Symbols, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

# As in bn_add_relu_grad.cu.
_TOTAL_BLOCK = 512  # threads
_COEFFICIENTS = 4  # floats that a channel has room for
_SUMS = 2  # of a channel

_WAVES = 8  # of blocks of a plain sum: enough for the last one not to show
_FEWEST = 4  # elements that a thread of a plain sum adds


def _with_bits(symbols: Symbols, size: int) -> Traffic:
    """Two reads of dy, x and the mask, since both sums of a channel come before its first dx."""
    return _moved(symbols, size, MASK.bytes(symbols, ""))


def _tuned_traffic(symbols: Symbols, size: int) -> Traffic:
    """The one kernel of a small layer reads dy, x and the mask once, by the plan of the rule, if there is a GPU."""
    return _moved(symbols, size, MASK.bytes(symbols, ""), reads=1 if _whole.is_ruled(symbols, size) else 2)


def _with_y(symbols: Symbols, size: int) -> Traffic:
    """The same with y in place of the mask. Eager makes dz once and reads it twice: the same bytes."""
    return _moved(symbols, size, elements(symbols) * size)


def _moved(symbols: Symbols, size: int, signs: int, reads: int = 2) -> Traffic:
    """`reads` of dy, x and the bytes `signs` that say where y > 0. Partial sums are left out: see bn_add_relu.py."""
    tensor, vector = elements(symbols) * size, symbols["C"] * ITEMSIZE["float32"]
    return Traffic(read=reads * (2 * tensor + signs) + 3 * vector, written=2 * tensor + 2 * vector)


def _work(symbols: Symbols, size: int) -> Work:
    """A bit an element is enough to know where y > 0. dy, x and the bits are read twice."""
    moved = _with_bits(symbols, size)
    return Work(moved.read, moved.written, again=2 * elements(symbols) * size + MASK.bytes(symbols, ""))


_DY, _X, _Y = images("dy"), images("x"), images("y")
_VECTORS = (of_channels("gamma"), of_channels("mean"), of_channels("invstd"))
OP = Op(
    "bn_add_relu_grad",
    "dz = dy where y > 0 else 0; dx, dgamma, dbeta: batch norm's backward of dz",
    symbols=SYMBOLS,
    choices=CHOICES,
    inputs=(_DY, _X, _Y, *_VECTORS),
    outputs=(images("dx"), images("dz"), of_channels("dgamma"), of_channels("dbeta")),
    make=make,
    reference=reference,
    check=check,
    extremes=Extremes(
        exempt={
            **dict.fromkeys(("equal", "lowest"), "the error allowed of a sum takes its terms to have random signs"),
            **dict.fromkeys(("x", "mean", "invstd"), "they are statistics, and what they are of"),
            "y": "it is what a ReLU leaves",
        },
        largest=dict.fromkeys(("float32", "bfloat16"), 2.0**40),
        why="sums of products are in float32",
        apart={"dy": 1},
    ),
    work=_work,
)


def _saved(ctx: Context, t: Tensors) -> dict[str, Any]:
    """What autograd keeps of torch's batch norm of x: its statistics, and which implementation made them.

    Where torch takes cuDNN, the backward wants the statistics and the reserve of the same forward.
    """
    import torch

    x, beta = as_user_has_it(ctx.case.values, t.x), torch.zeros_like(t.gamma)
    forward = torch.ops.aten._batch_norm_impl_index
    cudnn = torch.backends.cudnn.enabled
    _, mean, invstd, reserve, implementation = forward(x, t.gamma, beta, None, None, True, MOMENTUM, EPSILON, cudnn)
    return {"saved": (mean, invstd), "reserve": reserve, "implementation": implementation}


@OP.variant(
    "eager",
    "what autograd runs: threshold_backward, then cuDNN's backward of batch norm or torch's own",
    role="baseline",
    rows=("O12",),
    devices=ANY,
    traffic=_with_y,
    returns=True,
    encode=_saved,
)
def eager(ctx: Context) -> Launch:
    """Two calls, and dz between them."""
    import torch

    symbols, backward = ctx.case.values, torch.ops.aten._batch_norm_impl_index_backward

    def launch(t: Tensors) -> tuple[torch.Tensor, ...]:
        dy, x, y = (as_user_has_it(symbols, tensor) for tensor in (t.dy, t.x, t.y))
        dz = torch.ops.aten.threshold_backward(dy, y, 0)
        settings = None, None, *t.saved, True, EPSILON, [True] * 3, t.reserve
        dx, dgamma, dbeta = backward(t.implementation, x, dz, t.gamma, *settings)
        return _declared(symbols, dx), _declared(symbols, dz), dgamma, dbeta

    return launch


@compiled_variants(OP, "torch.compile of torch's own", traffic=_with_y)
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor fuses the threshold into both passes, each of which reads dy, y and x."""
    symbols, function = ctx.case.values, compiled(_backward)

    def launch(t: Tensors) -> tuple[torch.Tensor, ...]:
        tensors = tuple(as_user_has_it(symbols, tensor) for tensor in (t.dy, t.x, t.y))
        dx, dz, dgamma, dbeta = function(tensors, (t.gamma, t.mean, t.invstd))
        return _declared(symbols, dx), _declared(symbols, dz), dgamma, dbeta

    return launch


def _backward(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    vectors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """(dx, dz, dgamma, dbeta) from (dy, x, y), which are (N, C, H, W), and (gamma, mean, invstd)."""
    import torch

    (dy, x, y), (gamma, mean, invstd) = tensors, vectors
    dz = torch.ops.aten.threshold_backward(dy, y, 0)
    batch_norm = torch.ops.aten.native_batch_norm_backward
    dx, dgamma, dbeta = batch_norm(dz, x, gamma, None, None, mean, invstd, True, EPSILON, [True] * 3)
    return dx, dz, dgamma, dbeta


def _declared(symbols: Symbols, tensor: torch.Tensor) -> torch.Tensor:
    """A user's (N, C, H, W) as the op declares it: a copy only where its memory format isn't `layout`."""
    return in_declared_order(symbols, tensor).reshape(image_shape(symbols))


def _kernel(ctx: Context, entry: str) -> cuda.Kernel:
    return kernel(ctx, "bn_add_relu_grad.cu", f"bn_add_relu_grad_{entry}")


def _total(ctx: Context, sizes: ImageSizes, count: int) -> Callable[..., None]:
    """The step between the sums and dx: total(partial, t, coefficients, packed). count: partial sums of a channel."""
    add_slots = _kernel(ctx, "total")
    numbers = ctypes.c_int64(sizes.samples), ctypes.c_uint32(sizes.channels), ctypes.c_uint32(count)

    def total(partial: torch.Tensor, t: Tensors, coefficients: torch.Tensor, packed: bool = False) -> None:
        vectors = t.gamma, t.mean, t.invstd, t.dgamma, t.dbeta
        add_slots(sizes.channels, _TOTAL_BLOCK, partial, *vectors, coefficients, *numbers, ctypes.c_uint32(packed))

    return total


def _plain(ctx: Context, signs: str, entry: str) -> Launch:
    """One element a thread; `signs` names the tensor that says where y > 0, `entry` ends the kernels' names."""
    sizes = ImageSizes.of(ctx)
    across = 32 if sizes.inner == 1 else 1
    groups = blocks(sizes.channels, across)
    wanted = _WAVES * cuda.resident_threads() // BLOCK // max(1, groups)
    slots = max(1, min(wanted, blocks(sizes.samples, BLOCK // across * _FEWEST)))
    sums, apply = _kernel(ctx, f"sums_{entry}"), _kernel(ctx, f"apply_{entry}")
    total = _total(ctx, sizes, slots)
    partial = floats(ctx, _SUMS * sizes.channels * slots)
    coefficients = floats(ctx, _COEFFICIENTS * sizes.channels)
    samples, inner = sizes.counter(sizes.samples), sizes.divisors(sizes.inner)
    n, divisors = sizes.counter(sizes.elements), sizes.divisors(sizes.channels, sizes.inner)
    slotted = (*(ctypes.c_uint32(value) for value in (sizes.channels, across, slots)), *divisor(groups))
    grid = blocks(sizes.elements)

    def launch(t: Tensors) -> None:
        source = getattr(t, signs)
        sums(groups * slots, BLOCK, t.dy, t.x, source, t.mean, partial, samples, *slotted, *inner)
        total(partial, t, coefficients)
        apply(grid, BLOCK, t.dy, t.x, source, coefficients, t.dx, t.dz, n, *divisors)

    return launch


@OP.variant(
    "from_y",
    "two passes, one element a thread, each reads dy, x and y",
    role="published",
    rows=("O12",),
    traffic=_with_y,
)
def from_y(ctx: Context) -> Launch:
    """The kernels that `from_bitset` is compared with."""
    return _plain(ctx, "y", "y")


def _encode(_: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": pack((t.y > 0).view(-1))}


_FROM_BITS: dict[str, Any] = {
    "inputs": (_DY, _X, MASK, *_VECTORS),
    "encode": _encode,
    "traffic": _with_bits,
    "rows": ("O12",),
}


@OP.variant("from_bitset", "the same with the forward's bits in place of y", role="published", **_FROM_BITS)
def from_bitset(ctx: Context) -> Launch:
    """The text's idea, and nothing else."""
    return _plain(ctx, "mask", "bits")


@OP.variant(
    "tuned",
    "16-byte packs in both layouts at any sizes, the second pass from the end of memory; small layers in one kernel",
    tuning=TUNING,
    **{**_FROM_BITS, "traffic": _tuned_traffic},
)
def tuned(ctx: Context) -> Launch:
    """One kernel for small layers (bn_add_relu_grad_whole.cu); else steps 3 and 4 of bn_add_relu_grad.cu.

    `from_bitset` where even the shortest period has 2^31 elements.
    """
    plan = ctx.plan()
    turns, cluster = (int(plan[name]) for name in ("turns", "whole")) if plan else (0, 0)
    cut = GradCut.of(ImageSizes.of(ctx), PACK_BYTES // ITEMSIZE[ctx.case.dtype], turns)
    if cut is None:
        fallback: Launch = from_bitset(ctx)
        return fallback
    three = _three_kernels(ctx, cut)
    return WHOLE.launch_of(ctx, cluster, three) if cluster else three


def _three_kernels(ctx: Context, cut: GradCut) -> Callable[[Tensors], None]:
    """Sums, what comes of them, and dx; for any size and address."""
    sizes, size = cut.sizes, cut.pack
    sums, total = _tuned_sums(ctx, cut), _total(ctx, sizes, cut.count)
    partial = floats(ctx, _SUMS * sizes.channels * cut.count)
    coefficients = floats(ctx, _COEFFICIENTS * sizes.channels)
    rows = _kernel(ctx, "apply_short" if cut.short else "apply_rows")
    in_packs = sizes.inner == 1 and sizes.channels % size == 0
    columns = _kernel(ctx, "apply_columns") if in_packs else None
    packs = -(-sizes.elements // size)
    grid = blocks(packs)
    n, divisors = sizes.counter(sizes.elements), sizes.divisors(sizes.inner, sizes.channels)
    across = sizes.counter(packs), *sizes.divisors(sizes.channels // size)

    def launch(t: Tensors) -> None:
        sums(t, partial)
        vector = aligned(t.dy, t.x, t.dx, t.dz)
        total(partial, t, coefficients, packed=in_packs and vector)
        tensors = t.dy, t.x, t.mask, coefficients, t.dx, t.dz
        if columns and vector:
            columns(grid, BLOCK, *tensors, *across)
        else:
            rows(grid, BLOCK, *tensors, n, ctypes.c_uint32(vector), *divisors)

    return launch


def _tuned_sums(ctx: Context, cut: GradCut) -> Callable[[Tensors, torch.Tensor], None]:
    """The first pass: sums(t, partial)."""
    sizes = cut.sizes
    sum_up = _kernel(ctx, "sums_columns" if cut.short else "sums_rows")
    n, lanes = ctypes.c_int64(sizes.elements), ctypes.c_uint32(cut.lanes)
    numbers = (
        *(ctypes.c_uint32(value) for value in (cut.period, cut.across, cut.along)),
        *divisor(cut.places),
        *(ctypes.c_uint32(value) for value in (cut.rounds, cut.all_rounds)),
        *divisor(sizes.inner),
        *divisor(sizes.channels),
        *(ctypes.c_uint32(value) for value in ((cut.count,) if cut.short else (cut.slots, cut.count))),
    )
    grid = cut.segments * cut.places

    def sums(t: Tensors, partial: torch.Tensor) -> None:
        vector = ctypes.c_uint32(aligned(t.dy, t.x))
        sum_up(grid, BLOCK, t.dy, t.x, t.mask, t.mean, partial, n, vector, lanes, *numbers)

    return sums
