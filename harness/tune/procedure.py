"""A search from its request to its table."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from harness import devices, paths, plans, source, store
from harness.errors import MachineError, UsageError
from harness.model import Case, Machine, Timing
from harness.ops import Catalogue, Op
from harness.ops.tuning import kernels_digest
from harness.plans import Entry
from harness.runner import Observer
from harness.tune import declared
from harness.tune.candidates import Candidate, candidates, kept
from harness.tune.search import Ranking, Search, Until, in_runs

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
    """The candidates at a case. obstacle: why there are none; '' if there are some."""

    case: Case
    candidates: tuple[Candidate, ...]
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search found. entries: what was written to `file`, None where it couldn't be kept.

    found: by case; a case that isn't in it has no plan, or no candidate was right. complete: whether the time was
    enough for all rounds; if not, the same command goes on.
    """

    listed: tuple[Listed, ...]
    found: dict[Case, Ranking]
    entries: tuple[Entry, ...]
    file: Path | None
    complete: bool


def listed(wanted: ToTune, observer: Observer) -> tuple[Listed, ...]:
    """The candidates at each case, with what the compiler says of them. Nothing is timed.

    Raises UsageError if the op or the variant isn't known, or has no plans.
    """
    op = _op(wanted)
    found = []
    for number, case in enumerate(wanted.cases, 1):

        def step(done: int, total: int, case: Case = case, number: int = number) -> None:
            if done % _TOLD == 1:
                observer.note(f"compiling {case.id} ({number} of {len(wanted.cases)}), plan {done} of {total}")

        plans_of = tuple(candidates(op, wanted.variant, case, step))
        found.append(Listed(case, plans_of, "" if plans_of else _obstacle(op, wanted.variant, case)))
    return tuple(found)


def _obstacle(op: Op, variant: str, case: Case) -> str:
    """Why a variant has no plan for a case."""
    unsupported = op.variants[variant].unsupported
    return (unsupported and unsupported(case)) or "its rule gives none at this size, which has no parameters to choose"


def refuse_none(wanted: ToTune, found: Sequence[Listed]) -> None:
    """Raise UsageError if there is nothing to time."""
    if not any(kept(each.candidates) for each in found):
        raise UsageError(
            f"{wanted.op}/{wanted.variant} has no plan that can be timed at these sizes",
            "name other sizes; --dry-run shows why each plan is left out",
        )


def tune(wanted: ToTune, observer: Observer) -> Tuned:
    """Search, and write the table. Raises as `listed` does, and MachineError where nothing can be measured."""
    deadline = time.monotonic() + wanted.seconds
    device = plans.device_name(wanted.device)
    if wanted.output:
        plans.read(wanted.output, device)  # it raises before anything is timed where the table can't be written there
    every = listed(wanted, observer)
    chosen = {each.case: kept(each.candidates) for each in every}
    refuse_none(wanted, every)
    home = _folder(wanted)
    named = {declared.name_of(wanted.variant, c.text): c.plan for each in chosen.values() for c in each}
    file = declared.write(declared.TriedPlans(wanted.op, wanted.variant, named), home)
    plugins = (*wanted.plugins, file)
    search = Search(
        in_runs(Catalogue(plugins)[wanted.op], wanted.device, plugins),
        wanted.timing,
        home,
        Until(observer, deadline),
        lambda candidate: declared.name_of(wanted.variant, candidate.text),
    )
    found = search.run(chosen)
    complete = all(each.complete for each in found.values())
    if not complete:
        return Tuned(every, found, (), None, complete=False)
    op = _op(wanted)
    made = tuple(
        _entry(op, wanted, one, found[one.case]) for one in every if one.case in found and found[one.case].timed
    )
    if not made:
        raise MachineError("no plan was right and timed, so there is no table", "see the reason of each plan above")
    there = plans.read(wanted.output, device) if wanted.output else _own(device)
    file_written = plans.write(plans.merged(there, made), wanted.output)
    shutil.rmtree(home, ignore_errors=True)
    return Tuned(every, found, made, file_written, complete=True)


def _op(wanted: ToTune) -> Op:
    op = Catalogue(wanted.plugins)[wanted.op]
    for case in wanted.cases:
        op.refuse(replace(case, variant=wanted.variant))
    return op


def _own(device: str) -> plans.PlanTable:
    """The table in the user's cache folder; an empty one where it can't be read."""
    from harness import kept as cache

    try:
        return store.parse(plans.PlanTable, cache.read(f"plans/{plans.file_name(device)}") or b"")
    except ValueError:
        return plans.PlanTable(device)


def _folder(wanted: ToTune) -> Path:
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
    return paths.cache() / "tune" / f"{wanted.op}-{hashlib.sha256(repr(told).encode()).hexdigest()[:16]}"


def _entry(op: Op, wanted: ToTune, each: Listed, found: Ranking) -> Entry:
    case, machine = each.case, _machine(wanted.device)
    commit, changed = source.revision()
    return Entry(
        op=wanted.op,
        variant=wanted.variant,
        dtype=case.dtype,
        shape=case.symbols,
        choices=dict(case.choices),
        timed=found.timed,
        source=kernels_digest(op, wanted.variant),
        commit=f"{commit}+" if changed else commit,
        driver=machine.driver,
        torch=dict(machine.versions).get("torch", ""),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        tried=found.tried,
        dropped=sum(bool(candidate.dropped) for candidate in each.candidates) + len(found.failed),
    )


def _machine(kind: str) -> Machine:
    return devices.kinds()[kind].machine()
