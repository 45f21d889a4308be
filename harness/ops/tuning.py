"""What a variant says of its plans, so that they can be searched, and how a case gets its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from harness import metrics, plans, source, units
from harness.model import Case, Value, Warning
from harness.ops.declarations import check_callable, refusal
from harness.plans import Plan

if TYPE_CHECKING:
    from harness.ops.sheet import Context, Op


_DISTANCE = metrics.fact(
    "neighbour",
    "distance of the neighbour",
    units.PLAIN,
    "how far away the measured size is whose plan it has, in powers of two; a plan by rule has no neighbour",
    head="neighbour",
    keep=1,
).name


def declare_facts(symbols: Iterable[str]) -> None:
    """Declare the facts that tell which measured size a plan comes from."""
    for symbol in symbols:
        hint = f"{symbol} of the measured size whose plan the case has"
        metrics.fact(f"neighbour_{symbol}", f"{symbol} of the neighbour", units.COUNT, hint, head="")


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel that a plan compiles and launches, as far as the compiler tells whether that can be.

    file, entry, macros: as for `ctx.kernel`. threads: of a block. shared: dynamic bytes of a block. cluster: blocks of
    a cluster.
    """

    file: str
    entry: str
    macros: Mapping[str, str | int] = field(default_factory=dict)
    threads: int = 0
    shared: int = 0
    cluster: int = 1


@dataclass(frozen=True, slots=True)
class Tuning:
    """The plans of a variant: `@OP.variant("tuned", "...", tuning=Tuning(...))`, and `ctx.plan()` where it's prepared.

    parameters(case): the values that each parameter may have, by its name. rule(case): the plan where no table has one;
    None where the variant has no plan for the case. refuse(case, plan): why a plan isn't legal on this device, or None.
    kernels(case, plan): what the plan compiles, so that `harness tune` drops what spills or doesn't fit before anything
    is timed. alike(case): what must be equal at two sizes, besides dtype and choices, for one's plan to suit the other.
    """

    parameters: Callable[[Case], Mapping[str, Sequence[Value]]]
    rule: Callable[[Case], Plan | None]
    refuse: Callable[[Case, Plan], str | None] | None = None
    kernels: Callable[[Case, Plan], Iterable[Built]] | None = None
    alike: Callable[[Case], object] | None = None

    def __post_init__(self) -> None:
        check_callable("a Tuning", 1, parameters=self.parameters, rule=self.rule, alike=self.alike)
        check_callable("a Tuning", 2, refuse=self.refuse, kernels=self.kernels)

    def obstacle(self, case: Case, plan: Plan) -> str | None:
        """Why a plan can't be taken for a case; None if it can."""
        parameters = self.parameters(case)
        if {*plan} != {*parameters}:
            return f"it has the parameters {', '.join(plan)}, the variant has {', '.join(parameters)}"
        if bad := next((name for name, value in plan.items() if value not in parameters[name]), None):
            return f"{bad} can't be {plan[bad]}"
        return self.refuse(case, plan) if self.refuse else None


def plan_of(ctx: Context) -> Plan | None:
    """The plan of a context's case: the one that is being tried; else from this device's table; else by the rule.

    The context gets the facts of a plan from a table, and a note where a table can't be used.
    """
    if ctx.tried is not None:
        return ctx.tried
    tuning = ctx.op.variants[ctx.case.variant].tuning
    if tuning is None:
        raise refusal(f"variant '{ctx.case.variant}' of op '{ctx.op.name}' has no tuning", "give it tuning=Tuning(...)")
    rule = tuning.rule(ctx.case)
    found = None if rule is None else _from_table(ctx, tuning)
    if found is None:
        return rule
    ctx.facts[_DISTANCE] = found.distance
    ctx.facts |= {f"neighbour_{symbol}": float(size) for symbol, size in found.shape.items()}
    return found.plan


def _from_table(ctx: Context, tuning: Tuning) -> plans.Neighbour | None:
    case = ctx.case
    for table in plans.entries(case.device):
        of_variant = [entry for entry in table if (entry.op, entry.variant) == (case.op, case.variant)]
        if not of_variant:
            continue
        now = kernels_digest(ctx.op, case.variant)
        usable = [entry for entry in of_variant if entry.source == now]
        if len(usable) < len(of_variant) and not any(note.code == "old-plans" for note in ctx.notes):
            message = (
                f"plans of {len(of_variant) - len(usable)} sizes aren't used: other kernels than today's made them"
            )
            ctx.notes.append(Warning("old-plans", message, f"search again: harness tune {case.op}"))
        near = [entry for entry in usable if _suits(entry, case, tuning)]
        if near:
            return plans.choose(near, case.symbols, lambda plan: tuning.obstacle(case, plan) is None)
    return None


def _suits(entry: plans.Entry, case: Case, tuning: Tuning) -> bool:
    """Whether an entry is of the case's type and choices, and of a size that is alike."""
    if (entry.dtype, entry.choices, [*entry.shape]) != (case.dtype, dict(case.choices), [*case.symbols]):
        return False
    there = Case(case.op, case.variant, case.dtype, tuple(entry.shape.items()), case.choices, device=case.device)
    return tuning.alike is None or tuning.alike(there) == tuning.alike(case)


def kernels_digest(op: Op, variant: str) -> str:
    """The hash of a variant's kernels, which a table must have for its plans to be believed."""
    return _digest(op.files_of(variant))


@cache
def _digest(files: tuple[Path, ...]) -> str:
    return source.kernels(*files)
