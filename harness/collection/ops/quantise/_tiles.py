"""The launches of the family's element-wise kernels: one element a thread, and tiles. Twin of tiles.cuh."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from harness import cuda
from harness.collection.ops.chip import WARP
from harness.collection.ops.elementwise import BLOCK, CUDA_TYPE, INDEX_TYPE, LIMIT_32, aligned, blocks
from harness.model import Case
from harness.ops import Built, Context, Launch, Plan, Tensors, Tuning

if TYPE_CHECKING:
    import torch

_UNITS, _THREADS = 4, BLOCK  # of a thread of `in_tiles`, a period apart, and of a block, where no table says another
_EVERY_UNITS, _EVERY_THREADS = (1, 2, 4), (64, 128, 256)
_PARTS = 1, 2, 4  # of 16 bytes: a unit of a small matrix may be so small
_STRAIGHT_UNITS = 2  # of a thread, up to which the kernel of a matrix without a rest has no jumps
_SMALL = 2**20  # elements of a matrix up to which units are smaller, so that there are more threads
_FEW_ELEMENTS = 1024  # a multiprocessor, up to which a thread has one unit: its second one would only add to the time

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

    def threads(self, units: int) -> int:
        """Threads that have all units, so many each, and the rest of the matrix."""
        return blocks(blocks(self.elements, self.size), units * self.period) * self.period


def tuning(size: Callable[[Case], int], columns: Callable[[Case], int] | None = None, *, few: int = _THREADS) -> Tuning:
    """What `tuned` of an op declares that runs `in_tiles`: elements of a unit, units of a thread, threads of a block.

    size, columns: as there, of a case. few: threads of a block where a thread has one unit. A small matrix has units of
    fewer elements than `size`, and fewer of them a thread.
    """

    def parameters(case: Case) -> dict[str, Sequence[int]]:
        parts = _PARTS if _count(case) <= _SMALL else _PARTS[:1]
        return {
            "elements": tuple(size(case) // part for part in parts),
            "units": _EVERY_UNITS,
            "threads": _EVERY_THREADS,
        }

    def rule(case: Case) -> Plan:
        count = _count(case)
        if count > _SMALL:
            return {"elements": size(case), "units": _UNITS, "threads": _THREADS}
        if count > _FEW_ELEMENTS * cuda.multiprocessors():
            return {"elements": 2, "units": 2, "threads": _THREADS}
        return {"elements": 2, "units": 1, "threads": few}

    def kernels(case: Case, plan: Plan) -> Iterator[Built]:
        of_row = columns(case) if columns else case.symbols["C"]
        options = _macros(case) | _tile_macros(_count(case), size(case), of_row, plan)
        yield Built(f"{case.op}.cu", f"{case.op}_tuned", options, int(plan["threads"]))

    return Tuning(parameters, rule, kernels=kernels)


def macros(ctx: Context) -> dict[str, str | int]:
    """Macros of every element-wise kernel of a case."""
    return _macros(ctx.case)


def _macros(case: Case) -> dict[str, str | int]:
    values = case.values
    bits = 32 if _count(case) < LIMIT_32 else 64
    return {"SCALAR": CUDA_TYPE[case.dtype], "INDEX": INDEX_TYPE[bits], "CHANNEL": int(values["scales"] == "channel")}


def _count(case: Case) -> int:
    """Elements of a case's matrix."""
    return case.symbols["M"] * case.symbols["C"]


def _tile_macros(count: int, size: int, columns: int, plan: Plan) -> dict[str, str | int]:
    """Macros of `in_tiles` for a matrix of so many elements, size elements of a whole unit."""
    elements, units = int(plan["elements"]), int(plan["units"])
    macros: dict[str, str | int] = {"WHOLE": int(columns % elements == 0)}
    if elements != size:
        macros["UNIT_ELEMENTS"] = elements
    if units != _UNITS:
        macros["TILE_UNITS"] = units
    if units <= _STRAIGHT_UNITS and count % elements == 0:
        macros["REST"] = 0
    return macros


def elements(ctx: Context) -> int:
    """Elements of the case's matrix."""
    return _count(ctx.case)


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
    """The kernel <op>_tuned, with units of `size` elements or less; `fallback` where tensors don't begin on 16 bytes.

    columns: after which the numbers of columns repeat: the columns of a row, unless told.
    """
    columns, plan = ctx.s.C if columns is None else columns, ctx.plan()
    assert plan
    units, threads = int(plan["units"]), int(plan["threads"])
    tiles = RepeatingTiles.of(elements(ctx), columns, int(plan["elements"]))
    options = macros(ctx) | _tile_macros(elements(ctx), size, columns, plan)
    kernel = ctx.kernel(f"{ctx.case.op}.cu", f"{ctx.case.op}_tuned", options)
    grid = blocks(tiles.threads(units), threads)
    scalars = *numbers(ctx, tiles.elements), *divisor(ctx, tiles.period), *divisor(ctx, columns)

    def launch(t: Tensors) -> None:
        given = tensors(t)
        if aligned(*given):
            kernel(grid, threads, *given, *scalars)
        else:
            fallback(t)

    return launch
