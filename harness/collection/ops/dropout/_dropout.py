"""What the ops that drop elements at random share: the probability, the kernels' arguments, and the check."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.model import Case
from harness.ops import Choice, Context, Expected, Tensor, Tensors

if TYPE_CHECKING:
    import torch

NARROW, WIDE = 16, 24
"""The bits of an element's random number: eight elements share a Philox call, or four (philox.cuh)."""
_NARROW_VARIANTS = ("tuned", "replay")
"""Variants whose numbers are narrow, in the forward and in the backward; the numbers of our other kernels are wide."""
DROPPED = {"p": Choice("share of the elements that are dropped", low=0.0, high=1.0, default=0.1)}
CALL = Tensor("call", ("1",), "int64")
"""The number of a call, which tells its random numbers from the next one's.

It lies in the memory of the device, so that a captured graph can advance it. Two layers with the same seed and the
same number of the call draw the same mask.
"""
_UNLIKELY = math.log(1e9)
"""A mask so unlikely that fewer than one in 1e9 is as far off is wrong: a suite of tests draws thousands."""
_ROUNDED = 2.0**-17  # what the probability of a library may be off, whose numbers have some number of bits, too
_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The most that a rounding changes a number, relative to it."""
_LEAST = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
"""The smallest numbers: below the normal numbers a rounding changes a number by up to half of this."""
_FLOAT = 2.0**-22
"""Error allowed of a float, relative to the terms that it is made of: four roundings."""
_LIBRARY_ROUNDINGS = 3
"""How often a library may round to the dtype before the result: x + bias, the scale (on a CPU), and the product."""


@dataclass(frozen=True, slots=True)
class Keep:
    """The probability of keeping an element as the kernels have it: threshold / 2**bits, the nearest one to 1 - p.

    p: the share that is dropped. scale: what kept elements are multiplied by, the inverse of the rounded probability,
    so that the mean stays. The gradient is multiplied by the same number.
    """

    p: float
    bits: int

    @property
    def threshold(self) -> int:
        return round((1 - self.p) * (1 << self.bits))

    @property
    def probability(self) -> float:
        return self.threshold / (1 << self.bits)

    @property
    def scale(self) -> float:
        return (1 << self.bits) / self.threshold if self.threshold else 0.0


def _of_library(ctx: Context) -> bool:
    return ctx.op.variants[ctx.case.variant].is_library


def _keep(ctx: Context) -> Keep:
    """The probability that the case's variant, one of ours, keeps elements with."""
    return Keep(ctx.s.p, NARROW if ctx.case.variant in _NARROW_VARIANTS else WIDE)


def scale(ctx: Context) -> float:
    """The number that the case's variant multiplies kept elements by: torch by 1 / (1 - p), ours by `Keep`'s scale."""
    if not _of_library(ctx):
        return _keep(ctx).scale
    return 1 / (1 - ctx.s.p) if ctx.s.p < 1 else 0.0


def seed(ctx: Context) -> int:
    """The key of the case's random numbers, the same for all sets of inputs."""
    return ctx.seed


def arguments(ctx: Context, bits: int) -> tuple[Any, ...]:
    """(seed, threshold, scale) as the kernels take them: unsigned 64 bits, unsigned 32 bits, float."""
    keep = Keep(ctx.s.p, bits)
    return ctypes.c_uint64(seed(ctx)), ctypes.c_uint32(keep.threshold), ctypes.c_float(keep.scale)


def input_itself(p: float, name: str) -> Callable[[Case], str | None]:
    """Why torch.compile's code can't run cases that drop the share `p`: there it returns the input `name` as y.

    The compiler sees that y has the same values. The check refuses an output in the memory of an input.
    """
    reason = f"for p other than {p:g}: there the compiled code computes no y, and returns {name} itself"
    return lambda case: reason if case.values["p"] == p else None


def split(count: int, bits: int) -> tuple[int, int]:
    """(threads, whole) of a kernel whose threads each take the elements of one draw, four or eight.

    threads: so many that every word of a bit mask is written. whole: the first threads, whose elements all exist; in
    the narrow stream all elements of their warp exist, since a warp moves a tile (kernels/include/bitmask.cuh).
    """
    per_thread, together = {WIDE: (4, 4), NARROW: (8, 256)}[bits]
    return -(-count // 32) * 32 // per_thread, count // together * together // per_thread


def expected_share(ctx: Context, mask: torch.Tensor) -> Iterator[str]:
    """A complaint if so few or so many of the elements of `mask` (bool) are kept that chance hardly explains it."""
    count, kept = mask.numel(), int(mask.sum())
    wanted = 1 - ctx.s.p if _of_library(ctx) else _keep(ctx).probability
    nearest = min(max(kept / max(count, 1), wanted - _ROUNDED), wanted + _ROUNDED) if _of_library(ctx) else wanted
    if unlikely(count, kept, min(1.0, max(0.0, nearest))) > _UNLIKELY:
        yield f"{kept} of {count} elements are kept; expected are {count * wanted:.0f}"


def unlikely(count: int, kept: int, share: float) -> float:
    """How unlikely it is that chance keeps so few of `count` elements, or so many: -log(p), or less than that.

    share: of the elements that it keeps on average. Source: Chernoff's bound, which holds for few elements, too, where
    a binomial distribution isn't normal.
    """
    pairs = ((kept / max(count, 1), share), (1 - kept / max(count, 1), 1 - share))
    return count * sum(found * (math.log(found / wanted) if wanted else math.inf) for found, wanted in pairs if found)


def expected_y(ctx: Context, t: Tensors, x: torch.Tensor, addend: torch.Tensor | None = None) -> Iterator[Expected]:
    """The output y must be dropout(x) + addend for the mask that was drawn, given x and addend in float32.

    Kept elements are multiplied by the variant's own scale. A sum can be far smaller than its terms, so errors are
    relative to the terms. Ours round to the dtype once.
    """
    import torch

    dropped = torch.where(t.mask, x * scale(ctx), 0)
    want = dropped if addend is None else dropped + addend
    terms = dropped.abs() if addend is None else dropped.abs() + addend.abs()
    steps = _LIBRARY_ROUNDINGS if _of_library(ctx) else 0
    rounding = _UNIT[ctx.case.dtype] * (want.abs() + steps * dropped.abs())
    yield Expected("y", t.y, want, _FLOAT * terms + rounding + (1 + steps) * _LEAST[ctx.case.dtype])
