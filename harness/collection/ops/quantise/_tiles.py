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
from harness.collection.ops.row_parts import MOST_ROWS, SHORTEST, RowParts
from harness.model import Case
from harness.ops import Built, Context, Launch, Plan, Tensors, Tuning

if TYPE_CHECKING:
    import torch

_UNITS, _THREADS = 4, BLOCK  # of a thread of `in_tiles`, a period apart, and of a block, where no table says another
_EVERY_UNITS, _EVERY_THREADS = (1, 2, 4), (64, 128, 256)
_PARTS = 1, 2, 4  # of 16 bytes: a unit of a small matrix may be so small
_STRAIGHT_UNITS = 2  # of a thread, up to which the kernel of a matrix without a rest has no jumps
_SMALL = 2**20  # elements of a matrix up to which units are smaller, so that there are more threads
FEW_ELEMENTS = 1024
"""Elements for each multiprocessor, up to which a thread has one unit: its second one would only add to the time."""

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


@dataclass(frozen=True, slots=True)
class TileParameters:
    """The plans of a variant that runs `in_tiles`. size, columns: as there, of a case; columns: C unless told.

    elements: of a unit; fewer than `size` where a matrix is small. units: of a thread. threads: of a block. row_part: 1
    where blocks have a part of one row each, with one unit a thread, and `threads` at most. few(count): elements of a
    unit and threads of a block then, for a matrix of `count` elements; a whole unit and a usual block unless told.
    """

    size: Callable[[Case], int]
    columns: Callable[[Case], int] | None = None
    few: Callable[[int], tuple[int, int]] | None = None

    @property
    def tuning(self) -> Tuning:
        """What the op's variant declares."""
        return Tuning(self.parameters, self.rule, self.refuse, self.kernels)

    def parameters(self, case: Case) -> dict[str, Sequence[int]]:
        """Values of each parameter that a matrix of this size may have."""
        is_small = _count(case) <= _SMALL
        return {
            "elements": tuple(self.size(case) // part for part in (_PARTS if is_small else _PARTS[:1])),
            "units": _EVERY_UNITS,
            "threads": _EVERY_THREADS,
            "row_part": (0, 1) if is_small else (0,),
        }

    def rule(self, case: Case) -> Plan:
        """The plan where no table has one."""
        count = _count(case)
        if count > _SMALL:
            return {"elements": self.size(case), "units": _UNITS, "threads": _THREADS, "row_part": 0}
        elements, threads = self.few(count) if self.few else (self.size(case), _THREADS)
        parts: Plan = {"elements": elements, "units": 1, "threads": threads, "row_part": 1}
        if self._length(case) >= SHORTEST * elements and not self.refuse(case, parts):
            return parts
        units = 2 if count > FEW_ELEMENTS * cuda.multiprocessors() else 1
        return {"elements": 2, "units": units, "threads": _THREADS, "row_part": 0}

    def refuse(self, case: Case, plan: Plan) -> str | None:
        """Why blocks can't have a part of one row each."""
        if not plan["row_part"]:
            return None
        if plan["units"] != 1:
            return "a thread has one unit where blocks have a part of a row"
        count, length = _count(case), self._length(case)
        if not count:
            return "there is nothing to do"
        if length % int(plan["elements"]):
            return "rows aren't whole units"
        return "a grid has no room for so many rows" if count // length > MOST_ROWS else None

    def kernels(self, case: Case, plan: Plan) -> Iterator[Built]:
        """The kernel of a plan."""
        options = _macros(case) | _tile_macros(_count(case), self.size(case), self._row(case), plan)
        threads = int(options.get("ROW_THREADS", plan["threads"]))
        yield Built(f"{case.op}.cu", f"{case.op}_tuned", options, threads)

    def _row(self, case: Case) -> int:
        return self.columns(case) if self.columns else case.symbols["C"]

    def _length(self, case: Case) -> int:
        """Elements of a row; of the matrix where its columns have no numbers of their own."""
        return self._row(case) or _count(case)


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
    if plan["row_part"]:
        return {**macros, "ROW_THREADS": _row_parts(count, columns, plan).threads}
    if units != _UNITS:
        macros["TILE_UNITS"] = units
    if units <= _STRAIGHT_UNITS and count % elements == 0:
        macros["REST"] = 0
    return macros


def _row_parts(count: int, columns: int, plan: Plan) -> RowParts:
    """The parts of a matrix of so many elements. columns: of a row, 0 where the matrix is one row."""
    length = columns or count
    return RowParts.of(count // length, length // int(plan["elements"]), int(plan["threads"]))


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

    columns: after which the numbers of columns repeat: the columns of a row, unless told; 0 where there are no such
    numbers.
    """
    columns, plan = ctx.s.C if columns is None else columns, ctx.plan()
    assert plan
    threads = int(plan["threads"])
    options = macros(ctx) | _tile_macros(elements(ctx), size, columns, plan)
    kernel = ctx.kernel(f"{ctx.case.op}.cu", f"{ctx.case.op}_tuned", options)
    grid: int | tuple[int, int]
    if plan["row_part"]:
        parts = _row_parts(elements(ctx), columns, plan)
        grid, threads, scalars = parts.grid, parts.threads, (ctypes.c_uint32(parts.units),)
    else:
        tiles = RepeatingTiles.of(elements(ctx), columns, int(plan["elements"]))
        grid = blocks(tiles.threads(int(plan["units"])), threads)
        scalars = *numbers(ctx, tiles.elements), *divisor(ctx, tiles.period), *divisor(ctx, columns)

    def launch(t: Tensors) -> None:
        given = tensors(t)
        if aligned(*given):
            kernel(grid, threads, *given, *scalars)
        else:
            fallback(t)

    return launch
