"""Numbers in int8: how they are quantised, the data that is, and how far off a product of them is (row S15).

A tensor is quantised symmetrically: q = round(value / scale), where the scale takes the largest value to 127. Nothing
saturates then. -128 comes only from data that was quantised elsewhere, and products take it like any other number.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import metrics, units
from harness.metrics import KEPT
from harness.ops import Context

if TYPE_CHECKING:
    import torch

SNR, MEAN_ERROR, LARGEST_ERROR = "snr", "mean_error", "largest_error"
"""Facts of a variant whose result has fewer bits than what it stands for: how far off it is."""
metrics.fact(
    SNR,
    "signal to noise",
    units.DECIBELS,
    "the energy of the same result in float64, computed before anything was quantised or rounded, over the energy of "
    "the error; 6 dB are a bit",
    "higher",
    keep=6,
    after=KEPT,
)
metrics.fact(
    MEAN_ERROR,
    "mean error",
    units.FINE_SHARE,
    "the mean absolute error, over the root mean square of the same result in float64",
    "lower",
    after=SNR,
)
metrics.fact(
    LARGEST_ERROR,
    "largest error",
    units.FINE_SHARE,
    "the largest absolute error, over the root mean square of the same result in float64",
    "lower",
    after=MEAN_ERROR,
)

LARGEST = 127
LOWEST, HIGHEST = -128, 127
OUTLIERS = 64
"""One channel of so many is an outlier, in data that has outliers."""
OUTLIER_FACTORS = 20.0, 100.0
"""An outlier channel is larger than the other channels by a factor between these two."""
_CHUNK = 2**25  # elements of a product in float64 that are computed at a time


def quantise(values: torch.Tensor, per_row: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(q, scale): a matrix in int8 and its scale in float32, of shape (1), or of shape (rows) with one for each row.

    A matrix, or a row, of zeros has the scale 0: its numbers are 0.
    """
    import torch

    largest = values.abs().amax(dim=1) if per_row else values.abs().amax().view(1)
    scale = (largest / LARGEST).float()
    inverse = torch.where(scale > 0, 1 / scale, 0)
    return rounded(values * (inverse.unsqueeze(1) if per_row else inverse)), scale


def rounded(values: torch.Tensor) -> torch.Tensor:
    """The nearest numbers of int8, of two equally near ones the even one; what is beyond them saturates."""
    import torch

    return values.round().clamp(LOWEST, HIGHEST).to(torch.int8)


def real(ctx: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """X (M, K) and the weight (N, K) in float32, before they are quantised; the same at each call.

    All choices of a size have the same numbers, so that the error changes by what is chosen and not by chance.
    x is normal, the weight too, with the deviation 1 / sqrt(K). With the choice data=outliers some columns of x are
    larger than the other channels, as in the activations of real networks.
    """
    import torch

    s = ctx.s
    # A generator of its own: the context's has another seed for each choice, and has gone on when the check needs x.
    generator = torch.Generator(ctx.device).manual_seed(zlib.crc32(f"{s.M}x{s.N}x{s.K}".encode()))
    x, weight = (torch.randn(rows, s.K, generator=generator, device=ctx.device) for rows in (s.M, s.N))
    if s.data == "outliers":
        count = max(1, s.K // OUTLIERS)
        chosen = torch.randperm(s.K, generator=generator, device=ctx.device)[:count]
        low, high = OUTLIER_FACTORS
        x[:, chosen] *= low + (high - low) * torch.rand(count, generator=generator, device=ctx.device)
    return x, weight.div_(math.sqrt(s.K))


def products(x: torch.Tensor, weight: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """X weight^T in float64, some rows at a time. Products of int8 are exact in it."""
    rows = max(1, _CHUNK // max(1, weight.shape[0]))
    factor = weight.double().t()
    for first in range(0, x.shape[0], rows):
        here = slice(first, first + rows)
        yield here, x[here].double() @ factor


@dataclass(slots=True)
class Inaccuracy:
    """The errors of a result, of which parts are added: sums of squares and of sizes, and the largest size."""

    elements: int = 0
    signal: float = 0.0
    noise: float = 0.0
    total: float = 0.0
    largest: float = 0.0

    def add(self, got: torch.Tensor, exact: torch.Tensor) -> None:
        """Count a part. exact: what it should be, in float64."""
        error = (got.double() - exact).abs()
        self.elements += exact.numel()
        self.signal += float(exact.square().sum())
        self.noise += float(error.square().sum())
        self.total += float(error.sum())
        self.largest = max(self.largest, float(error.max()))

    @property
    def figures(self) -> dict[str, float]:
        """The facts by name; none where all is zero, or nothing is wrong, which has no figure in decibels."""
        if not (self.signal and self.noise and math.isfinite(self.noise)):
            return {}
        size = math.sqrt(self.signal / self.elements)
        return {
            SNR: 10 * math.log10(self.signal / self.noise),
            MEAN_ERROR: self.total / self.elements / size,
            LARGEST_ERROR: self.largest / size,
        }
