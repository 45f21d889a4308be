"""The plans of layer_norm_grad and rms_norm_grad as parameters that a search may vary. Twin of _norm_grad_plan.py.

way: tiles, spread, beside (few rows, and beside them the sums of columns), or auto: tiles where they pay by the rule.
cluster: blocks that share a row. at_once: rows that are reduced together. stages: tiles that a block has room for.
alone: 1 if a single team takes all rows, which needs no second kernel that adds the sums of columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.collection.ops.chip import MOST_BLOCKS, WARP, Chip
from harness.collection.ops.elementwise import CUDA_TYPE
from harness.collection.ops.rows._norm_grad_beside import BESIDE_ROWS, BesidePlan
from harness.collection.ops.rows._norm_grad_plan import FLOAT, NormGradPlan, Row
from harness.collection.ops.rows._wide_clusters import WIDE_BLOCKS, most_blocks
from harness.model import Case, Value
from harness.ops import ITEMSIZE, Built, Plan, Tuning

_NEUTRAL: dict[str, Value] = {"cluster": 1, "at_once": 1, "stages": 1, "alone": 0}
_SPREAD: dict[str, Value] = {"way": "spread", **_NEUTRAL}
_BESIDE: dict[str, Value] = {"way": "beside", **_NEUTRAL}
_MOST_STAGES = 3


@dataclass(frozen=True, slots=True)
class NormGradParameters:
    """The plans of an op whose rows and columns have so many sums."""

    sums: int

    @property
    def tuning(self) -> Tuning:
        """What the op's variant declares."""
        return Tuning(self.parameters, self.rule, self.refuse, self.kernels, alike=lambda case: _row(case, 1).singles)

    def parameters(self, case: Case) -> dict[str, Sequence[Value]]:
        """Values of each parameter that rows of this length may have."""
        row = _row(case, self.sums)
        most = most_blocks(Chip.current())
        clusters = [size for size in (1, 2, 4, MOST_BLOCKS, WIDE_BLOCKS) if size <= most and row.chunks >= size * WARP]
        return {
            "way": ("auto", "tiles", "spread", *(("beside",) if case.symbols["M"] <= BESIDE_ROWS else ())),
            "cluster": clusters or (1,),
            "at_once": (1, 2),
            "stages": range(1, _MOST_STAGES + 1),
            "alone": (0, 1) if case.symbols["M"] <= BESIDE_ROWS else (0,),
        }

    def rule(self, case: Case) -> Plan:
        """The plan where no table has one."""
        beside = BesidePlan.by_rule(case.symbols["M"], case.symbols["N"], ITEMSIZE[case.dtype], Chip.current())
        if beside:
            return {**_BESIDE, "cluster": beside.cluster}
        plan = _ruled(case, self.sums)
        if plan is None or not plan.worth(plan.teams):
            return _SPREAD
        cluster, at_once = plan.team.cluster, plan.team.at_once
        found: dict[str, Value] = {"cluster": cluster, "at_once": at_once, "stages": plan.stages, "alone": 0}
        if plan != tiles_plan(case, self.sums, {"way": "auto", **found}):
            found["alone"] = 1  # the only other way to differ from all teams
        return {"way": "auto", **found}

    def refuse(self, case: Case, plan: Plan) -> str | None:
        """Why a plan can't be taken."""
        if plan["way"] == "spread":
            return None if plan == _SPREAD else "spread rows have no other parameter"
        if plan["way"] == "beside":
            if plan != {**_BESIDE, "cluster": plan["cluster"]}:
                return "rows beside columns have no other parameter"
            return None if beside_plan(case, int(plan["cluster"])) else "these blocks can't share a row"
        if plan["way"] == "auto":
            return None if plan == self.rule(case) else "auto has the rule's parameters"
        return None if tiles_plan(case, self.sums, plan) else "there is no room for these tiles"

    def kernels(self, case: Case, plan: Plan) -> Iterator[Built]:
        """The kernels of a plan."""
        file, scalar = f"{case.op}.cu", {"SCALAR": CUDA_TYPE[case.dtype]}
        if plan["way"] == "beside":
            beside = beside_plan(case, int(plan["cluster"]))
            assert beside is not None
            yield Built(file, f"{case.op}_beside", {**scalar, **beside.macros}, beside.threads, 0, beside.cluster)
            return
        made = None if plan["way"] == "spread" else tiles_plan(case, self.sums, plan)
        if made is None:
            single: dict[str, str | int] = {**scalar, "SINGLES": int(_row(case, self.sums).singles)}
            for name in ("rows", "spread"):
                yield Built(file, f"{case.op}_{name}", single)
            return
        team = made.team
        yield Built(file, f"{case.op}_tuned", {**scalar, **made.macros}, team.threads, made.shared, team.cluster)


def beside_plan(case: Case, cluster: int) -> BesidePlan | None:
    """The plan by which `cluster` blocks take a row, and other blocks the columns; None where they can't."""
    return BesidePlan.of(case.symbols["M"], case.symbols["N"], ITEMSIZE[case.dtype], Chip.current(), cluster)


def tiles_plan(case: Case, sums: int, plan: Plan) -> NormGradPlan | None:
    """The plan on tiles that parameters stand for; None where there is no room for it."""
    rows, chip = case.symbols["M"], Chip.current()
    row = _row(case, sums)
    cluster, at_once, stages = (int(plan[name]) for name in ("cluster", "at_once", "stages"))
    if not rows or not row.columns:
        return None
    if row.fits_a_warp:
        team, tile_rows = row.team_of_warp(rows, chip)
        found = (
            None if (cluster, at_once) != (1, team.at_once) else NormGradPlan.on_tiles(rows, row, team, tile_rows, chip)
        )
    else:
        wide = row.team_of_blocks(cluster, shared=at_once > 1)
        if wide is None or (row.singles and at_once > 1) or not row.sends(at_once, cluster):
            return None
        found = NormGradPlan.on_tiles(rows, row, replace(wide, at_once=at_once), at_once, chip)
    if found is None or stages > found.stages:
        return None
    if stages < found.stages:
        stage = 2 * found.tile_bytes + sums * found.row_bytes
        sums_of_lanes = found.team.threads // WARP * row.columns * FLOAT if found.team.lanes else 0
        found = replace(found, stages=stages, shared=max(stages * stage, sums_of_lanes))
    return replace(found, teams=1) if plan["alone"] else found


def narrower(case: Case, sums: int) -> NormGradPlan | None:
    """The plan on tiles for clusters that every GPU with clusters allows; None where there is no room for it."""
    for at_once, stages in ((2, 3), (1, 3), (1, 2), (1, 1)):
        plan = {"cluster": MOST_BLOCKS, "at_once": at_once, "stages": stages, "alone": 0}
        if found := tiles_plan(case, sums, plan):
            return found
    return None


def _ruled(case: Case, sums: int) -> NormGradPlan | None:
    return NormGradPlan.of(case.symbols["M"], case.symbols["N"], ITEMSIZE[case.dtype], sums, Chip.current())


def _row(case: Case, sums: int) -> Row:
    return Row(case.symbols["N"], ITEMSIZE[case.dtype], sums)
