"""Floats as 8-bit integers: how they are rounded, and what a kernel's integers must be.

A value divided by its scale is rounded to the nearest integer, halves to the even one, and saturates at -128 and 127,
as torch.quantize_per_tensor and cuBLASLt do it. NaN gives 0. Where the scale is 0, a value saturates by its sign, and
0 gives 0, since 0 / 0 is NaN. A scale that isn't 0 must not be subnormal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.ops import Choice, Expected

if TYPE_CHECKING:
    import torch

LOWEST, HIGHEST = -128, 127
SCALES = Choice("whether there is one scale for all, or one for each channel", ("tensor", "channel"))

_SCALED = 2**-22
"""What a division in float32, or a product with an inverse, may lose: as a share of the result."""


def to_integers(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The integers as a user of torch makes them.

    torch.quantize_per_tensor takes float32 only, waits until the CPU has read the scale, and its result has to be
    copied to get the integers.
    """
    import torch

    return torch.round(x / scale).clamp_(LOWEST, HIGHEST).to(torch.int8)


def rounded(values: torch.Tensor) -> torch.Tensor:
    """The integers of values that are divided by their scale already, in their own type."""
    return values.round().clamp(LOWEST, HIGHEST).nan_to_num(nan=0.0)


@dataclass(frozen=True, slots=True)
class Approximate:
    """Numbers in float64, and by how much a kernel's own may differ from them."""

    value: torch.Tensor
    error: torch.Tensor


def expected(name: str, got: torch.Tensor, of: Approximate, scale: torch.Tensor, start: int) -> Expected:
    """What the integers of a value divided by its scale must be.

    Any integer is right that a value within the error rounds to: one, or two where a boundary of rounding lies within
    the error. The division loses 2^-22 of the result, and nothing where the scale is a power of two. start: place of
    the part's first element in the whole output.
    """
    import torch

    scale = scale.double()
    loss = _SCALED * (scale.frexp().mantissa.abs() != 0.5)
    error = torch.where(of.value.isfinite(), of.error, 0.0)
    ends = (of.value - error) / scale, (of.value + error) / scale
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    low, high = low - loss * _finite(low).abs(), high + loss * _finite(high).abs()
    # Of the integers that are right, the one nearest to the kernel's own.
    bounds = [rounded(end).to(got.dtype) for end in (low, high)]
    return Expected(name, got, got.clamp(*bounds), start=start)


def _finite(values: torch.Tensor) -> torch.Tensor:
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def scale_shape(symbols: Any) -> tuple[int, ...]:
    """The shape of a scale that the choice `scales` decides about."""
    return (symbols["C"],) if symbols["scales"] == "channel" else (1,)
