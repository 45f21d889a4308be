"""The plans of row kernels as parameters that a search may vary. Twin of RowPlan in _rows.py, whose rules stay.

lanes: threads of a warp that share a row; 0 where blocks share it. count: packs a thread. cluster: blocks of a row.
together: rows that a team works on at once. block: threads of a block, where lanes share a row; elsewhere they follow
from count and cluster. tile: elements a thread, where rows come through shared memory; 0 elsewhere. in_turn: 1 where
teams take long rows in turn, which has a plan of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.collection.ops.chip import MOST_BLOCKS, WARP, Chip
from harness.collection.ops.elementwise import CUDA_TYPE, PACK_BYTES, blocks
from harness.collection.ops.rows._norm_plan import InTurn
from harness.collection.ops.rows._rows import RowPlan
from harness.model import Case, Value
from harness.ops import ITEMSIZE, Built, Context, Plan, Tuning

_NEUTRAL = {"lanes": 0, "count": 1, "cluster": 1, "together": 1, "block": 0, "tile": 0}
"""What parameters are where others decide alone."""
_LANES = (0, 1, 2, 4, 8, 16, 32)
_FEWEST_LANES = 16  # of a row that begins inside of packs: each of its single elements has a lane
_TILES = (8, 16)
_MOST_TILE = 512  # elements of a row that comes through a tile
_MOST_COUNT = 8  # packs that a thread keeps, of all matrices and of all rows that it works on
_MOST_OF_LANES = 4  # the same where lanes of a warp have several rows of whole packs at once
_MOST_OF_BLOCKS = 2  # rows that a block, or a cluster, works on at once
_TOGETHER = (1, 2, 4)
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class RowParameters:
    """The plans of an op. matrices: as in RowPlan.of. vectors: how many (N) rows share. turns: InTurn is one, too.

    columns: the symbol of a row's length. ruled: (rows, columns, itemsize, chip) gives the plan by rule, where the op
    has a rule and a kernel of its own. limit: why the op's kernel can't have a plan. macros: of the kernel, besides the
    plan's.
    """

    matrices: int = 1
    vectors: int = 0
    turns: bool = False
    columns: str = "N"
    ruled: Callable[[int, int, int, Chip], RowPlan | None] | None = None
    limit: Callable[[RowPlan], str | None] | None = None
    macros: Callable[[Case], Mapping[str, int]] | None = None

    @property
    def tuning(self) -> Tuning:
        """What the op's variant declares."""
        return Tuning(self.parameters, self.rule, self.refuse, self.kernels, alike=lambda case: self._row(case)[3])

    def parameters(self, case: Case) -> dict[str, Sequence[Value]]:
        """Values of each parameter that rows of this length may have."""
        _, columns, itemsize, ragged = self._row(case)
        packs = columns * itemsize // PACK_BYTES
        short = packs <= WARP * _MOST_COUNT // self.matrices
        # Blocks of a cluster have a warp's packs of a row each.
        most_blocks = max(1, min(MOST_BLOCKS, packs // WARP)) if Chip.current().clusters else 1
        found: dict[str, Sequence[Value]] = {
            "lanes": _LANES if short else (0,),
            "count": range(1, _MOST_COUNT // self.matrices + 1),
            "cluster": range(1, most_blocks + 1),
            "together": tuple(some for some in _TOGETHER if some <= self._most_together(ragged)),
            "block": (0, 2 * WARP, 4 * WARP, 8 * WARP) if short else (0,),
            "tile": (0, *_TILES) if ragged and columns <= _MOST_TILE else (0,),
        }
        early = {"early": (0,) if ragged else (0, 1)} if self.vectors else {}
        return {**found, **early, "in_turn": (0, 1)} if self.turns else {**found, **early}

    def rule(self, case: Case) -> Plan | None:
        """The plan where no table has one."""
        return _ruled(self, case, Chip.current())

    def refuse(self, case: Case, plan: Plan) -> str | None:
        """Why a plan can't cover the rows, or can't be launched on this device."""
        return None if plan == self.rule(case) else self._problem(case, plan)

    def _problem(self, case: Case, plan: Plan) -> str | None:
        rows, columns, itemsize, ragged = self._row(case)
        if plan.get("in_turn"):
            turn = dict(plan) == {**self.neutral, "in_turn": 1} and InTurn.of(rows, columns, itemsize, Chip.current())
            return None if turn else "rows can't be taken in turn so"
        number = {name: int(value) for name, value in plan.items()}
        if number["tile"]:
            problem = self._refuse_tile(number, columns, itemsize)
            return problem or (self.limit(row_plan(plan, columns, itemsize)) if self.limit else None)
        packs = columns * itemsize // PACK_BYTES
        if not packs:
            return "a row is less than a pack"
        if number["together"] > (most := self._most_together(ragged)):
            return f"a team has at most {most} of such rows"
        kept = self.matrices * number["count"] * number["together"]
        lanes = bool(number["lanes"])
        problem = _refuse_lanes(number, packs, ragged, kept) if lanes else _refuse_blocks(number, packs, kept)
        if not problem and number.get("early") and not row_plan(plan, columns, itemsize).may_be_early:
            problem = "vectors are loaded early by blocks that have registers for them, for rows of whole packs"
        return problem or (self.limit(row_plan(plan, columns, itemsize)) if self.limit else None)

    @property
    def neutral(self) -> dict[str, Value]:
        """What parameters are where the rows are taken in turn, or come through a tile."""
        return {**_NEUTRAL, **({"early": 0} if self.vectors else {}), **({"in_turn": 0} if self.turns else {})}

    def _most_together(self, ragged: bool) -> int:
        """Rows of a team at most. Of rows that begin inside of packs, norm_planned.cuh has two, and no other kernel."""
        if not self.vectors or (ragged and self.ruled):
            return 1
        return 2 if ragged else _TOGETHER[-1]

    def _refuse_tile(self, number: dict[str, int], columns: int, itemsize: int) -> str | None:
        if number != {**self.neutral, "tile": number["tile"]}:
            return "a tile has no other parameter"
        plan = RowPlan._tile(columns, itemsize, number["tile"])
        if plan.lanes > WARP:
            return "a warp has fewer lanes"
        room, needed = Chip.current().shared, self.matrices * plan.tile_rows * columns * itemsize
        return f"a tile takes {needed} bytes, a block has {room}" if needed > room else None

    def kernels(self, case: Case, plan: Plan) -> Iterator[Built]:
        """The kernel of a plan."""
        rows, columns, itemsize, _ = self._row(case)
        scalar = {"SCALAR": CUDA_TYPE[case.dtype]}
        if plan.get("in_turn"):
            turn = InTurn.of(rows, columns, itemsize, Chip.current())
            assert turn is not None
            entry = f"{case.op}_in_turn"
            yield Built(f"{case.op}.cu", entry, {**scalar, **turn.macros}, turn.threads, turn.shared, turn.blocks)
            return
        made = row_plan(plan, columns, itemsize)
        whole = {"WHOLE": int(made.holds(columns, itemsize))} if self.vectors else {}
        stream = {} if self.ruled else {"STREAM": int(made.streams(rows, columns, itemsize))}
        shared = self.matrices * made.tile_rows * columns * itemsize
        macros = {**scalar, **made.macros, **whole, **stream, **(self.macros(case) if self.macros else {})}
        yield Built(f"{case.op}.cu", f"{case.op}_tuned", macros, made.threads, shared, made.cluster)

    def _row(self, case: Case) -> tuple[int, int, int, bool]:
        """Rows, columns, bytes of an element, and whether rows begin inside of packs."""
        columns, itemsize = case.symbols[self.columns], ITEMSIZE[case.dtype]
        return case.symbols["M"], columns, itemsize, columns * itemsize % PACK_BYTES != 0


@lru_cache(maxsize=1024)
def _ruled(of: RowParameters, case: Case, chip: Chip) -> Plan | None:
    rows, columns, itemsize, _ = of._row(case)
    if columns == 1 and not of.ruled:
        return None
    if of.turns and InTurn.of(rows, columns, itemsize, chip):
        return {**of.neutral, "in_turn": 1}
    if of.ruled:
        plan = of.ruled(rows, columns, itemsize, chip)
    elif of.vectors:
        plan = RowPlan.with_vectors(rows, columns, itemsize, chip, of.vectors, norm=True)
    else:
        plan = RowPlan.of(rows, columns, itemsize, chip, of.matrices)
    if plan is None:
        return None
    early = {"early": int(plan.with_few_early(rows, chip).early)} if of.vectors else {}
    return {**of.neutral, **as_parameters(plan, columns, itemsize), **early}


def row_plan(plan: Plan, columns: int, itemsize: int) -> RowPlan:
    """The plan that parameters stand for, at rows of `columns` elements of `itemsize` bytes."""
    lanes, count, cluster, together, block, tile = (int(plan[name]) for name in _NEUTRAL)
    if tile:
        return RowPlan._tile(columns, itemsize, tile)
    packs, ragged = columns * itemsize // PACK_BYTES, columns * itemsize % PACK_BYTES != 0
    threads = block if lanes else blocks(blocks(packs, cluster * count), WARP) * WARP
    return RowPlan(count, lanes, threads, cluster, ragged, together=together, early=bool(plan.get("early")))


def plan_of(ctx: Context, columns: str = "N") -> RowPlan | None:
    """The plan of a case whose rows aren't taken in turn, from a table or by the rule. columns: as in RowParameters."""
    plan = ctx.plan()
    return row_plan(plan, ctx.case.symbols[columns], ITEMSIZE[ctx.case.dtype]) if plan else None


def as_parameters(plan: RowPlan, columns: int, itemsize: int) -> dict[str, Value]:
    """The parameters of a plan that a rule has made."""
    if plan.tile_rows:
        tile = next(elements for elements in _TILES if RowPlan._tile(columns, itemsize, elements) == plan)
        return {**_NEUTRAL, "tile": tile}
    found = {"lanes": plan.lanes, "count": plan.count, "cluster": plan.cluster, "together": plan.together}
    return {**_NEUTRAL, **found, "block": plan.threads if plan.lanes else 0}


def _refuse_lanes(number: dict[str, int], packs: int, ragged: bool, kept: int) -> str | None:
    lanes = number["lanes"]
    if number["cluster"] > 1 or not number["block"]:
        return "lanes of a warp are in one block"
    if ragged and lanes < _FEWEST_LANES:
        return f"rows that begin inside of packs need {_FEWEST_LANES} lanes"
    if number["count"] != blocks(packs, lanes):
        return f"{lanes} lanes have {blocks(packs, lanes)} packs each"
    most = _MOST_OF_LANES if number["together"] > 1 and not ragged else _MOST_COUNT
    return f"a thread has more than {most} packs" if kept > most else None


def _refuse_blocks(number: dict[str, int], packs: int, kept: int) -> str | None:
    count, cluster = number["count"], number["cluster"]
    share = blocks(packs, cluster)
    threads, last = blocks(blocks(share, count), WARP) * WARP, packs - (cluster - 1) * share
    if number["block"]:
        return "the threads of a block follow from the packs"
    if number["together"] > _MOST_OF_BLOCKS:
        return "a block does two rows at once at most"
    if kept > _MOST_COUNT:
        return f"a thread has more than {_MOST_COUNT} packs"
    if threads > _MOST_THREADS:
        return f"a block has {_MOST_THREADS} threads at most"
    # A thread may lack only its last pack, in the cluster's last block, too.
    return "some threads would have nothing to do" if (count - 1) * threads >= last else None
