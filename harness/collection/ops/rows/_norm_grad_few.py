"""How one cluster of blocks takes the backward of LayerNorm or RMSNorm of few rows. Twin of norm_grad_few.cuh."""

from __future__ import annotations

from dataclasses import dataclass

from harness.collection.ops.chip import MOST_BLOCKS, WARP, Chip
from harness.collection.ops.elementwise import PACK_BYTES, blocks, power_of_2_from

_FLOAT = 4  # bytes
_THREADS = 512  # of a block, unless a row needs more: with so many each may have 128 registers
_MOST_THREADS = 1024
# Rows that a team works on at once at most, by bytes an element: packs of halves become twice as many floats.
_MOST_ROWS = {4: 8, 2: 4}
_MOST_ROWS_OF_1024 = {4: 2, 2: 1}  # the same where a thread may have 64 registers
FEW_ROWS = 256
"""Up to which one team, or the teams of one cluster, may take all rows."""
_FEW_BYTES = 32 * 1024  # of a block's rows of dy: with more, many blocks and a second kernel are faster


@dataclass(frozen=True, slots=True)
class FewPlan:
    """What the kernel is compiled for and launched with.

    team: threads that share a row, whole warps. teams: of a block. rows: that a team works on at once. cluster: blocks.
    shared: dynamic bytes of a block.
    """

    team: int
    teams: int
    rows: int
    cluster: int
    shared: int

    @classmethod
    def of(cls, rows: int, columns: int, itemsize: int, sums: int, chip: Chip) -> FewPlan | None:
        """The plan for a matrix; None where rows aren't whole packs or are too long, or where there are no clusters."""
        packs, rest = divmod(columns * itemsize, PACK_BYTES)
        team = blocks(packs, WARP) * WARP
        if rest or not rows or not packs or team > _MOST_THREADS or not chip.clusters:
            return None
        cluster = min(MOST_BLOCKS, rows)
        own = blocks(rows, cluster)
        teams = max(1, min(_THREADS // team, own))
        most = (_MOST_ROWS if team <= _THREADS else _MOST_ROWS_OF_1024)[itemsize]
        at_once = min(most, power_of_2_from(blocks(own, teams)))
        shared = teams * sums * columns * _FLOAT
        return cls(team, teams, at_once, cluster, shared) if shared <= chip.shared // 2 else None

    @classmethod
    def by_rule(cls, rows: int, columns: int, itemsize: int, sums: int, chip: Chip) -> FewPlan | None:
        """The same where it is thought to be the fastest."""
        plan = cls.of(rows, columns, itemsize, sums, chip) if rows <= FEW_ROWS else None
        return plan if plan and blocks(rows, plan.cluster) * columns * itemsize <= _FEW_BYTES else None

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.team * self.teams

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {"TEAM": self.team, "TEAMS": self.teams, "ROWS": self.rows}
