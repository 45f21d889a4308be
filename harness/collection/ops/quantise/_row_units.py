"""Which threads share a row where rows stay in registers, and how much of it each has.

Rows that aren't whole units of four elements have a better plan, if they aren't too long for it: _row_runs.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from harness.collection.ops.chip import WARP
from harness.collection.ops.elementwise import blocks, power_of_2_from

UNIT_SIZES = (4, 2, 1)
"""Elements of a unit: up to 16 bytes of int32."""

_LANE_BLOCK = 128  # threads, where a row has lanes of a warp
_FEW, _MOST = 3, 6  # units of a row that a lane has at best, and at most
_BLOCK_COUNTS = 4, 8  # units of a row that a thread of a block has: if the row isn't too long, and if it is
_BLOCK_KEPT = 16  # elements of a row that a thread of a block has at most: with 1024 threads there are 64 registers
_KEPT = 24  # elements of all rows that a thread works on at once
# (threads that a multiprocessor is to hold at least, up to so many registers for units and their addresses). The more
# it holds, the fewer registers a thread has; with too few, the compiler puts loads one behind the other, or spills.
_RESIDENT = ((1024, 24), (768, 32), (640, 40), (512, math.inf))
_TOGETHER = 4  # rows that a team works on at once at most
_MOST_THREADS = 1024  # of a block
_EARLY = 512  # threads of a multiprocessor, and of a block, that have registers for numbers that they need last
_SHORT = 3  # units of a row for each lane of a warp, up to which a warp takes one of few rows: without a barrier
_LINE = 8  # lanes, at least, where rows are as long: narrower teams would move parts of sectors of y


@dataclass(frozen=True, slots=True)
class UnitRowPlan:
    """The twin of step 3 of dequantize_bias_residual_layer_norm_quantize.cu.

    size: elements of a unit. count: units of a row that a thread has. lanes: threads of a warp that share a row; 0
    where the block does. together: rows that a team works on at once. full: whether no thread lacks a unit. early:
    whether what a row needs last is loaded first.
    """

    size: int
    count: int
    lanes: int
    threads: int
    together: int
    full: bool
    early: bool = False

    @classmethod
    def of_few(cls, columns: int) -> Self | None:
        """The plan for rows that have a multiprocessor each: a warp or a block a row, with few units a thread.

        None for rows so long that threads lack registers for it.
        """
        size = next(size for size in UNIT_SIZES if columns % size == 0)
        units = columns // size
        if units <= _SHORT * WARP:
            lanes = min(WARP, power_of_2_from(units))
            return cls.made(columns, lanes, blocks(units, lanes), 1, early=True)
        count = min(blocks(units, _EARLY), _BLOCK_KEPT // size, _BLOCK_COUNTS[-1])
        return cls.made(columns, 0, count, 1, early=True)

    @classmethod
    def of(cls, columns: int) -> Self | None:
        """The plan for rows of so many columns; None where a block can't keep one."""
        size = next(size for size in UNIT_SIZES if columns % size == 0)
        units = columns // size
        lanes = min(WARP, max(min(_LINE, power_of_2_from(units)), power_of_2_from(blocks(units, _FEW))))
        count = blocks(units, lanes)
        if count <= _MOST:
            together = max(1, min(_TOGETHER, _KEPT // (count * size)))
            return cls(size, count, lanes, _LANE_BLOCK, together, full=units == count * lanes)
        for kept in _BLOCK_COUNTS:
            if kept * size > _BLOCK_KEPT:
                break
            threads = blocks(blocks(units, kept), WARP) * WARP
            if threads <= _MOST_THREADS:
                count = blocks(units, threads)
                return cls(size, count, 0, threads, 1, full=units == count * threads)
        return None

    @classmethod
    def made(cls, columns: int, lanes: int, count: int, together: int, *, early: bool) -> Self | None:
        """The plan with so many lanes, units of a thread and rows at once; None where it can't be.

        early: whether what a row needs last is loaded first, for which threads that keep much lack registers.
        """
        size = next(size for size in UNIT_SIZES if columns % size == 0)
        units = columns // size
        threads = _LANE_BLOCK if lanes else blocks(blocks(units, count), WARP) * WARP
        team = lanes or threads
        # A thread may lack only its last unit.
        if threads > (_EARLY if early else _MOST_THREADS) or not (count - 1) * team < units <= count * team:
            return None
        kept, most = count * size * together, _KEPT if lanes and not early else _BLOCK_KEPT
        if kept > most or together > (_TOGETHER if lanes else 1):
            return None
        return cls(size, count, lanes, threads, together, full=units == count * team, early=early)

    @property
    def macros(self) -> dict[str, str | int]:
        """Macros of the kernel."""
        needed = (self.size + 2) * self.count * self.together
        resident = _EARLY if self.early else next(threads for threads, up_to in _RESIDENT if needed <= up_to)
        return {
            "WIDTH": self.size,
            "COUNT": self.count,
            "LANES": self.lanes,
            "THREADS": self.threads,
            "TOGETHER": self.together,
            "FULL": int(self.full),
            "RESIDENT": max(self.threads, resident),
            **({"EARLY": 1} if self.early else {}),
        }

    def grid(self, rows: int) -> int:
        """Blocks for so many rows."""
        return blocks(rows, self.threads // self.lanes * self.together) if self.lanes else rows
