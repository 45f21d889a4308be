"""How one kernel makes dx of few rows, and the sums of columns beside them. Twin of norm_grad_beside.cuh."""

from __future__ import annotations

from dataclasses import dataclass

from harness.collection.ops.chip import MOST_BLOCKS, WARP, Chip
from harness.collection.ops.elementwise import PACK_BYTES, blocks, power_of_2_from

BESIDE_ROWS = 256
"""Rows, up to which blocks beside each other may take rows and columns, or one team all rows."""
# Bytes of dy up to which the rule has them beside each other. In trials on an H200, which no committed run has, all
# sizes up to here gained; their times rose so fast that larger ones are thought to lose. None was tried.
_FEW_BYTES = 2**22
_FEWEST_THREADS, _MOST_THREADS = 4 * WARP, 16 * WARP  # of a block
_AT_ONCE = 2  # rows of a thread that sums columns, whose loads are under way together
_MOST_COUNT = 4  # packs of a row that a thread has
_WIDE = (4, WARP)  # packs of columns of a block, at least and at most: with four, lanes read two sectors of a row


@dataclass(frozen=True, slots=True)
class BesidePlan:
    """What the kernel is compiled for and launched with.

    count: packs of a row that a thread has. threads: of a block. cluster: blocks of a row. wide: packs of columns of a
    block that sums columns; 0 where there is no such block, since a single row has the sums. grid: blocks, which are
    whole clusters.
    """

    count: int
    threads: int
    cluster: int
    wide: int
    grid: int

    @classmethod
    def of(cls, rows: int, columns: int, itemsize: int, chip: Chip, cluster: int) -> BesidePlan | None:
        """The plan for a matrix; None where rows aren't whole packs or are too long, or where there are no clusters."""
        packs, rest = divmod(columns * itemsize, PACK_BYTES)
        share = blocks(packs, cluster)
        count = blocks(share, _MOST_THREADS)
        if rest or not rows or not packs or count > _MOST_COUNT:
            return None
        if cluster > (MOST_BLOCKS if chip.clusters else 1):
            return None
        fewest, most = _WIDE
        # So many that a block sums its columns in one turn, if so many threads can; at least, as a row needs.
        turn = min(_MOST_THREADS, power_of_2_from(rows) * fewest // _AT_ONCE)
        threads = max(_FEWEST_THREADS, turn, blocks(blocks(share, count), WARP) * WARP)
        if rows == 1:
            return cls(count, threads, cluster, 0, cluster)
        wide = max(fewest, min(most, power_of_2_from(threads // power_of_2_from(rows))))
        grid = rows * cluster + blocks(blocks(packs, wide), cluster) * cluster
        return cls(count, threads, cluster, wide, grid)

    @classmethod
    def by_rule(cls, rows: int, columns: int, itemsize: int, chip: Chip) -> BesidePlan | None:
        """The same where it is thought to be the fastest: with as few blocks a row as have one pack a thread."""
        if rows > BESIDE_ROWS or rows * columns * itemsize > _FEW_BYTES:
            return None
        plans = [cls.of(rows, columns, itemsize, chip, 1 << power) for power in range(MOST_BLOCKS.bit_length())]
        found = [plan for plan in plans if plan]
        return next((plan for plan in found if plan.count == 1), found[-1] if found else None)

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {"PACKS": self.count, "THREADS": self.threads, "CLUSTER": self.cluster, "WIDE": self.wide}
