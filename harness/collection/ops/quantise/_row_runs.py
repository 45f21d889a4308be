"""Tiles of rows that aren't whole units: each tile is one run of elements, which units cover."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from harness.collection.ops.chip import WARP
from harness.collection.ops.elementwise import blocks, power_of_2_from

SIZE = 4
"""Elements of a unit: 16 bytes of int32."""

_TILE = {2: 2048, 4: 1536}  # elements of a tile of several rows at most, by the bytes of an element of the case's type
_LANE_ELEMENTS = 16  # of a row that a lane of a warp adds up at most
# Units that a thread has at most: their elements and the numbers of their columns stay in registers. Of halves in tiles
# of several rows it has fewer, so that more threads hide the time of the steps between two barriers.
_UNITS, _FEW_UNITS = 3, 2
# Threads that a multiprocessor is to hold at least, by the bytes of an element and whether each column has a scale,
# which is more to keep. With more of them the compiler spills more registers than the threads are worth.
_RESIDENT = {(2, False): 768, (2, True): 672, (4, False): 512, (4, True): 512}
_MORE_RESIDENT = 1024  # where a thread has few units
_WAVES = 1  # blocks of the grid for each block that the GPU can hold, where there are tiles enough


@dataclass(frozen=True, slots=True)
class RowRunPlan:
    """The twin of row_runs.cuh.

    units: units of a tile that a thread has at most. rows: of a tile. lanes: threads of a warp that share the
    statistics of a row; 0 where the block does. parts: elements of a row that such a lane has at most, or 1. resident:
    threads that a multiprocessor holds at least.
    """

    units: int
    threads: int
    rows: int
    lanes: int
    parts: int
    resident: int

    @classmethod
    def of(cls, columns: int, itemsize: int, *, channel: bool) -> Self | None:
        """The plan for rows of so many columns; None if rows are whole units, a single element, or too long.

        itemsize: bytes of an element of the case's type. channel: whether each column has a scale.
        """
        if columns % SIZE == 0 or columns < 2:
            return None
        whole = SIZE // math.gcd(columns, SIZE)  # rows that are whole units together
        rows = _TILE[itemsize] // (columns * whole) * whole
        if rows and columns <= WARP * _LANE_ELEMENTS:
            units = rows * columns // SIZE
            lanes = min(WARP, power_of_2_from(blocks(columns, _LANE_ELEMENTS)))
        else:
            rows, lanes = 1, 0
            units = blocks(columns + SIZE - 1, SIZE)  # if most elements of the first unit are skipped
        few = lanes > 0 and itemsize == 2
        threads = blocks(blocks(units, _FEW_UNITS if few else _UNITS), WARP) * WARP
        resident = _MORE_RESIDENT if few else _RESIDENT[itemsize, channel]
        if threads > resident:
            return None
        parts = blocks(columns, lanes) if lanes else 1
        return cls(blocks(units, threads), threads, rows, lanes, parts, resident)

    @property
    def macros(self) -> dict[str, str | int]:
        """Macros of the kernel."""
        return {
            "UNITS": self.units,
            "THREADS": self.threads,
            "ROWS": self.rows,
            "LANES": self.lanes,
            "PARTS": self.parts,
            "RESIDENT": self.resident,
        }

    def grid(self, rows: int, multiprocessors: int) -> int:
        """Blocks for so many rows.

        It is a multiple of SIZE where blocks take several tiles: so each tile of a block begins at the same place of a
        unit.
        """
        tiles = blocks(rows, self.rows)
        held = multiprocessors * (self.resident // self.threads) * _WAVES
        return min(tiles, max(SIZE, held // SIZE * SIZE))
