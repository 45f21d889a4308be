"""Batch norm in training, a residual and ReLU, with a bit for each y > 0: row O12. Twin of bn_add_relu.cu.

y = relu((x - mean) * invstd * gamma + beta + z), with the mean and the variance of a channel's elements: invstd is
1 / sqrt(variance + 1e-5). The running statistics move a tenth of the way to the mean and to the unbiased variance (the
variance itself where a channel has one element, which torch refuses). A channel with a NaN or an infinity in x gets
statistics that aren't finite.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.model import Case, Work
from harness.ops import ITEMSIZE, Context, Launch, Op, Symbols, Tensor, Tensors
from harness.ops._baselines import compiled
from harness.ops._bits import pack
from harness.ops._device import WARP
from harness.ops._elementwise import BLOCK, BOTH, PACK_BYTES, aligned, blocks
from harness.ops.batch_norm._batch_norm import (
    DEFAULTS,
    EPSILON,
    MASK,
    MOMENTUM,
    SYMBOLS,
    Layout,
    as_user_has_it,
    divisor,
    elements,
    floats,
    images,
    kernel,
    of_channels,
)
from harness.ops.batch_norm._batch_norm_cut import LONG_ROW, Cut, Pieces

if TYPE_CHECKING:
    import torch

_PARTIAL = 4  # floats of a partial sum: count, shift, sum, squares
_SLICE = 64  # elements of a thread of the simple statistics

_SLOTS_OF_WARP = 256  # of a channel, that a warp adds; of more, a block

_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The most that a rounding changes a number, relative to it."""
_LEAST = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
"""The smallest numbers: below the normal ones a rounding changes a number by up to half of this."""
_ROUNDED = ("eager", "compile", "unfused")
"""Variants that may round to the dtype before they add z, too."""
_STATISTIC = 1e-5
"""Error allowed of a statistic: of invstd relative to itself, of the mean relative to the standard deviation."""
_FLOAT = 2.0**-22
"""Error allowed of a float next to the largest number that went into it: four roundings."""
_CHUNK = 2**25  # elements that a check has in float64 at a time


def make(ctx: Context) -> dict[str, Any]:
    """Normal random numbers; each channel of x has its own mean and deviation, and variances are positive."""
    import torch

    def normal(tensor: Tensor) -> torch.Tensor:
        dtype = getattr(torch, tensor.dtype_of(ctx.case.dtype))
        shape = tensor.shapes(ctx.case.symbols)[0]
        return torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=dtype)

    made = {tensor.name: normal(tensor) for tensor in OP.inputs}
    deviation, mean = (normal(of_channels("")).view(1, -1, 1) for _ in range(2))
    made["x"].mul_(deviation.abs() + 0.5).add_(mean)
    made["running_var"].abs_()
    return made


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of each channel, (C) in float64; the variance is the biased one."""

    mean: torch.Tensor
    variance: torch.Tensor
    samples: int

    @classmethod
    def of(cls, x: torch.Tensor) -> Statistics:
        """x: (outer, channels, inner)."""
        samples = x.shape[0] * x.shape[2]
        mean = sum(part.double().sum((0, 2)) for part in _chunks(x)) / samples
        about = mean.view(1, -1, 1)
        squares = sum((part.double() - about).square_().sum((0, 2)) for part in _chunks(x))
        return cls(mean, squares / samples, samples)

    @property
    def invstd(self) -> torch.Tensor:
        return (self.variance + EPSILON).rsqrt()

    def running(self, t: Tensors) -> dict[str, torch.Tensor]:
        """The running statistics after an update."""
        unbiased = self.variance * (self.samples / max(1, self.samples - 1))
        new = {"running_mean": self.mean, "running_var": unbiased}
        return {name: (1 - MOMENTUM) * getattr(t, name).double() + MOMENTUM * value for name, value in new.items()}


def _chunks(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Slices of (outer, channels, inner) along outer, of at most `_CHUNK` elements where one outer place has fewer."""
    parts: tuple[torch.Tensor, ...] = tensor.split(max(1, _CHUNK // max(1, tensor[0].numel())))
    return parts


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """In float64."""
    found = Statistics.of(t.x)
    scale, mean, beta = (v.view(1, -1, 1) for v in (t.gamma * found.invstd, found.mean, t.beta.double()))
    y = ((t.x.double() - mean) * scale + beta + t.z.double()).relu_()
    return {"y": y, "mask": pack(y.view(-1) > 0), "mean": found.mean, "invstd": found.invstd, **found.running(t)}


def check(ctx: Context, t: Tensors) -> str | None:
    """Each y by the terms that were added, the mask by the y that was written, statistics by the deviation."""
    found = Statistics.of(t.before.x)
    complaint = _running_complaint(t, found) or _y_complaint(ctx, t, found)
    if complaint or not hasattr(t, "mask"):
        return complaint
    mean_allowed = _STATISTIC * found.variance.sqrt() + _UNIT["float32"] * found.mean.abs()
    return (
        _outside("mean", t.mean, found.mean, mean_allowed)
        or _outside("invstd", t.invstd, found.invstd, _STATISTIC * found.invstd)
        or _mask_complaint(t)
    )


def _running_complaint(t: Tensors, found: Statistics) -> str | None:
    wanted = found.running(t.before)
    deviation = (found.variance + EPSILON).sqrt()
    mean_allowed = _STATISTIC * deviation + _FLOAT * (found.mean.abs() + t.before.running_mean.abs())
    var_allowed = _STATISTIC * (found.variance + EPSILON) + _FLOAT * t.before.running_var.abs()
    return _outside("running_mean", t.running_mean, wanted["running_mean"], mean_allowed) or _outside(
        "running_var", t.running_var, wanted["running_var"], var_allowed
    )


def _y_complaint(ctx: Context, t: Tensors, found: Statistics) -> str | None:
    """The roundings of y and, in some variants, of what z is added to; and those of floats on the way.

    A float errs by its rounding next to each number that was added, of which x * scale and the term that takes the
    mean off it may be much larger than their sum; and the statistics may be off by what they are allowed.
    """
    unit, least = _UNIT[ctx.case.dtype], _LEAST[ctx.case.dtype]
    gamma, beta = t.before.gamma.double().view(1, -1, 1), t.before.beta.double().view(1, -1, 1)
    scale, mean = gamma * found.invstd.view(1, -1, 1), found.mean.view(1, -1, 1)
    start = 0
    for y, x, z in zip(*(_chunks(tensor) for tensor in (t.y, t.before.x, t.before.z)), strict=True):
        scaled, normal = x.double() * scale, (x.double() - mean) * scale + beta
        want = normal + z.double()
        terms = scaled.abs() + (mean * scale).abs() + beta.abs() + z.double().abs()
        allowed = unit * want.abs() + least + _FLOAT * terms + _STATISTIC * ((normal - beta).abs() + gamma.abs())
        if ctx.case.variant in _ROUNDED:
            allowed += unit * normal.abs() + least
        if complaint := _outside("y", y, want.relu_(), allowed, start):
            return complaint
        start += y.numel()
    return None


def _mask_complaint(t: Tensors) -> str | None:
    """Exactly the bits of the y that was written, and none past it."""
    wrong = t.mask != pack(t.y.reshape(-1) > 0)
    if not bool(wrong.any()):
        return None
    return f"mask: {int(wrong.sum())} of {wrong.numel()} words aren't those of y > 0, the first is {_first(wrong)}"


def _outside(name: str, got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor, start: int = 0) -> str | None:
    """What isn't within `allowed` of the reference, or finite where it is; elements are counted from `start`."""
    close = (got.double() - want).abs() <= allowed
    wrong = ~close & (want.isfinite() | got.isfinite())
    if not bool(wrong.any()):
        return None
    i = _first(wrong)
    values = f"element {start + i} is {got.reshape(-1)[i].item()}, the reference {want.reshape(-1)[i].item()}"
    return f"{name}: {int(wrong.sum())} are wrong; {values} within {allowed.reshape(-1)[i].item():.3g}"


def _first(wrong: torch.Tensor) -> int:
    return int(wrong.view(-1).nonzero()[0])


def _moved(symbols: Symbols, size: int, read: int, written: int, outputs: bool = True) -> Work:
    """`read` and `written` whole tensors of images and the channels' vectors; `outputs`: also mask, mean and invstd.

    Partial sums are left out, since their number depends on the device. Next to a large tensor they are a hundredth;
    but where channels have few samples, each of which is a partial sum of its own, they are several tensors.
    """
    n, vector = elements(symbols), 4 * symbols["C"]
    of_outputs = 4 * -(-n // 32) + 2 * vector if outputs else 0
    return Work(read * n * size + 4 * vector, written * n * size + 2 * vector + of_outputs, flops=8 * n)


def _work(symbols: Symbols, size: int) -> Work:
    """Reads x twice, since y needs its channel's statistics first."""
    return _moved(symbols, size, read=3, written=1)


def _eager_traffic(symbols: Symbols, size: int) -> Work:
    """Batch norm as above without z; the addition and ReLU read and write y."""
    return _moved(symbols, size, read=5, written=3, outputs=False)


def _unfused_traffic(symbols: Symbols, size: int) -> Work:
    return _moved(symbols, size, read=5, written=3)


_Y = images("y")
OP = Op(
    "bn_add_relu",
    "y = relu(batch_norm(x) * gamma + beta + z) in training, and mask = y > 0",
    symbols=SYMBOLS,
    defaults=DEFAULTS,
    inputs=(
        *(images("x"), images("z"), of_channels("gamma"), of_channels("beta")),
        *(of_channels("running_mean", inplace=True), of_channels("running_var", inplace=True)),
    ),
    outputs=(_Y, MASK, of_channels("mean"), of_channels("invstd")),
    reference=reference,
    make=make,
    check=check,
    work=_work,
)


def _user(x: torch.Tensor, z: torch.Tensor, *vectors: torch.Tensor) -> torch.Tensor:
    """What a user writes, with x and z (N, C, H, W); vectors: running statistics, gamma and beta."""
    from torch.nn.functional import batch_norm

    running_mean, running_var, gamma, beta = vectors
    y = batch_norm(x, running_mean, running_var, gamma, beta, training=True, momentum=MOMENTUM, eps=EPSILON)
    y += z
    return y.relu_()


def _baseline(ctx: Context, function: Callable[..., torch.Tensor]) -> Launch:
    symbols = ctx.case.symbols

    def launch(t: Tensors) -> tuple[torch.Tensor]:
        x, z = as_user_has_it(symbols, t.x), as_user_has_it(symbols, t.z)
        y = function(x, z, t.running_mean, t.running_var, t.gamma, t.beta)
        # A view: y is laid out as x is.
        return ((y.permute(0, 2, 3, 1) if symbols["L"] else y).view(t.x.shape),)

    return launch


def _needs_two(case: Case) -> str | None:
    return "torch refuses a single value a channel" if elements(case.symbols) == case.symbols["C"] else None


_BASELINE: dict[str, Any] = {"devices": BOTH, "outputs": (_Y,), "returns": True, "unsupported": _needs_two}


@OP.variant("eager", "torch's batch norm, then += z, then relu_; no mask", traffic=_eager_traffic, **_BASELINE)
def eager(ctx: Context) -> Launch:
    """What a user writes today, of whom autograd keeps y for the backward."""
    return _baseline(ctx, _user)


@OP.variant("compile", "torch.compile of the same; no mask", **_BASELINE)
def compile_(ctx: Context) -> Launch:
    """Inductor's statistics, and one kernel for the rest."""
    return _baseline(ctx, compiled(_user))


def _kernel(ctx: Context, entry: str) -> cuda.Kernel:
    return kernel(ctx, "bn_add_relu.cu", entry)


@dataclass(frozen=True, slots=True)
class _Summed:
    """Partial sums: `gather(t)` makes those of t.x in `partial`, which has `slots` a channel."""

    partial: torch.Tensor
    slots: int
    gather: Callable[[Tensors], None]


def _room(ctx: Context, slots: int) -> torch.Tensor:
    """For the partial sums, (C, slots, 4) floats."""
    return floats(ctx, Layout.of(ctx).channels * slots * _PARTIAL)


def _simple_sums(ctx: Context) -> _Summed:
    """A block for each slot of a channel, or of 32 where channels are last."""
    layout = Layout.of(ctx)
    across = 32 if layout.inner == 1 else 1
    slots = blocks(layout.samples, BLOCK // across * _SLICE)
    groups = blocks(layout.channels, across)
    statistics, partial = _kernel(ctx, "bn_statistics"), _room(ctx, slots)
    counts = [ctypes.c_uint32(value) for value in (layout.channels, across, slots)]
    sizes = (layout.counter(layout.samples), *counts, *divisor(groups), *layout.divisors(layout.inner))
    return _Summed(partial, slots, lambda t: statistics(slots * groups, BLOCK, t.x, partial, *sizes))


def _finish(ctx: Context, sums: _Summed, packed: bool = False) -> tuple[Callable[[Tensors], None], torch.Tensor]:
    """finish(t) does what comes before y; the tensor has each channel's scale and shift then.

    packed: in the order that bn_apply_columns wants.
    """
    layout = Layout.of(ctx)
    add_slots, scale_shift = _kernel(ctx, "bn_finish"), floats(ctx, 2 * layout.channels)
    threads = WARP if sums.slots <= _SLOTS_OF_WARP else BLOCK
    grid = blocks(layout.channels, BLOCK // threads)
    counts = (ctypes.c_uint32(count) for count in (layout.channels, threads, packed))
    sizes = ctypes.c_int64(layout.samples), ctypes.c_int64(sums.slots), *counts

    def finish(t: Tensors) -> None:
        sums.gather(t)
        vectors = t.gamma, t.beta, t.running_mean, t.running_var, t.mean, t.invstd
        add_slots(grid, BLOCK, sums.partial, *vectors, scale_shift, *sizes)

    return finish, scale_shift


@OP.variant("unfused", "statistics; then normalise, add, ReLU with its bits: a kernel each", traffic=_unfused_traffic)
def unfused(ctx: Context) -> Launch:
    """The way of eager, and the bits."""
    layout = Layout.of(ctx)
    finish, scale_shift = _finish(ctx, _simple_sums(ctx))
    normalise, add, relu = (_kernel(ctx, entry) for entry in ("bn_normalise", "bn_add", "bn_relu"))
    n, grid = layout.counter(layout.elements), blocks(layout.elements)
    sizes = layout.divisors(layout.channels, layout.inner)

    def launch(t: Tensors) -> None:
        finish(t)
        normalise(grid, BLOCK, t.x, scale_shift, t.y, n, *sizes)
        add(grid, BLOCK, t.z, t.y, n)
        relu(grid, BLOCK, t.y, t.mask, n)

    return launch


@OP.variant("fused_apply", "statistics; then one kernel that normalises, adds, clamps and writes bits", rows=("O12",))
def fused_apply(ctx: Context) -> Launch:
    """The text's, one element a thread."""
    layout = Layout.of(ctx)
    finish, scale_shift = _finish(ctx, _simple_sums(ctx))
    apply = _kernel(ctx, "bn_apply")
    n, grid = layout.counter(layout.elements), blocks(layout.elements)
    sizes = layout.divisors(layout.channels, layout.inner)

    def launch(t: Tensors) -> None:
        finish(t)
        apply(grid, BLOCK, t.x, t.z, scale_shift, t.y, t.mask, n, *sizes)

    return launch


@OP.variant("tuned", "16-byte packs; y from the end of the memory on, where x is in the L2 yet", rows=("O12",))
def tuned(ctx: Context) -> Launch:
    """See bn_add_relu.cu; where a sample has 2^31 elements, the statistics of `fused_apply`."""
    layout, per_pack = Layout.of(ctx), PACK_BYTES // ITEMSIZE[ctx.case.dtype]
    entry = _apply_entry(layout, per_pack)
    finish, scale_shift = _finish(ctx, _tuned_sums(ctx), packed=entry == "bn_apply_columns")
    apply = _kernel(ctx, entry)
    mask_bytes = 4 * -(-layout.elements // 32)
    grid = blocks(8 * mask_bytes // per_pack)
    n = ctypes.c_int64(layout.elements), ctypes.c_int64(mask_bytes)
    sizes = layout.divisors(layout.channels, layout.inner)

    def launch(t: Tensors) -> None:
        finish(t)
        packs = ctypes.c_uint32(aligned(t.x, t.z, t.y))
        apply(grid, BLOCK, t.x, t.z, scale_shift, t.y, t.mask, *n, packs, *sizes)

    return launch


def _apply_entry(layout: Layout, per_pack: int) -> str:
    """The kernel with the cheapest way from a pack to its channels."""
    if layout.inner % per_pack == 0:
        return "bn_apply_one_row"
    if layout.inner > per_pack:
        return "bn_apply_two_rows"
    return "bn_apply_columns" if layout.inner == 1 and layout.channels % per_pack == 0 else "bn_apply_any_rows"


def _tuned_sums(ctx: Context) -> _Summed:
    """By the length of rows."""
    layout, per_pack = Layout.of(ctx), PACK_BYTES // ITEMSIZE[ctx.case.dtype]
    if layout.inner >= max(LONG_ROW, layout.outer) * BLOCK * per_pack:
        return _sums_of_pieces(ctx, Pieces.of(layout, per_pack))
    cut = Cut.of(layout, per_pack)
    return _sums_of_places(ctx, cut) if cut else _simple_sums(ctx)


def _sums_of_pieces(ctx: Context, pieces: Pieces) -> _Summed:
    layout = Layout.of(ctx)
    slots = layout.outer * pieces.count
    statistics, partial = _kernel(ctx, "bn_statistics_pieces"), _room(ctx, slots)
    counts = [ctypes.c_uint32(value) for value in (layout.channels, pieces.count, pieces.length)]
    sizes = (ctypes.c_int64(layout.inner), *counts, ctypes.c_int64(slots))
    return _Summed(partial, slots, lambda t: statistics(slots * layout.channels, BLOCK, t.x, partial, *sizes))


def _sums_of_places(ctx: Context, cut: Cut) -> _Summed:
    layout = cut.layout
    partial = _room(ctx, cut.slots)
    before = [ctypes.c_uint32(value) for value in (cut.period, cut.rounds, cut.rounds_a_block)]
    if layout.inner < cut.per_pack:
        statistics, own = _kernel(ctx, "bn_statistics_columns"), (cut.across, cut.along)
    else:
        statistics, own = _kernel(ctx, "bn_statistics_rows"), (cut.slots_a_row, cut.lanes)
    after = [ctypes.c_uint32(value) for value in (cut.samples, cut.slots, *own)]
    sizes = *after, *divisor(layout.channels), *divisor(layout.inner)
    n, grid = ctypes.c_int64(layout.elements), (cut.tiles, cut.stacked)

    def gather(t: Tensors) -> None:
        statistics(grid, BLOCK, t.x, partial, n, *before, ctypes.c_uint32(aligned(t.x)), *sizes)

    return _Summed(partial, cut.slots, gather)
