"""A run from plan to folder: measure each case in worker processes, store each result as it comes, resume."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Protocol

import harness
from harness import devices, source, store, units
from harness.errors import UsageError
from harness.model import Ceilings, Header, Job, Machine, Measurement, Run, Warning
from harness.processes.supervisor import Workers
from harness.scenario import Plan
from harness.store import Writer

ABOVE_CEILING = 1.02
_Task = tuple[int, Job]  # The index of the process that measures, and what.


class Observer(Protocol):
    """Told what happens, from the thread that called."""

    def planned(self, total: int, done: int) -> None:
        """So many measurements make up the run, of which so many exist already."""

    def note(self, text: str) -> None:
        """Something else than a case takes time."""

    def started(self, job: Job, process: int) -> None:
        """A case is being measured."""

    def finished(self, measurement: Measurement) -> None:
        """A case was measured and is stored."""


def run(  # noqa: PLR0913 - the command line passes all of it, by name
    plan: Plan,
    *,
    name: str,
    folder: Path,
    device: str,
    plugins: tuple[Path, ...] = (),
    command: tuple[str, ...] = (),
    repeat: int = 1,
    resume: bool = False,
    observer: Observer,
) -> Run:
    """Measure the plan `repeat` times, each time in a fresh process, into `folder`; what is there already counts.

    command: the command line, program first. Raises UsageError if the folder holds a run, or with `resume` another
    run than this one; MachineError if workers don't start or the disk is full; KeyboardInterrupt on Ctrl-C. Whatever
    it raises, the folder holds what was measured until then.
    """
    header = _header(plan=plan, name=name, device=device, plugins=plugins, command=command, repeat=repeat)
    earlier, writer = store.reopen(folder) if resume else (None, store.create(folder, header))
    with writer:
        if earlier:
            _refuse_another(folder, earlier.header, header)
            header = earlier.header
        todo = _todo(plan, repeat, earlier)
        total = len(plan.jobs) * repeat
        observer.planned(total, total - len(todo))
        if todo or not header.finished:
            with Workers(device, plugins) as workers:
                _carry_out(header, todo, writer, workers, observer)
    finished = store.load(folder)
    # A line that was cut is gone from the file by now, but not from what there is to say.
    losses = dict.fromkeys((*(earlier.losses if earlier else ()), *finished.losses))
    return replace(finished, losses=tuple(losses))


def measure_ceilings(device: str, observer: Observer) -> tuple[Machine, Ceilings]:
    """The machine and what its memory can do, without a run. Raises MachineError if that can't be measured."""
    with Workers(device) as workers:
        return devices.kinds()[device].machine(), _ceilings(workers, observer)


def _carry_out(header: Header, todo: Sequence[_Task], writer: Writer, workers: Workers, observer: Observer) -> None:
    """Measure the ceilings, every task, and the ceilings again; store each as it comes."""
    ceilings = header.ceilings
    if not ceilings:
        ceilings = _ceilings(workers, observer)
        header = replace(header, ceilings=ceilings)
        writer.update(header)
    for process, tasks in groupby(todo, key=lambda task: task[0]):
        # Fresh also after the ceilings: what a process allocated before decides where its next buffers lie, and that
        # moves a median by some tenths of a percent. Passes that start alike agree (reports/h200/trust.md).
        workers.restart()
        for _, job in tasks:
            observer.started(job, process)
            measurement = _checked(workers.measure(job, process), ceilings)
            writer.append(measurement)
            observer.finished(measurement)
    workers.restart()
    ceilings = _ceilings(workers, observer, ceilings)
    writer.update(replace(header, ceilings=ceilings, finished=_now()))


def _ceilings(workers: Workers, observer: Observer, start: Ceilings | None = None) -> Ceilings:
    if start:
        observer.note("memory ceilings once more, to see whether they drifted")
    return workers.ceilings(lambda text, share: observer.note(f"{text} ({units.percent(share, 0)})"), start)


def _checked(measurement: Measurement, ceilings: Ceilings) -> Measurement:
    """The measurement, with a warning if it is faster than memory can be. A hot cache is meant to be."""
    floor = ceilings.seconds(measurement.work) if measurement.work else None
    if not floor or not measurement.time or measurement.case.cache == "hot":
        return measurement
    share = floor / measurement.time
    if share <= ABOVE_CEILING:
        return measurement
    warning = Warning(
        "above-ceiling",
        f"{units.percent(share)} of the ceiling, which is more than the memory can do",
        "the bytes are counted wrong, or the data is still in the cache: check the op's tensors and the traffic",
    )
    return replace(measurement, warnings=(*measurement.warnings, warning))


def _todo(plan: Plan, repeat: int, earlier: Run | None) -> list[_Task]:
    """What isn't measured yet, one pass over the plan after the other."""
    done = {(m.case.id, m.process) for m in earlier.measurements} if earlier else set()
    return [(process, job) for process in range(repeat) for job in plan.jobs if (job.case.id, process) not in done]


def _refuse_another(folder: Path, stored: Header, asked: Header) -> None:
    """Raise UsageError naming everything in which the stored run isn't the one asked for."""
    different = {
        f"the machine was {stored.machine.name}, this is {asked.machine.name}": (
            stored.machine.fingerprint != asked.machine.fingerprint
        ),
        "the cases or their timing are others": stored.plan != asked.plan,
        "the harness, a kernel or a plug-in has changed": stored.source != asked.source,
        f"--repeat was {stored.repeat}, now it is {asked.repeat}": stored.repeat != asked.repeat,
    }
    found = [text for text, differs in different.items() if differs]
    if found:
        raise UsageError(
            f"{folder}: can't be resumed: {'; '.join(found)}", "undo that, or measure into another --output"
        )


def _header(  # noqa: PLR0913 - as above
    *, plan: Plan, name: str, device: str, plugins: Sequence[Path], command: Sequence[str], repeat: int
) -> Header:
    revision, dirty = source.revision()
    records = (*plan.jobs, *plan.scenarios)
    return Header(
        name=name,
        machine=devices.kinds()[device].machine(),
        scenarios=plan.scenarios,
        # Where the program lies on somebody's disk is nobody's business.
        command=("harness", *command[1:]),
        started=_now(),
        source=source.digest(plugins),
        plan=hashlib.sha256("\n".join(map(store.dump, records)).encode()).hexdigest(),
        jobs=len(plan.jobs),
        repeat=repeat,
        git_revision=revision,
        git_dirty=dirty,
        harness_version=harness.__version__,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
