"""What the ops that drop elements at random share: the probability, the kernels' arguments, and the check."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.ops import Choice, Context, Expected, Tensor, Tensors

if TYPE_CHECKING:
    import torch

NARROW, WIDE = 16, 24
"""The bits of an element's random number: eight elements share a Philox call, or four (philox.cuh)."""
DROPPED = {"p": Choice("share of the elements that are dropped", low=0.0, high=1.0, default=0.1)}
CALL = Tensor("call", ("1",), "int64")
"""The number of a call, which tells its random numbers from the next one's.

It lies in the memory of the device, so that a captured graph can advance it.
"""
_SIGMAS = 5


@dataclass(frozen=True, slots=True)
class Keep:
    """The probability of keeping an element as the kernels have it: threshold / 2**bits, the nearest one to 1 - p.

    p: the share that is dropped. scale: what kept elements are multiplied by, the inverse of the rounded probability,
    so that the mean stays.
    """

    p: float
    bits: int

    @property
    def threshold(self) -> int:
        return round((1 - self.p) * (1 << self.bits))

    @property
    def scale(self) -> float:
        return (1 << self.bits) / self.threshold if self.threshold else 0.0


def seed(ctx: Context) -> int:
    """The key of the case's random numbers."""
    return int(ctx.generator.initial_seed())


def arguments(ctx: Context, bits: int) -> tuple[Any, ...]:
    """(seed, threshold, scale) as the kernels take them: unsigned 64 bits, unsigned 32 bits, float."""
    keep = Keep(ctx.s.p, bits)
    return ctypes.c_uint64(seed(ctx)), ctypes.c_uint32(keep.threshold), ctypes.c_float(keep.scale)


def split(count: int, bits: int) -> tuple[int, int]:
    """(threads, whole) of a kernel whose threads each take the elements of one draw, four or eight.

    threads: as many as the words of a bit mask need. whole: those of them, from the first one on, whose elements all
    exist; in the narrow stream only where the whole warp's do, since a warp moves a tile (kernels/include/bitmask.cuh).
    """
    per_thread, together = {WIDE: (4, 4), NARROW: (8, 256)}[bits]
    return -(-count // 32) * 32 // per_thread, count // together * together // per_thread


def expected_share(ctx: Context, mask: torch.Tensor) -> Iterator[str]:
    """A complaint if the share of elements that `mask` (bool) keeps is off by 5 standard deviations or more."""
    count, kept, wanted = mask.numel(), int(mask.sum()), 1 - ctx.s.p
    # A narrow number's probability may be 2**-17 off.
    allowed = _SIGMAS * math.sqrt(count * wanted * (1 - wanted)) + count * 2.0**-17
    if abs(kept - count * wanted) > allowed:
        yield f"{kept} of {count} elements are kept; expected are {count * wanted:.0f} within {allowed:.0f}"


def expected_sum(ctx: Context, t: Tensors, x: torch.Tensor, addend: torch.Tensor) -> Iterator[Expected | str]:
    """The outputs mask and y = dropout(x) + addend must be as they should, given x and addend in float32.

    eager rounds the product too, on a CPU also the scale, and a sum can be far smaller than its terms: so the tolerance
    is relative to both terms, and to the first one twice.
    """
    import torch

    dropped = torch.where(t.mask, x * Keep(ctx.s.p, WIDE).scale, 0)
    yield from expected_share(ctx, t.mask)
    yield expected_values(ctx, "y", t.y, dropped + addend, 2 * dropped.abs() + addend.abs())


def expected_values(
    ctx: Context, name: str, got: torch.Tensor, want: torch.Tensor, magnitude: torch.Tensor | None = None
) -> Expected:
    """Values (any precision) must be those that the mask asks for, which `want` has in float32 or wider.

    The scale may be off by the rounding of the probability, 2**-17. So there is a tolerance besides the dtype's own.
    magnitude: what the tolerance is relative to where that isn't `want`: a sum's terms may be far larger than the sum.
    """
    rounding = 2.0**-16 / max(1 - ctx.s.p, 2.0**-16)
    relative = rounding + {"float32": 2.0**-15, "float16": 2.0**-10, "bfloat16": 2.0**-7}[ctx.case.dtype]
    return Expected(name, got, want, relative * (want.abs() if magnitude is None else magnitude) + relative / 16)
