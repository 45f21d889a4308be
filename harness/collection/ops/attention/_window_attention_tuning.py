"""The plans of attention in windows as parameters that a search may vary.

tables: heads whose bias and mask a block keeps in shared memory; 0 where they are read from memory. teams: of a block.
parts: into which the queries of a window and a head are cut. stay: 0 where each part has a block of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from harness.collection.ops.attention._window_attention_kernels import AttentionSizes, TileNumbers, TilePlan
from harness.collection.ops.chip import Chip
from harness.model import Case
from harness.ops import Built, Context, Plan, Tuning

_TEAMS = (1, 2, 4, 8, 12, 16, 18)  # besides the rule's: each kernel takes seconds to compile
_TABLES = (0, 1, 2, 3, 4)
_PARTS = (1, 2, 3, 4)


def tuning(sizes_of: Callable[[Case], AttentionSizes]) -> Tuning:
    """What `tuned` of an op declares. sizes_of: what a case works on."""

    def rule(case: Case) -> Plan | None:
        plan = TilePlan.of(sizes_of(case), Chip.current())
        if plan is None:
            return None
        stays = plan != TilePlan.plain(sizes_of(case), Chip.current(), plan.parts)
        return {"tables": plan.tables, "teams": plan.teams, "parts": plan.parts, "stay": int(stays)}

    def parameters(case: Case) -> Mapping[str, Sequence[int]]:
        sizes = sizes_of(case)
        added = sizes.bias or sizes.masks
        tables = [count for count in _TABLES if count == 0 or (added and sizes.heads % count == 0)]
        ruled = rule(case)
        teams = sorted({*_TEAMS, *([int(ruled["teams"])] if ruled else [])})
        return {"tables": tables, "teams": teams, "parts": _PARTS, "stay": (0, 1)}

    def refuse(case: Case, plan: Plan) -> str | None:
        return None if _made(sizes_of(case), plan) else "a block has no room for them, or the numbers don't go together"

    def kernels(case: Case, plan: Plan) -> Iterator[Built]:
        sizes = sizes_of(case)
        made = _made(sizes, plan)
        assert made
        macros = sizes.macros(case.dtype) | made.macros
        yield Built(f"{case.op}.cu", f"{case.op}_tiles", macros, made.threads, made.shared)

    return Tuning(parameters, rule, refuse, kernels)


def plan_of(ctx: Context, sizes: AttentionSizes) -> TilePlan | None:
    """The plan of a case, from a table or by the rule; None where tiles don't fit its sizes."""
    plan = ctx.plan()
    return _made(sizes, plan) if plan else None


def _made(sizes: AttentionSizes, plan: Plan) -> TilePlan | None:
    numbers = TileNumbers(int(plan["tables"]), int(plan["teams"]), int(plan["parts"]), bool(plan["stay"]))
    return TilePlan.made(sizes, Chip.current(), numbers)
