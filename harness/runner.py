"""A run from plan to folder: measure each case in worker processes, store each result as it comes, resume."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import harness
from harness import devices, metrics, source, store, units
from harness.errors import UsageError
from harness.limits import Needs
from harness.model import Header, Job, Limits, Machine, Measurement, Run, Scenario, Warning
from harness.ops import MODES
from harness.ops.codes import Codes, codes
from harness.ops.known_cases import recognised_run
from harness.processes import lock, python
from harness.processes.nursery import Nursery
from harness.processes.supervisor import Workers
from harness.processes.surroundings import Surroundings
from harness.scenario import Plan
from harness.store import Writer, soundness

_CORES_AHEAD = 4
_CASES_AHEAD = 8
"""How many cases before the end of a pass the next process starts: torch loads while several short cases run."""
_Task = tuple[int, Job]  # The index of the process that measures, and what it measures.


@dataclass(frozen=True, slots=True)
class _Request:
    """What is left to do, the code of each op, and the limits that cases are compared with.

    nursery: from which the processes of a pass are forked, if they can be.
    """

    header: Header
    todo: Sequence[_Task]
    codes: Codes
    needs: Needs
    fresh: bool
    before_end: Callable[[], object]
    nursery: Nursery | None


class Observer(Protocol):
    """Receives reports of what happens, in the thread that called `run`."""

    def planned(self, total: int, done: int) -> None:
        """The run has `total` measurements, of which `done` exist already."""

    def note(self, text: str, share: float | None = None) -> None:
        """Something other than a case takes time. share: how much of it is done, if that is known."""

    def limited(self, limits: Limits) -> None:
        """What the machine can do is known now."""

    def started(self, job: Job, process: int) -> None:
        """A case is being measured."""

    def finished(self, measurement: Measurement) -> None:
        """A case was measured and is stored."""


class Measurers(Protocol):
    """Who measures the cases of a run: `Workers`, in processes of their own, or a program in its own process."""

    def measure(self, job: Job, process: int = 0, *, timed: bool = True) -> Measurement:
        """The job's measurement."""

    def limits(self, needs: Needs, note: Callable[[str, float], None], fresh: bool = False) -> Limits:
        """What the machine can do."""

    def limits_again(self, start: Limits, note: Callable[[str, float], None]) -> Limits:
        """The same limits, with some measured again."""

    def begin_next(self, *, compiler: bool = False) -> None:
        """Start the process that comes after the next `restart`: it loads torch, and leaves the device alone.

        compiler: load torch's compiler as well.
        """

    def restart(self) -> None:
        """Go on in a fresh process."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


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
    fresh: bool = False,
    observer: Observer,
    workers: Measurers | None = None,
    before_end: Callable[[], object] = lambda: None,
) -> Run:
    """Measure the plan `repeat` times, each time in a fresh process, into `folder`; what it holds isn't measured again.

    command: the command line, program first. fresh: measure the machine's limits anew, whatever is remembered of them.
    workers: who measures; processes of the runner's own unless told. before_end: called when all cases are measured,
    to prepare what follows the run, where that doesn't disturb the streams that are measured last.
    Raises UsageError if the folder holds a run, or with `resume` another run than this one; MachineError if workers
    don't start or the disk is full; KeyboardInterrupt on Ctrl-C. Whatever it raises, the folder holds what was measured
    until then.
    """
    header = _header(plan=plan, name=name, device=device, command=command, repeat=repeat)
    code_of = codes(plan.ops.values(), device)
    earlier, writer = store.reopen(folder) if resume else (None, store.create(folder, header))
    with writer:
        if earlier:
            earlier = recognised_run(earlier, plan.ops)
            _refuse_another(folder, earlier, header, code_of)
            header = replace(earlier.header, plan=header.plan)
        todo = _todo(plan, repeat, earlier)
        total = len(plan.jobs) * repeat
        observer.planned(total, total - len(todo))
        if todo or not header.finished:
            nursery = None if workers else _nursery(device, plan.jobs)
            around = Surroundings(nursery=nursery) if nursery else None
            measurers: Measurers = workers or Workers(device, plugins, around=around)
            held = lock.held(devices.kinds()[device], range(most_ranks(plan.jobs)))
            with held, nursery or nullcontext(), measurers as own:
                request = _Request(header, todo, code_of, needs(plan), fresh, before_end, nursery)
                _carry_out(request, writer, own, observer)
    finished = recognised_run(store.load(folder), plan.ops)
    # A line that was cut short is gone from the file by now. The report of this run must still tell of it.
    losses = dict.fromkeys((*(earlier.losses if earlier else ()), *finished.losses))
    return replace(finished, losses=tuple(losses))


def measure_limits(device: str, needs: Needs, observer: Observer) -> tuple[Machine, Limits]:
    """The machine and what it can do, without a run. Raises MachineError if that can't be measured."""
    kind = devices.kinds()[device]
    with lock.held(kind, range(kind.count or 0)), Workers(device) as workers:
        return devices.kinds()[device].machine(), _limits(workers, needs, observer, fresh=True)


def check(  # noqa: PLR0913 - the command line passes all of it, by name
    jobs: Sequence[Job],
    device: str,
    plugins: tuple[Path, ...],
    observer: Observer,
    *,
    seconds: float = math.inf,
    always: int = 0,
) -> list[Measurement]:
    """Check jobs and time none, in processes as runs use them: all jobs, or as many as begin within `seconds`.

    always: how many of the first jobs are checked however long that takes. Raises MachineError if no process starts.
    """
    observer.planned(len(jobs), 0)
    found: list[Measurement] = []
    deadline = time.monotonic() + seconds
    with Workers(device, plugins) as workers:
        for number, job in enumerate(jobs):
            if number >= always and time.monotonic() >= deadline:
                break
            observer.started(job, 0)
            found.append(workers.measure(job, timed=False))
            observer.finished(found[-1])
    return found


def most_ranks(jobs: Sequence[Job]) -> int:
    """How many devices the jobs need at most."""
    return max((job.case.world for job in jobs), default=1)


def needs(plan: Plan) -> Needs:
    """The limits that the plan's cases are compared with: streams always; compute and links if the work needs them."""
    cases = ((job.case, plan.ops[job.case.op]) for job in plan.jobs if job.case.op in plan.ops)
    return Needs.of(
        (op.work_done_by(op.variants[case.variant], case.values, case.dtype), case.world) for case, op in cases
    )


def _carry_out(request: _Request, writer: Writer, workers: Measurers, observer: Observer) -> None:
    """Measure the limits, every task, and some of the limits again; store each result as it comes."""
    header, limits = request.header, request.header.limits
    ahead = _loads_ahead(header.machine, request.todo)
    if not limits:
        if ahead:
            workers.begin_next(compiler=compiles(job for _, job in request.todo))
        limits = _limits(workers, request.needs, observer, fresh=request.fresh)
        header = replace(header, limits=limits)
        writer.update(header)
    observer.limited(limits)
    passes = [(process, list(tasks)) for process, tasks in groupby(request.todo, key=lambda task: task[0])]
    for place, (process, tasks) in enumerate(passes, 1):
        # Fresh also after the limits: what a process allocated before decides where its next buffers lie, and that
        # moves a median by some tenths of a percent. Passes that start alike agree (reports/h200/trust.md).
        workers.restart()
        if place > 1 and request.nursery:
            request.nursery.renew()  # what the addresses of libraries do to a time differs from pass to pass
        for number, (_, job) in enumerate(tasks):
            if ahead and number == max(0, len(tasks) - _CASES_AHEAD):
                workers.begin_next(compiler=place < len(passes) and compiles(job for _, job in tasks))
            observer.started(job, process)
            measured = replace(workers.measure(job, process), code=request.codes.get((job.case.op, job.case.variant)))
            measurement = judged(measured, limits)
            writer.append(measurement)
            observer.finished(measurement)
    if ahead:
        request.before_end()
    workers.restart()
    observer.note("streams once more, to see whether they drifted")
    limits = _limits(workers, request.needs, observer, start=limits)
    writer.update(replace(header, limits=limits, finished=_now()))


def _loads_ahead(machine: Machine, todo: Sequence[_Task]) -> bool:
    """Whether the next process may load torch, which takes seconds, while another one measures.

    Not on the host, whose cores are measured, nor where there are few, nor where several processes measure together.
    """
    roomy = machine.cpu_count >= _CORES_AHEAD and not devices.kinds()[machine.kind].on_host
    return roomy and all(job.case.world == 1 for _, job in todo)


def _nursery(device: str, jobs: Sequence[Job]) -> Nursery | None:
    """Where processes come from that measure the host one after the other: to load torch takes longer than most cases.

    None for other devices, whose next process loads torch while one measures, and for several ranks.
    """
    if not devices.kinds()[device].on_host or most_ranks(jobs) > 1:
        return None
    return Nursery(python.own_root(), compiler=compiles(jobs))


def compiles(jobs: Iterable[Job]) -> bool:
    """Whether a case calls torch.compile, whose modules take long to load."""
    return any(job.case.variant in MODES for job in jobs)


def _limits(
    workers: Measurers, needs: Needs, observer: Observer, *, fresh: bool = False, start: Limits | None = None
) -> Limits:
    """The machine's limits; given the limits of the run's start, some of them measured again."""
    return workers.limits_again(start, observer.note) if start else workers.limits(needs, observer.note, fresh)


def judged(measurement: Measurement, limits: Limits) -> Measurement:
    """The measurement, with a warning if it is faster than the machine's limits allow; none for a hot cache.

    One that is much faster is implausible, and has no time; but not on a host's processor, whose caches are larger than
    a system tells, and whose limits other work lowers. One that can't be true, with a sample of zero seconds, is a
    crashed case: a run with it couldn't be read again.
    """
    if problem := soundness.of_measurement(measurement):
        lost = Measurement(measurement.case, "crashed", error=f"what was measured can't be true: {problem}")
        return replace(lost, process=measurement.process, code=measurement.code)
    share = metrics.METRICS["of_ceiling"].value(metrics.Subject.of(measurement, limits))
    if share is None or share <= metrics.ABOVE_CEILING or measurement.case.cache == "hot":
        return measurement
    found = f"{units.percent(share)} of the ceiling, which is more than the machine can do"
    causes = (
        "the work is counted wrong, or the data is still in the cache: check the op's tensors and its work; or other "
        "work slowed the machine down while its limits were measured: harness run --fresh-ceilings measures them anew"
    )
    if share > metrics.IMPOSSIBLE and not devices.kinds()[measurement.case.device].on_host:
        took = units.seconds(measurement.time or 0.0)
        error = f"a call took {took}, {found}: it did not do its work, or {causes}"
        return replace(measurement, status="implausible", samples=(), call_samples=(), error=error)
    warning = Warning("above-ceiling", found, causes)
    return replace(measurement, warnings=(*measurement.warnings, warning))


def _todo(plan: Plan, repeat: int, earlier: Run | None) -> list[_Task]:
    """What isn't measured yet, one pass over the plan after the other.

    Every second pass goes backwards, so that a machine that becomes slower or faster with time favours no case.
    """
    done = {(m.case.id, m.process) for m in earlier.measurements} if earlier else set()
    passes = ((process, plan.jobs[:: -1 if process % 2 else 1]) for process in range(repeat))
    return [(process, job) for process, jobs in passes for job in jobs if (job.case.id, process) not in done]


def _refuse_another(folder: Path, stored: Run, asked: Header, code_of: Codes) -> None:
    """Raise UsageError naming everything in which the stored run isn't the one asked for."""
    header = stored.header
    changed = sorted({m.case.op for m in stored.measurements if m.code != code_of.get((m.case.op, m.case.variant))})
    different = {
        f"the machine was {header.machine.name}, this is {asked.machine.name}": (
            header.machine.fingerprint != asked.machine.fingerprint
        ),
        f"the cases or their timing differ: {_what_differs(header, asked)}": header.differs_from(asked),
        f"the code that measured {', '.join(changed)} has changed": bool(changed),
        f"--repeat was {header.repeat}, now it is {asked.repeat}": header.repeat != asked.repeat,
    }
    found = [text for text, differs in different.items() if differs]
    if found:
        raise UsageError(
            f"{folder}: can't be resumed: {'; '.join(found)}", "undo that, or measure into another --output"
        )


def _what_differs(stored: Header, asked: Header) -> str:
    """Which cases differ; else which parts of the scenarios; else it is the timing, of which only a hash is stored."""
    before, now = ([key for scenario in side.scenarios for key in scenario.cases] for side in (stored, asked))
    sides = {"only stored": [key for key in before if key not in now], "only now": [k for k in now if k not in before]}
    if any(sides.values()):
        more = {name: f" and {len(keys) - 1} more" if len(keys) > 1 else "" for name, keys in sides.items()}
        return ", ".join(f"{name} {keys[0]}{more[name]}" for name, keys in sides.items() if keys)
    if before != now:
        return "the same cases in another order"
    if stored.jobs != asked.jobs:
        return f"there were {stored.jobs}, now there are {asked.jobs}"
    parts = [
        f"{field.name} of scenario '{new.name}'"
        for old, new in zip(stored.scenarios, asked.scenarios, strict=False)
        for field in fields(Scenario)
        if getattr(old, field.name) != getattr(new, field.name)
    ]
    return ", ".join(parts) or "precision, max_time or timeout"


def _header(*, plan: Plan, name: str, device: str, command: Sequence[str], repeat: int) -> Header:
    revision, dirty = source.revision()
    timed = (f"{job.case.id} {store.dump(job.timing)}" for job in plan.jobs)
    asked = "\n".join((*timed, *map(store.dump, plan.scenarios)))
    return Header(
        name=name,
        machine=devices.kinds()[device].machine(),
        scenarios=plan.scenarios,
        # Only the program's name: its path would tell readers of the report about the user's disk.
        command=("harness", *command[1:]),
        started=_now(),
        plan=hashlib.sha256(asked.encode()).hexdigest(),
        jobs=len(plan.jobs),
        repeat=repeat,
        git_revision=revision,
        git_dirty=dirty,
        harness_version=harness.__version__,
        sealed=True,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
