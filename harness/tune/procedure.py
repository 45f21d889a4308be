"""A search from its request to its table."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from harness import cuda, paths, plans, source, store
from harness import kept as kept_files
from harness.cuda import assumed
from harness.errors import CompileError, MachineError, UnwritableError, UsageError
from harness.model import Case, Timing
from harness.ops import Catalogue, Context, Op
from harness.plans import Entry, Plan
from harness.processes.supervisor import Workers
from harness.runner import Observer
from harness.scenario import Setting
from harness.scenario.shapes import obstacles
from harness.tune import declared
from harness.tune.candidates import Candidate, compiled, has_broken_rule, kept, legal, refused
from harness.tune.compiling import Compiling
from harness.tune.parts import InParts, own_table
from harness.tune.search import Quick, Ranking, Until, in_runs

_ROOM = "tune"
"""The folder of what searches measure, in the cache folder."""
_TOLD = 25
"""Plans that are compiled between two notes."""


@dataclass(frozen=True, slots=True)
class ToTune:
    """What to search. cases: of the variant, at the sizes to tune for. seconds: that the search may take.

    output: the table's file; None for the user's cache folder.
    """

    op: str
    variant: str
    cases: tuple[Case, ...]
    device: str
    plugins: tuple[Path, ...] = ()
    timing: Timing = field(default_factory=Timing)
    seconds: float = float("inf")
    output: Path | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """The candidates at a case. obstacle: why there are none; '' if there are some.

    taken: the plan that this device's table has for the case; None where the rule's is taken. refused: how many plans
    the variant refuses, by the reason; they are no candidates.
    """

    case: Case
    candidates: tuple[Candidate, ...]
    obstacle: str = ""
    taken: Plan | None = None
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search found. entries: of the sizes that are done, as they are in `file`, None where it couldn't be kept.

    found: by case; a case that isn't in it has no plan, or the time was over before it. complete: whether the time was
    enough for all sizes; if not, the same command goes on. broken: cases whose rule's plan doesn't compile.
    """

    found: dict[Case, Ranking]
    entries: tuple[Entry, ...]
    file: Path | None
    complete: bool
    broken: tuple[Case, ...] = ()


def listed(wanted: ToTune, observer: Observer) -> tuple[Listed, ...]:
    """The candidates at each case, with what the compiler says of them. Nothing is timed.

    Raises UsageError if the op or the variant isn't known, or has no plans.
    """
    op = _op(wanted)
    with _compiling(wanted) as compiling:
        found = compiled(op, _legal(op, wanted), compiling, _telling(wanted, observer))
    return tuple(_listed(op, case, found[case]) for case in wanted.cases)


def _listed(op: Op, case: Case, found: Sequence[Candidate]) -> Listed:
    if not found:
        return Listed(case, (), _obstacle(op, case.variant, case))
    return Listed(case, tuple(found), taken=_taken(op, case), refused=refused(op, case))


def _taken(op: Op, case: Case) -> Plan | None:
    """The plan of this device's table for a case; None where the rule's is taken, or where another GPU is assumed."""
    if assumed.current():
        return None
    asking: Any = Context
    ctx: Context = asking(case, None, None, None, op)  # a plan needs neither tensors nor random numbers
    plan = ctx.plan()
    return plan if "neighbour" in ctx.facts else None


def _legal(op: Op, wanted: ToTune) -> dict[Case, list[Candidate]]:
    return {case: legal(op, case) for case in wanted.cases}


def compile_anew() -> None:
    """Keep the compiler from the driver's cache, where a run before may have left a kernel.

    From there NVRTC (since CUDA 12.9) gives a kernel without the log that tells its registers, so no plan that was ever
    used could be searched. To be called before anything starts the driver, which may read the variable then alone.
    """
    os.environ["CUDA_CACHE_DISABLE"] = "1"


def _compiling(wanted: ToTune) -> Compiling:
    return Compiling(cuda.architecture() if wanted.device == "cuda" else "")


def _telling(wanted: ToTune, observer: Observer) -> Callable[[Case, int, int], None]:
    """Says which plan is compiled, at each _TOLD-th one of a case."""

    def step(case: Case, done: int, total: int) -> None:
        if done % _TOLD == 1:
            number = wanted.cases.index(case) + 1
            observer.note(f"compiling {case.id} ({number} of {len(wanted.cases)}), plan {done} of {total}")

    return step


def _obstacle(op: Op, variant: str, case: Case) -> str:
    """Why a variant has no plan for a case."""
    unsupported = op.variants[variant].unsupported
    return (unsupported and unsupported(case)) or "its rule gives none at this size, which has no parameters to choose"


def refuse_none(wanted: ToTune, found: Iterable[Sequence[Candidate]]) -> None:
    """Raise an error if there is nothing to time, of the candidates of each case.

    CompileError where a rule's plan doesn't compile, else UsageError.
    """
    found = list(found)
    if not any(map(kept, found)):
        if rule := next((each[0] for each in found if has_broken_rule(each)), None):
            raise CompileError(f"the rule's plan, {rule.text}, {rule.dropped}", "correct the kernel, or the rule")
        raise UsageError(
            f"{wanted.op}/{wanted.variant} has no plan that can be timed at these sizes",
            "name other sizes; --dry-run shows why each plan is left out",
        )


def tune(wanted: ToTune, observer: Observer) -> Tuned:
    """Search, and write the sizes of each part into the table when the part is done.

    What was measured stays until `forget`, so that the same search goes on. Raises as `listed` does, MachineError where
    nothing can be measured, and UnwritableError where nothing can be kept: before anything is timed, or where the disk
    becomes full.
    """
    until = Until(observer, time.monotonic() + wanted.seconds)
    if problem := kept_files.obstacle(_ROOM, *(() if wanted.output else (plans.FOLDER,))):
        raise UnwritableError(
            f"the cache folder can't keep what a search measures: {problem}",
            "make room, or name another folder, which is yours alone, in HARNESS_CACHE",
        )
    # They raise before anything is timed where the table can't be written.
    if wanted.output:
        plans.read(wanted.output, plans.device_name(wanted.device))
    else:
        own_table(plans.device_name(wanted.device))
    op = _op(wanted)
    every = _legal(op, wanted)
    refuse_none(wanted, every.values())
    home = home_of(wanted)
    sheet = declared.sheet_of(wanted.op, wanted.variant, chain.from_iterable(every.values()))
    with _advising():
        plugins = (*wanted.plugins, declared.write(sheet, home))
        with _alone(home), _compiling(wanted) as compiling, Workers(wanted.device, plugins) as workers:
            runs = in_runs(Catalogue(plugins)[wanted.op], wanted.device, plugins, Quick(workers, wanted.device))
            search = InParts(wanted, op, home, until, compiling, runs)
            complete = search.run(every, _telling(wanted, observer))
    if complete:
        refuse_none(wanted, (every | search.facts).values())
        if not search.entries:
            raise MachineError("no plan was right and timed, so there is no table", "see the reason of each plan above")
    broken = tuple(case for case, each in search.facts.items() if has_broken_rule(each))
    return Tuned(search.found, tuple(search.entries), search.file, complete, broken)


@contextmanager
def _advising() -> Iterator[None]:
    """Say what to do where the disk is full. A run has an option to go on with it, a search needs none."""
    try:
        yield
    except UnwritableError as error:
        raise UnwritableError(
            error.message, "free some space or correct the permissions; the same command goes on with what was measured"
        ) from error


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Refuse a search that another process makes now: it would begin the other's rounds anew, under its hands."""
    with ExitStack() as stack:
        try:
            stack.enter_context(plans.locked(home, wait=False))
        except BlockingIOError:
            raise UsageError("the same search goes on in another process", "wait until it ends, or end it") from None
        yield


def forget(wanted: ToTune) -> None:
    """Remove what a search has measured: the same search begins anew."""
    shutil.rmtree(home_of(wanted), ignore_errors=True)


def _op(wanted: ToTune) -> Op:
    op = Catalogue(wanted.plugins)[wanted.op]
    for case in wanted.cases:
        op.refuse(replace(case, variant=wanted.variant))
        setting = Setting(case.shape, case.choices)
        if problem := next(obstacles(op, [*op.inputs, *op.outputs], setting, [case.dtype]), ""):
            raise UsageError(f"{case.id}: {problem}", "name other sizes")
    return op


def home_of(wanted: ToTune) -> Path:
    """Where a search keeps what it has measured: the same folder for the same search, so that it goes on there."""
    told = (
        wanted.op,
        wanted.variant,
        wanted.device,
        plans.device_name(wanted.device),
        [case.id for case in wanted.cases],
        store.dump(wanted.timing),
        source.digest(wanted.plugins),
    )
    return paths.cache() / _ROOM / f"{wanted.op}-{hashlib.sha256(repr(told).encode()).hexdigest()[:16]}"
