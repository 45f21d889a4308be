"""What bn_add_relu must give: its inputs, its reference in float64, and how far off each output may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.collection.ops.batch_norm._batch_norm import EPSILON, MOMENTUM, of_channels
from harness.collection.ops.bits import pack
from harness.ops import MODES, Context, Expected, Tensor, Tensors

if TYPE_CHECKING:
    import torch

_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The most that a rounding changes a number, relative to it."""
_LEAST = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
"""The smallest numbers: below the normal numbers a rounding changes a number by up to half of this."""
_ROUNDED = ("eager", *MODES, "unfused")
"""Variants that may round to the dtype before they add z, too."""
_STATISTIC = 1e-5
"""Error allowed of a statistic: of invstd relative to itself, of the mean relative to the standard deviation."""
_FLOAT = 2.0**-22
"""Error allowed of a float, relative to the largest number that went into it: four roundings."""
_CHUNK = 2**25  # elements that are in float64 at a time


def make(ctx: Context) -> dict[str, Any]:
    """Normal random numbers; each channel of x has its own mean and deviation, and variances are positive."""
    import torch

    def normal(tensor: Tensor) -> torch.Tensor:
        dtype = getattr(torch, tensor.dtype_of(ctx.case.dtype))
        shape = tensor.shapes(ctx.case.values)[0]
        return torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=dtype)

    made = {tensor.name: normal(tensor) for tensor in ctx.op.inputs}
    deviation, mean = (normal(of_channels("drawn")).view(1, -1, 1) for _ in range(2))
    made["x"].mul_(deviation.abs() + 0.5).add_(mean)
    made["running_var"].abs_()
    return made


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """Mean and biased variance of each channel, (C) in float64, over `samples` elements."""

    mean: torch.Tensor
    variance: torch.Tensor
    samples: int

    @classmethod
    def of(cls, x: torch.Tensor) -> ChannelStatistics:
        """The statistics of x (outer, channels, inner)."""
        samples = x.shape[0] * x.shape[2]
        mean = sum(part.double().sum((0, 2)) for part in _chunks(x)) / samples
        about = mean.view(1, -1, 1)
        squares = sum((part.double() - about).square_().sum((0, 2)) for part in _chunks(x))
        return cls(mean, squares / samples, samples)

    @property
    def invstd(self) -> torch.Tensor:
        """1 / sqrt(variance + EPSILON)."""
        return (self.variance + EPSILON).rsqrt()

    def running(self, t: Tensors) -> dict[str, torch.Tensor]:
        """The running statistics by name, after `t`'s were updated."""
        unbiased = self.variance * (self.samples / max(1, self.samples - 1))
        new = {"running_mean": self.mean, "running_var": unbiased}
        return {name: (1 - MOMENTUM) * getattr(t, name).double() + MOMENTUM * value for name, value in new.items()}


def _chunks(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Slices of (outer, channels, inner) along outer, of at most `_CHUNK` elements where one outer place has fewer."""
    parts: tuple[torch.Tensor, ...] = tensor.split(max(1, _CHUNK // max(1, tensor[0].numel())))
    return parts


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """All outputs and the new running statistics, in float64."""
    found = ChannelStatistics.of(t.x)
    scale, mean, beta = (v.view(1, -1, 1) for v in (t.gamma * found.invstd, found.mean, t.beta.double()))
    y = ((t.x.double() - mean) * scale + beta + t.z.double()).relu_()
    return {"y": y, "mask": pack(y.view(-1) > 0), "mean": found.mean, "invstd": found.invstd, **found.running(t)}


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What each output must be: y to the roundings of its terms, statistics to 1e-5, the mask exactly as y says.

    Statistics of a channel with an infinity or a NaN must not be finite; which of the two they are doesn't matter.
    """
    found = ChannelStatistics.of(t.before.x)
    yield from _running(t, found)
    yield from _y(ctx, t, found)
    if hasattr(t, "mask"):
        mean_allowed = _STATISTIC * found.variance.sqrt() + _UNIT["float32"] * found.mean.abs()
        yield Expected("mean", t.mean, found.mean, mean_allowed, loose=True)
        yield Expected("invstd", t.invstd, found.invstd, _STATISTIC * found.invstd, loose=True)
        yield Expected("mask", t.mask, pack(t.y.reshape(-1) > 0))


def _running(t: Tensors, found: ChannelStatistics) -> Iterator[Expected]:
    """The running statistics, which are off by the errors of the new statistics and by the roundings of an update."""
    wanted = found.running(t.before)
    deviation = (found.variance + EPSILON).sqrt()
    mean_allowed = _STATISTIC * deviation + _FLOAT * (found.mean.abs() + t.before.running_mean.abs())
    var_allowed = _STATISTIC * (found.variance + EPSILON) + _FLOAT * t.before.running_var.abs()
    yield Expected("running_mean", t.running_mean, wanted["running_mean"], mean_allowed, loose=True)
    yield Expected("running_var", t.running_var, wanted["running_var"], var_allowed, loose=True)


def _y(ctx: Context, t: Tensors, found: ChannelStatistics) -> Iterator[Expected]:
    """The parts of y. Allowed are its rounding, the roundings of floats before it, and the errors of the statistics.

    A float may be off by its rounding relative to each number that was added. Two of these, x * scale and the term that
    takes the mean away, may be much larger than their sum. Variants of several steps also round what z is added to.
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
        yield Expected("y", y, want.relu_(), allowed, start, loose=True)
        start += y.numel()
