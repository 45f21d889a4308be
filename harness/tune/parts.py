"""A search part by part: the sizes of a part are in the table when the part is done, whatever ends the search then."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from harness import devices, paths, plans, source, store
from harness import kept as kept_files
from harness.errors import UsageError
from harness.model import Case, Job, Measurement
from harness.ops import Op
from harness.ops.tuning import kernels_digest
from harness.plans import Entry, PlanTable
from harness.plans.records import SCHEMA
from harness.runner import Observer
from harness.tune import declared
from harness.tune.candidates import BROKEN, Candidate, compiled, has_broken_rule, kept
from harness.tune.compiling import Compiling
from harness.tune.search import Measure, Ranking, Search, Until
from harness.units import plural

if TYPE_CHECKING:
    from harness.tune.procedure import ToTune

_OF_A_PART = 80
"""Plans of a part, unless a single case has more: about a minute of a search, so that a short one leaves a table."""
_DONE = "done.json"
_Facts = dict[Case, list[Candidate]]


def in_parts(counts: Sequence[int]) -> list[range]:
    """Which of the cases with so many plans are searched together."""
    found: list[range] = []
    for place, count in enumerate(counts):
        last = found[-1] if found else range(0)
        if found and sum(counts[n] for n in last) + count <= _OF_A_PART:
            found[-1] = range(last.start, place + 1)
        else:
            found.append(range(place, place + 1))
    return found


def sizes_done(home: Path, counts: Sequence[int]) -> int:
    """How many of the sizes with so many plans an earlier start of the search has done."""
    return sum(len(places) for number, places in enumerate(in_parts(counts)) if (_part(home, number) / _DONE).is_file())


def _part(home: Path, number: int) -> Path:
    return home / f"part-{number}"


@dataclass(slots=True)
class InParts:
    """A search, and what it has found.

    home: the folder of what is measured. runs: measures. found: by case. facts: of the candidates of the parts that
    were searched now. entries: of all parts that are done. file: the table, None where it couldn't be kept.
    """

    wanted: ToTune
    op: Op
    home: Path
    until: Until
    compiling: Compiling
    runs: Measure
    found: dict[Case, Ranking] = field(default_factory=dict)
    facts: _Facts = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    file: Path | None = None

    def run(self, every: Mapping[Case, Sequence[Candidate]], telling: Callable[[Case, int, int], None]) -> bool:
        """Search all parts that aren't done. Tells whether the time was enough.

        telling: told of the candidates that are compiled while nothing is measured.
        """
        cases = [case for case in every if every[case]]
        todo = []
        for number, places in enumerate(in_parts([len(every[case]) for case in cases])):
            part, folder = {cases[place]: every[cases[place]] for place in places}, _part(self.home, number)
            if (done := self._done(folder)) is None:
                todo.append((part, folder))
            else:
                self._take(part, done)
        ready = self._begin(todo[0][0], telling) if todo else None
        for place, (_, folder) in enumerate(todo):
            assert ready is not None
            if (facts := self._in_time(ready)) is None:
                return False
            # The next part is compiled beside the first round of this one.
            ready = self._begin(todo[place + 1][0]) if place + 1 < len(todo) else None
            self.facts |= facts
            self._tell_broken(facts)
            if not self._search(facts, folder, ready):
                return False
            self.until.observer.note(f"in the table: {len(self.entries)} of {plural(len(cases), 'size')}")
        return True

    def _begin(
        self, part: Mapping[Case, Sequence[Candidate]], telling: Callable[[Case, int, int], None] | None = None
    ) -> Future[_Facts]:
        return self.compiling.beside(lambda: compiled(self.op, part, self.compiling, telling, keep=True))

    def _tell_broken(self, facts: _Facts) -> None:
        """Say which plans don't compile: an author wants to know, and a table made without them may lack the best."""
        for case, each in facts.items():
            if has_broken_rule(each):
                self.until.observer.note(
                    f"{case.id}: the rule's plan {each[0].text} {each[0].dropped}; no plan is timed"
                )
        right = [(case, each) for case, each in facts.items() if not has_broken_rule(each)]
        broken = [(case, one) for case, each in right for one in each if one.dropped.startswith(BROKEN)]
        for case, one in broken[:1]:
            also = len(broken) - 1
            others = f", nor {'does' if also == 1 else 'do'} {plural(also, 'other plan')}" if also else ""
            self.until.observer.note(f"{case.id}: plan {one.text} {one.dropped}{others}")

    def _in_time(self, ready: Future[_Facts]) -> _Facts | None:
        """The facts of a part. Waits for them; None if the time is over before."""
        left = self.until.deadline - time.monotonic()
        try:
            return ready.result(None if left == math.inf else min(max(0.0, left), threading.TIMEOUT_MAX))
        except TimeoutError:
            return None

    def _search(self, facts: _Facts, folder: Path, ready: Future[_Facts] | None) -> bool:
        """Search a part, and write what was found into the table. Tells whether the time was enough."""

        def measure(jobs: Sequence[Job], into: Path, observer: Observer) -> Sequence[Measurement]:
            measured = self.runs(jobs, into, observer)
            wait([ready] if ready else [])  # later rounds have the machine for themselves
            return measured

        search = Search(
            measure,
            self.wanted.timing,
            folder,
            self.until,
            lambda candidate: declared.name_of(self.wanted.variant, candidate.text),
        )
        found = search.run({case: kept(each) for case, each in facts.items()})
        self.found |= found
        if not all(each.complete for each in found.values()):
            return False
        made = [self._entry(case, facts[case], each) for case, each in found.items() if each.timed]
        if not any(map(has_broken_rule, facts.values())):  # a size whose rule compiles the next time is searched then
            plans.write(PlanTable(plans.device_name(self.wanted.device), tuple(made)), folder / _DONE)
        self._write(made)
        return True

    def _done(self, folder: Path) -> PlanTable | None:
        """What a part has found that an earlier start of this search has done; None if it isn't done."""
        file = folder / _DONE
        try:
            return plans.read(file, plans.device_name(self.wanted.device)) if file.is_file() else None
        except UsageError:  # damaged
            return None

    def _take(self, part: Mapping[Case, Sequence[Candidate]], done: PlanTable) -> None:
        """Take what was found at the cases of a part that is done already."""
        by_key: dict[object, Case] = {
            (case.op, case.variant, case.dtype, case.shape, case.choices): case for case in part
        }
        self.found |= {by_key[each.key]: Ranking(each.timed, each.tried, complete=True) for each in done.entries}
        self._write(done.entries)

    def _write(self, made: Sequence[Entry]) -> None:
        """Write entries into the table, which another search may have written since."""
        self.entries += made
        if made:
            device = plans.device_name(self.wanted.device)
            with plans.locked(self.wanted.output.parent if self.wanted.output else paths.cache(), wait=True):
                there = plans.read(self.wanted.output, device) if self.wanted.output else own_table(device)
                self.file = plans.write(plans.merged(there, made), self.wanted.output)

    def _entry(self, case: Case, facts: Sequence[Candidate], found: Ranking) -> Entry:
        machine = devices.kinds()[self.wanted.device].machine()
        commit, changed = source.revision()
        return Entry(
            op=self.wanted.op,
            variant=self.wanted.variant,
            dtype=case.dtype,
            shape=case.symbols,
            choices=dict(case.choices),
            timed=found.timed,
            source=kernels_digest(self.op, self.wanted.variant),
            commit=f"{commit}+" if changed else commit,
            driver=machine.driver,
            torch=dict(machine.versions).get("torch", ""),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            tried=found.tried,
            dropped=sum(bool(candidate.dropped) for candidate in facts) + len(found.failed),
        )


def own_table(device: str) -> PlanTable:
    """The table in the user's cache folder; an empty one where it is damaged, or isn't of this device.

    Raises UsageError for one that another version of the harness wrote, whose plans would be lost.
    """
    name = f"plans/{plans.file_name(device)}"
    try:
        found = store.parse(PlanTable, kept_files.read(name) or b"")
    except ValueError:
        return PlanTable(device)
    if found.schema != SCHEMA:
        raise UsageError(
            f"{kept_files.place(name)}: another version of the harness wrote it",
            "remove it, or write the plans into a file of their own: --output FILE.json",
        )
    return found if found.device == device else PlanTable(device)
