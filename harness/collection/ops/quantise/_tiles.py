"""The launches of the family's element-wise kernels: one element a thread, and tiles. Twin of tiles.cuh."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from harness import cuda
from harness.collection.ops.chip import WARP
from harness.collection.ops.elementwise import BLOCK, CUDA_TYPE, INDEX_TYPE, LIMIT_32, aligned, blocks
from harness.collection.ops.quantise._integers import per_channel
from harness.ops import Context, Launch, Tensors

if TYPE_CHECKING:
    import torch

UNITS = 4
"""Units of a thread of `in_tiles`, a period apart."""

Arguments = Callable[[Tensors], tuple["torch.Tensor", ...]]
"""Gives a kernel's tensors in the order of its parameters."""


@dataclass(frozen=True, slots=True)
class RepeatingTiles:
    """How the units of a matrix are shared out, so that a thread has the same columns in all of its units.

    elements: of the matrix; size: elements of a unit. period: units after which the columns are the same again, a
    multiple of what a warp takes; or all warps, if all of them take less than a period.
    """

    elements: int
    size: int
    period: int

    @classmethod
    def of(cls, elements: int, columns: int, size: int) -> Self:
        """The tiles of a matrix with rows of `columns`."""
        row = math.lcm(max(1, columns), size) // size
        warps = math.lcm(row, WARP)
        period = warps * blocks(BLOCK, warps)
        return cls(elements, size, min(period, max(1, blocks(elements, size))))

    @property
    def threads(self) -> int:
        """Threads that have all units, and the rest of the matrix."""
        return blocks(blocks(self.elements, self.size), UNITS * self.period) * self.period


def macros(ctx: Context) -> dict[str, str | int]:
    """Macros of every element-wise kernel of a case."""
    bits = 32 if elements(ctx) < LIMIT_32 else 64
    return {"SCALAR": CUDA_TYPE[ctx.case.dtype], "INDEX": INDEX_TYPE[bits], "CHANNEL": int(per_channel(ctx))}


def elements(ctx: Context) -> int:
    """Elements of the case's matrix."""
    return int(ctx.s.M * ctx.s.C)


def numbers(ctx: Context, *values: int) -> tuple[Any, ...]:
    """Scalar arguments as wide as the indexes of the case's kernels."""
    word = ctypes.c_uint32 if elements(ctx) < LIMIT_32 else ctypes.c_uint64
    return tuple(map(word, values))


def divisor(ctx: Context, size: int) -> tuple[Any, ...]:
    """A number to divide by, and what stands for the division. Nothing is launched where it is 0."""
    size = max(1, size)
    return *numbers(ctx, size), *cuda.fast_divisor(size, 32 if elements(ctx) < LIMIT_32 else 64)


def one_element(ctx: Context, entry: str, tensors: Arguments) -> Launch:
    """The kernel `entry` of the op's file, one element a thread."""
    kernel = ctx.kernel(f"{ctx.case.op}.cu", entry, macros(ctx))
    grid, scalars = blocks(elements(ctx)), (*numbers(ctx, elements(ctx)), *divisor(ctx, ctx.s.C))
    return lambda t: kernel(grid, BLOCK, *tensors(t), *scalars)


def in_tiles(ctx: Context, size: int, tensors: Arguments, fallback: Launch, columns: int | None = None) -> Launch:
    """The kernel <op>_tuned, with units of `size` elements; `fallback` where a tensor doesn't begin on 16 bytes.

    columns: after which the numbers of columns repeat: the columns of a row, unless told.
    """
    columns = ctx.s.C if columns is None else columns
    tiles = RepeatingTiles.of(elements(ctx), columns, size)
    options: Mapping[str, str | int] = macros(ctx) | {"WHOLE": int(columns % size == 0)}
    kernel = ctx.kernel(f"{ctx.case.op}.cu", f"{ctx.case.op}_tuned", options)
    grid = blocks(tiles.threads)
    scalars = *numbers(ctx, tiles.elements), *divisor(ctx, tiles.period), *divisor(ctx, columns)

    def launch(t: Tensors) -> None:
        given = tensors(t)
        if aligned(*given):
            kernel(grid, BLOCK, *given, *scalars)
        else:
            fallback(t)

    return launch
