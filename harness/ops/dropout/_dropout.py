"""What the ops that drop elements at random share: the probability, the kernels' arguments, and the check."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.ops import Context, Tensor, Tensors

if TYPE_CHECKING:
    import torch

NARROW, WIDE = 16, 24
"""Bits of an element's random number: eight elements share a Philox call, or four (philox.cuh)."""
PERCENT = {"P": "percent of the elements that are dropped"}
CALL = Tensor("call", ("1",), "int64")
"""Tells one call's random numbers from the next one's. In device memory, so that a captured graph can advance it."""
_SIGMAS = 5


@dataclass(frozen=True, slots=True)
class Keep:
    """The probability of keeping an element as the kernels have it: threshold / 2**bits, nearest to the one asked for.

    scale: what kept elements are multiplied by, the inverse of the probability as it is, so that the mean stays.
    """

    percent: int
    bits: int

    @property
    def threshold(self) -> int:
        return round((100 - self.percent) / 100 * (1 << self.bits))

    @property
    def scale(self) -> float:
        return (1 << self.bits) / self.threshold if self.threshold else 0.0


def seed(ctx: Context) -> int:
    """The key of the case's random numbers."""
    return int(ctx.generator.initial_seed())


def arguments(ctx: Context, bits: int) -> tuple[Any, ...]:
    """(seed, threshold, scale) as the kernels take them: unsigned 64 bits, unsigned 32 bits, float."""
    keep = Keep(ctx.s.P, bits)
    return ctypes.c_uint64(seed(ctx)), ctypes.c_uint32(keep.threshold), ctypes.c_float(keep.scale)


def split(count: int, bits: int) -> tuple[int, int]:
    """(threads, whole) of a kernel whose threads each take the elements of one draw, four or eight.

    threads: as many as the words of a bit mask need. whole: those of them, from the first one on, whose elements all
    exist; in the narrow stream only where the whole warp's do, since a warp moves a tile (kernels/include/bitmask.cuh).
    """
    per_thread, together = {WIDE: (4, 4), NARROW: (8, 256)}[bits]
    return -(-count // 32) * 32 // per_thread, count // together * together // per_thread


def density_complaint(ctx: Context, mask: torch.Tensor) -> str | None:
    """What is wrong with the share of elements that `mask` (bool) keeps, if it is 5 sigma or more off."""
    count, kept, wanted = mask.numel(), int(mask.sum()), 1 - ctx.s.P / 100
    # A narrow number's probability may be 2**-17 off.
    allowed = _SIGMAS * math.sqrt(count * wanted * (1 - wanted)) + count * 2.0**-17
    if abs(kept - count * wanted) <= allowed:
        return None
    return f"{kept} of {count} elements are kept; {count * wanted:.0f} within {allowed:.0f} would be random"


def sum_complaint(ctx: Context, t: Tensors, x: torch.Tensor, addend: torch.Tensor) -> str | None:
    """What is wrong with the outputs mask and y = dropout(x) + addend, given x and addend in float32.

    eager rounds the product too, on a CPU also the scale, and a sum can be far smaller than its terms: so the tolerance
    is of both terms, and of the first one twice.
    """
    import torch

    dropped = torch.where(t.mask, x * Keep(ctx.s.P, WIDE).scale, 0)
    magnitude = 2 * dropped.abs() + addend.abs()
    return density_complaint(ctx, t.mask) or value_complaint(ctx, "y", t.y, dropped + addend, magnitude)


def value_complaint(
    ctx: Context, name: str, got: torch.Tensor, want: torch.Tensor, magnitude: torch.Tensor | None = None
) -> str | None:
    """What is wrong with values (any precision) against those that the mask asks for, in float32 or wider.

    The scale may be off by the rounding of the probability, 2**-17 of 1, hence a tolerance beside the dtype's own.
    magnitude: what the tolerance is relative to where that isn't `want`: a sum's terms may be far larger than the sum.
    """
    rounding = 2.0**-16 / max(1 - ctx.s.P / 100, 2.0**-16)
    relative = rounding + {"float32": 2.0**-15, "float16": 2.0**-10, "bfloat16": 2.0**-7}[ctx.case.dtype]
    magnitude = want.abs() if magnitude is None else magnitude
    wrong = ~((got.to(want.dtype) - want).abs() <= relative * magnitude + relative / 16)
    if not bool(wrong.any()):
        return None
    first = int(wrong.view(-1).nonzero()[0])
    return (
        f"{name}: {int(wrong.sum())} of {wrong.numel()} elements are wrong; element {first} is "
        f"{got.view(-1)[first].item()}, its mask asks for {want.view(-1)[first].item()}"
    )
