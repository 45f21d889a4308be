"""Batch norm in training, a residual and ReLU, with a bit for each y > 0: technique O12. Twin of bn_add_relu.cu.

y = relu((x - mean) * invstd * gamma + beta + z). mean is the mean of a channel's elements, and invstd is
1 / sqrt(variance + 1e-5), with the variance of a channel's elements. The running statistics move a tenth of the way to
the mean and to the unbiased variance. (Where a channel has one element, which torch refuses, they move to the variance
itself.) A channel with a NaN or an infinity in x gets statistics that aren't finite.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
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
    images,
    in_declared_order,
    kernel,
    of_channels,
)
from harness.collection.ops.batch_norm._bn_add_relu_check import check, make, reference
from harness.collection.ops.batch_norm._bn_add_relu_cut import TUNING, WHOLE, RowPieces, StatisticsCut, is_of_pieces
from harness.collection.ops.chip import WARP
from harness.collection.ops.elementwise import ANY, BLOCK, PACK_BYTES, aligned, blocks
from harness.model import Case, Traffic, Work
from harness.ops import ITEMSIZE, Compile, Context, Extremes, Launch, Op, Symbols, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

_PARTIAL = 4  # floats of a partial sum: count, shift, sum, sum of squares
_SLICE = 64  # elements of a thread of the simple statistics
_SLOTS_OF_WARP = 256  # slots of a channel that a warp adds; where a channel has more, a block does


def _moved(symbols: Symbols, size: int, read: int, written: int, outputs: bool = True) -> Traffic:
    """`read` and `written` whole tensors of images, and the vectors of channels.

    outputs: whether mask, mean and invstd are written. Partial sums are left out, since their number depends on the
    device. They are a hundredth of a large tensor; but where a channel has so few samples that each is a partial sum of
    its own, they are several tensors.
    """
    n, vector = elements(symbols), 4 * symbols["C"]
    of_outputs = 4 * -(-n // 32) + 2 * vector if outputs else 0
    return Traffic(read * n * size + 4 * vector, written * n * size + 2 * vector + of_outputs)


def _fused_traffic(symbols: Symbols, size: int) -> Traffic:
    """The statistics read x; the rest reads x and z and writes y."""
    return _moved(symbols, size, read=3, written=1)


def _tuned_traffic(symbols: Symbols, size: int) -> Traffic:
    """The one kernel of a small layer reads x once, by the plan of the rule, if there is a GPU."""
    return _moved(symbols, size, read=2, written=1) if _whole.is_ruled(symbols, size) else _fused_traffic(symbols, size)


def _work(symbols: Symbols, size: int) -> Work:
    """Reads x twice, since y needs its channel's statistics first; of a small layer, again from a cache at best."""
    moved = _fused_traffic(symbols, size)
    return Work(moved.read, moved.written, again=elements(symbols) * size)


def _eager_traffic(symbols: Symbols, size: int) -> Traffic:
    """Batch norm reads x twice and writes y; the addition and ReLU read and write y again."""
    return _moved(symbols, size, read=5, written=3, outputs=False)


def _unfused_traffic(symbols: Symbols, size: int) -> Traffic:
    """The traffic of eager, and the outputs that eager doesn't have."""
    return _moved(symbols, size, read=5, written=3)


_Y = images("y")
_INFINITE_GAMMA = ("gamma.infinity", "gamma.minus_infinity", "gamma.masked")
OP = Op(
    "bn_add_relu",
    "y = relu(batch_norm(x) * gamma + beta + z) in training, and mask = y > 0",
    symbols=SYMBOLS,
    choices=CHOICES,
    inputs=(
        *(images("x"), images("z"), of_channels("gamma"), of_channels("beta")),
        *(of_channels("running_mean", inplace=True), of_channels("running_var", inplace=True)),
    ),
    outputs=(_Y, MASK, of_channels("mean"), of_channels("invstd")),
    reference=reference,
    make=make,
    check=check,
    extremes=Extremes(
        exempt={
            **dict.fromkeys(("running_mean", "running_var"), "each channel has a single one of its own"),
            **dict.fromkeys(_INFINITE_GAMMA, "mean * gamma, which kernels add to x * gamma, is infinite, too"),
        },
        largest=dict.fromkeys(("float32", "bfloat16"), 2.0**40),
        why="variances are sums of squares in float32",
        apart={"x": 1, "z": 1},
    ),
    work=_work,
)


def _user(x: torch.Tensor, z: torch.Tensor, *vectors: torch.Tensor) -> torch.Tensor:
    """What a user writes, with x and z (N, C, H, W); vectors: running mean, running variance, gamma, beta."""
    from torch.nn.functional import batch_norm

    running_mean, running_var, gamma, beta = vectors
    y = batch_norm(x, running_mean, running_var, gamma, beta, training=True, momentum=MOMENTUM, eps=EPSILON)
    y += z
    return y.relu_()


def _baseline(ctx: Context, function: Callable[..., torch.Tensor]) -> Launch:
    symbols = ctx.case.values

    def launch(t: Tensors) -> tuple[torch.Tensor]:
        x, z = as_user_has_it(symbols, t.x), as_user_has_it(symbols, t.z)
        y = function(x, z, t.running_mean, t.running_var, t.gamma, t.beta)
        # y lies in memory as x does, so this copies nothing.
        return (in_declared_order(symbols, y).view(t.x.shape),)

    return launch


def _needs_two(case: Case) -> str | None:
    return "torch refuses a single value a channel" if elements(case.symbols) == case.symbols["C"] else None


_BASELINE: dict[str, Any] = {
    "role": "baseline",
    "devices": ANY,
    "outputs": (_Y,),
    "returns": True,
    "unsupported": _needs_two,
}


@OP.variant("eager", "torch's batch norm, then += z, then relu_; no mask", traffic=_eager_traffic, **_BASELINE)
def eager(ctx: Context) -> Launch:
    """What a user writes today. Autograd keeps y for the backward, in place of a mask."""
    return _baseline(ctx, _user)


@compiled_variants(OP, "torch.compile of the same; no mask", traffic=_fused_traffic, **_BASELINE)
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes kernels for the statistics, and one for the rest."""
    return _baseline(ctx, compiled(_user))


def _kernel(ctx: Context, entry: str) -> cuda.Kernel:
    return kernel(ctx, "bn_add_relu.cu", entry)


@dataclass(frozen=True, slots=True)
class _Summed:
    """Partial sums of x: `gather(t)` launches the kernel that writes t.x's sums to `partial`, `slots` a channel."""

    partial: torch.Tensor
    slots: int
    gather: Callable[[Tensors], None]


def _room(ctx: Context, slots: int) -> torch.Tensor:
    """Memory for the partial sums, (C, slots, 4) floats."""
    return floats(ctx, ImageSizes.of(ctx).channels * slots * _PARTIAL)


def _simple_sums(ctx: Context) -> _Summed:
    """Sums with a block for each slot of a channel, or of 32 channels where channels are last."""
    sizes = ImageSizes.of(ctx)
    across = 32 if sizes.inner == 1 else 1
    slots = blocks(sizes.samples, BLOCK // across * _SLICE)
    groups = blocks(sizes.channels, across)
    statistics, partial = _kernel(ctx, "bn_statistics"), _room(ctx, slots)
    counts = [ctypes.c_uint32(value) for value in (sizes.channels, across, slots)]
    numbers = (sizes.counter(sizes.samples), *counts, *divisor(groups), *sizes.divisors(sizes.inner))
    return _Summed(partial, slots, lambda t: statistics(slots * groups, BLOCK, t.x, partial, *numbers))


def _finish(ctx: Context, sums: _Summed, packed: bool = False) -> tuple[Callable[[Tensors], None], torch.Tensor]:
    """(finish, scale_shift): finish(t) launches all that comes before y.

    Then the tensor scale_shift holds each channel's scale and shift. packed: in the order that bn_apply_columns wants.
    """
    sizes = ImageSizes.of(ctx)
    add_slots, scale_shift = _kernel(ctx, "bn_finish"), floats(ctx, 2 * sizes.channels)
    threads = WARP if sums.slots <= _SLOTS_OF_WARP else BLOCK
    grid = blocks(sizes.channels, BLOCK // threads)
    counts = (ctypes.c_uint32(count) for count in (sizes.channels, threads, packed))
    numbers = ctypes.c_int64(sizes.samples), ctypes.c_int64(sums.slots), *counts

    def finish(t: Tensors) -> None:
        sums.gather(t)
        vectors = t.gamma, t.beta, t.running_mean, t.running_var, t.mean, t.invstd
        add_slots(grid, BLOCK, sums.partial, *vectors, scale_shift, *numbers)

    return finish, scale_shift


@OP.variant(
    "unfused",
    "statistics; then normalise, add, ReLU with its bits: a kernel each",
    role="published",
    rows=("O12",),
    traffic=_unfused_traffic,
)
def unfused(ctx: Context) -> Launch:
    """The steps of eager, and the bits."""
    sizes = ImageSizes.of(ctx)
    finish, scale_shift = _finish(ctx, _simple_sums(ctx))
    normalise, add, relu = (_kernel(ctx, entry) for entry in ("bn_normalise", "bn_add", "bn_relu"))
    n, grid = sizes.counter(sizes.elements), blocks(sizes.elements)
    divisors = sizes.divisors(sizes.channels, sizes.inner)

    def launch(t: Tensors) -> None:
        finish(t)
        normalise(grid, BLOCK, t.x, scale_shift, t.y, n, *divisors)
        add(grid, BLOCK, t.z, t.y, n)
        relu(grid, BLOCK, t.y, t.mask, n)

    return launch


@OP.variant(
    "fused_apply",
    "statistics; then one kernel that normalises, adds, clamps and writes bits",
    role="published",
    rows=("O12",),
)
def fused_apply(ctx: Context) -> Launch:
    """The text's kernel, one element a thread."""
    sizes = ImageSizes.of(ctx)
    finish, scale_shift = _finish(ctx, _simple_sums(ctx))
    apply = _kernel(ctx, "bn_apply")
    n, grid = sizes.counter(sizes.elements), blocks(sizes.elements)
    divisors = sizes.divisors(sizes.channels, sizes.inner)

    def launch(t: Tensors) -> None:
        finish(t)
        apply(grid, BLOCK, t.x, t.z, scale_shift, t.y, t.mask, n, *divisors)

    return launch


@OP.variant(
    "tuned",
    "16-byte packs; y from the end of the memory on, while x is still in the L2; small layers in one kernel",
    rows=("O12",),
    traffic=_tuned_traffic,
    tuning=TUNING,
)
def tuned(ctx: Context) -> Launch:
    """One kernel for small layers (bn_add_relu_whole.cu); else steps 4 and 5 of bn_add_relu.cu.

    Where a sample has 2^31 elements, the statistics are those of `fused_apply`.
    """
    plan = ctx.plan()
    turns, cluster = (int(plan[name]) for name in ("turns", "whole")) if plan else (0, 0)
    three = _three_kernels(ctx, turns)
    return WHOLE.launch_of(ctx, cluster, three) if cluster else three


def _three_kernels(ctx: Context, turns: int) -> Callable[[Tensors], None]:
    """Sums, what comes of them, and y; for any size and address."""
    sizes, per_pack = ImageSizes.of(ctx), PACK_BYTES // ITEMSIZE[ctx.case.dtype]
    entry = _apply_entry(sizes, per_pack)
    finish, scale_shift = _finish(ctx, _tuned_sums(ctx, turns), packed=entry == "bn_apply_columns")
    apply = _kernel(ctx, entry)
    mask_bytes = 4 * -(-sizes.elements // 32)
    grid = blocks(8 * mask_bytes // per_pack)
    n = ctypes.c_int64(sizes.elements), ctypes.c_int64(mask_bytes)
    divisors = sizes.divisors(sizes.channels, sizes.inner)

    def launch(t: Tensors) -> None:
        finish(t)
        packs = ctypes.c_uint32(aligned(t.x, t.z, t.y))
        apply(grid, BLOCK, t.x, t.z, scale_shift, t.y, t.mask, *n, packs, *divisors)

    return launch


def _apply_entry(sizes: ImageSizes, per_pack: int) -> str:
    """Name of the kernel that finds a pack's channels most cheaply."""
    if sizes.inner % per_pack == 0:
        return "bn_apply_one_row"
    if sizes.inner > per_pack:
        return "bn_apply_two_rows"
    return "bn_apply_columns" if sizes.inner == 1 and sizes.channels % per_pack == 0 else "bn_apply_any_rows"


def _tuned_sums(ctx: Context, turns: int) -> _Summed:
    """Sums in packs of 16 bytes, by the kernel for rows of this length."""
    sizes, per_pack = ImageSizes.of(ctx), PACK_BYTES // ITEMSIZE[ctx.case.dtype]
    if is_of_pieces(sizes, per_pack):
        return _sums_of_pieces(ctx, RowPieces.of(sizes, per_pack, turns))
    cut = StatisticsCut.of(sizes, per_pack, turns)
    return _sums_of_places(ctx, cut) if cut else _simple_sums(ctx)


def _sums_of_pieces(ctx: Context, pieces: RowPieces) -> _Summed:
    sizes = ImageSizes.of(ctx)
    slots = sizes.outer * pieces.count
    statistics, partial = _kernel(ctx, "bn_statistics_pieces"), _room(ctx, slots)
    counts = [ctypes.c_uint32(value) for value in (sizes.channels, pieces.count, pieces.length)]
    numbers = (ctypes.c_int64(sizes.inner), *counts, ctypes.c_int64(slots))
    return _Summed(partial, slots, lambda t: statistics(slots * sizes.channels, BLOCK, t.x, partial, *numbers))


class _Dimensions(ctypes.Structure):
    """The sizes that elements of a period are counted by. Twin of Dimensions in bn_add_relu_statistics.cuh."""

    _fields_ = (("channels", cuda.Divisor), ("inner", cuda.Divisor))


def _sums_of_places(ctx: Context, cut: StatisticsCut) -> _Summed:
    sizes = cut.sizes
    partial = _room(ctx, cut.slots)
    before = [ctypes.c_uint32(value) for value in (cut.period, cut.rounds, cut.rounds_a_block)]
    if sizes.inner < cut.per_pack:
        statistics, own = _kernel(ctx, "bn_statistics_columns"), (cut.across, cut.along)
    else:
        statistics, own = _kernel(ctx, "bn_statistics_rows"), (cut.slots_a_row, cut.lanes)
    after = [ctypes.c_uint32(value) for value in (cut.samples, cut.slots, *own)]
    # An empty tensor has a size of 0, by which no kernel divides.
    dimensions = _Dimensions(*(cuda.Divisor.of(max(1, size)) for size in (sizes.channels, sizes.inner)))
    n, grid = ctypes.c_int64(sizes.elements), (cut.tiles, cut.stacked)

    def gather(t: Tensors) -> None:
        statistics(grid, BLOCK, t.x, partial, n, *before, ctypes.c_uint32(aligned(t.x)), *after, dimensions)

    return _Summed(partial, cut.slots, gather)
