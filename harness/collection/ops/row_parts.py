"""Few rows of whole units, cut into parts of which a block has one each. Twin of row_part.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from harness.collection.ops.chip import WARP
from harness.collection.ops.elementwise import blocks

MOST_ROWS = 2**16 - 1
"""Blocks in the second direction of a grid, and in the third one, on every GPU."""
SHORTEST = 64
"""Units of a row from which on this is fast: for a shorter row, a block would have too few threads with work."""


@dataclass(frozen=True, slots=True)
class RowParts:
    """How rows are cut. rows: of the matrix. units, blocks: of a row. threads: of a block."""

    rows: int
    units: int
    blocks: int
    threads: int

    @classmethod
    def of(cls, rows: int, units: int, most: int) -> Self:
        """The parts of rows that have so many units each, in blocks of `most` threads at most."""
        parts = blocks(units, most)
        return cls(rows, units, parts, blocks(blocks(units, max(1, parts)), WARP) * WARP)

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks of a launch."""
        return self.blocks, self.rows
