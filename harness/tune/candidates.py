"""Which plans of a variant are worth timing at a size: the legal ones that the compiler doesn't rule out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from harness import cuda
from harness.errors import CompileError, HarnessError, UsageError, brief, described
from harness.model import Case, Value
from harness.ops import Built, Op, Tuning
from harness.tune.compiling import Compiling

_REGISTERS = 65_536  # of a multiprocessor, which a block may have at most, on every architecture from sm_80 to sm_120
_ALLOCATED = 256  # registers that a warp gets at a time
_WARP = 32
_MOST_PLANS = 100_000
BROKEN = "doesn't compile"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan. rule: whether the op takes it without a table. dropped: why it isn't timed; '' if it is.

    registers, local, shared: the most of its kernels, as the compiler tells; 0 where the plan compiles none. shared: of
    a block, in bytes, static and dynamic.
    """

    plan: dict[str, Value]
    rule: bool = False
    dropped: str = ""
    registers: int = 0
    local: int = 0
    shared: int = 0

    @property
    def text(self) -> str:
        """The plan as it stands in the name of a variant: 'threads256.packs2'."""
        return ".".join(f"{name}{value}" for name, value in self.plan.items())


def legal(op: Op, case: Case) -> list[Candidate]:
    """All legal plans at a case, the rule's first; none where the rule has none.

    Raises UsageError if the variant has no tuning, or if its tuning raises, has a value twice, or has a rule whose plan
    isn't made of the parameters' values.
    """
    tuning = _tuning(op, case.variant)
    whose = f"{case.id}: tuning of variant '{case.variant}'"
    try:
        rule = tuning.rule(case)
        if rule is None:
            return []
        plans = list(legal_plans(tuning, case))
        # `refuse` may only say that a plan isn't worth a try; the rule's is taken without a table, so it is timed.
        obstacle = replace(tuning, refuse=None).obstacle(case, rule)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{whose}: {brief(described(error))}", "parameters(case) gives a dict of a tuple of values for each name"
        ) from error
    if obstacle:
        raise UsageError(
            f"{whose}: the rule's plan is none of the plans: {obstacle}",
            "give a rule that has a value of each parameter, or None",
        )
    found = [Candidate(dict(rule), rule=True), *(Candidate(plan) for plan in plans if plan != dict(rule))]
    texts = Counter(each.text for each in found)
    if twice := next((text for text, count in texts.items() if count > 1), None):
        raise UsageError(f"{whose}: two plans are written '{twice}'", "give each value of a parameter once")
    return found


def _tuning(op: Op, variant: str) -> Tuning:
    tuning = op.variants[variant].tuning
    if tuning is None:
        known = [name for name, each in op.variants.items() if each.tuning]
        raise UsageError(
            f"variant '{variant}' of op '{op.name}' has no plans to search",
            f"with plans: {', '.join(known) or 'none'}; tuning=Tuning(...) declares them",
        )
    return tuning


def compiled(
    op: Op,
    found: Mapping[Case, Sequence[Candidate]],
    compiling: Compiling,
    step: Callable[[Case, int, int], None] | None = None,
    *,
    keep: bool = False,
) -> dict[Case, list[Candidate]]:
    """The candidates of each case; those that the compiler rules out with the reason.

    keep: compile the code of the others into the cache, too. step(case, done, total) is called when another one of a
    case's candidates is compiled. Where a rule's plan doesn't compile, all candidates of the case are dropped: a table
    must not say that another plan is faster than a plan that nobody has timed.
    """
    for case, each in found.items():
        for candidate in each:
            for file, built in _kernels(op, case, candidate):
                compiling.begin(file, built)
    told: dict[Case, list[Candidate]] = {case: [] for case in found}
    for case, each in found.items():
        for candidate in each:
            kernels = _kernels(op, case, candidate)
            facts = _with_facts(candidate, kernels, compiling)
            rule = told[case][0] if told[case] else facts
            told[case].append(_compared(facts, rule))
            if kernels and step:
                step(case, len(told[case]), len(each))
            if keep and not told[case][-1].dropped:
                for file, built in kernels:
                    compiling.keep(file, built)
    compiling.wait()
    return told


def _kernels(op: Op, case: Case, candidate: Candidate) -> list[tuple[Path, Built]]:
    """What a candidate compiles, each with its file; nothing on a device that runs no kernels of ours."""
    tuning = _tuning(op, case.variant)
    if tuning.kernels is None or case.device != "cuda":
        return []
    file = op.variants[case.variant].file
    try:
        return [(op.find(built.file, file), built) for built in tuning.kernels(case, candidate.plan)]
    except HarnessError:
        raise
    except Exception as error:
        raise UsageError(
            f"{case.id}: kernels of variant '{case.variant}', plan '{candidate.text}': {brief(described(error))}",
            "kernels(case, plan) gives what each legal plan compiles; refuse(case, plan) keeps others out",
        ) from error


def legal_plans(tuning: Tuning, case: Case) -> Iterator[dict[str, Value]]:
    """The legal plans, in the order of the parameters' values."""
    return (plan for plan, refusal in _combinations(tuning, case) if refusal is None)


def refused(op: Op, case: Case) -> Counter[str]:
    """How many plans the variant refuses at a case, by the reason. The rule's plan is timed all the same."""
    tuning = _tuning(op, case.variant)
    rule = tuning.rule(case)
    return Counter(str(why) for plan, why in _combinations(tuning, case) if why is not None and plan != rule)


def _combinations(tuning: Tuning, case: Case) -> Iterator[tuple[dict[str, Value], str | None]]:
    """All combinations of the parameters' values, each with why the variant refuses it, or None."""
    parameters = tuning.parameters(case)
    count = 1
    for values in parameters.values():
        count *= len(values)
    if count > _MOST_PLANS:
        raise UsageError(
            f"{case.op}/{case.variant} has {count:,} combinations of parameters, more than {_MOST_PLANS:,}",
            "give Tuning.parameters fewer values at a case",
        )
    for values in product(*parameters.values()):
        plan = dict(zip(parameters, values, strict=True))
        yield plan, tuning.refuse(case, plan) if tuning.refuse else None


def _with_facts(candidate: Candidate, kernels: Sequence[tuple[Path, Built]], compiling: Compiling) -> Candidate:
    """The candidate with what the compiler says of its kernels."""
    for file, built in kernels:
        try:
            facts = compiling.facts(file, built)
        except CompileError as error:
            return replace(candidate, dropped=f"{BROKEN}: {brief(str(error.message))}")
        candidate = replace(
            candidate,
            registers=max(candidate.registers, facts.registers),
            local=max(candidate.local, facts.local),
            shared=max(candidate.shared, facts.shared + built.shared),
            dropped=candidate.dropped or _problem(built, facts.registers, facts.shared + built.shared),
        )
    return candidate


def _compared(candidate: Candidate, rule: Candidate) -> Candidate:
    """The candidate, dropped if the rule's plan doesn't compile, or if the candidate spills more than that plan.

    A rule's plan may be the best although it spills.
    """
    if candidate.dropped:
        return candidate
    if has_broken_rule([rule]):
        return replace(candidate, dropped="the rule's plan, to compare with, doesn't compile")
    if candidate.local <= rule.local:
        return candidate
    return replace(candidate, dropped=f"spills: {candidate.local} bytes of local memory a thread")


def _problem(built: Built, registers: int, shared: int) -> str:
    """Why a kernel can't be launched so; '' if it may be."""
    warps = -(-built.threads // _WARP)
    needed = warps * (-(-registers * _WARP // _ALLOCATED) * _ALLOCATED)
    if needed > _REGISTERS:
        return f"{built.threads} threads with {registers} registers each are more than a multiprocessor has"
    if shared > cuda.shared_memory():
        return f"{shared:,} bytes of shared memory, a block may have {cuda.shared_memory():,}"
    if built.cluster > 1 and not cuda.has_clusters():
        return "clusters of blocks came with compute capability 9.0"
    return ""


def has_broken_rule(found: Sequence[Candidate]) -> bool:
    """Whether the rule's plan, which is the first of a case's candidates, doesn't compile."""
    return bool(found) and found[0].rule and found[0].dropped.startswith(BROKEN)


def kept(found: Sequence[Candidate]) -> list[Candidate]:
    """The candidates to time."""
    return [each for each in found if not each.dropped]
