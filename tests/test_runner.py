"""A run that survives what it measures, its own death, a full disk and a second run: with real faults."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from harness import devices, metrics, runner, source, store
from harness.errors import MachineError, UsageError
from harness.model import Code, Header, Job, Limits, Measurement, Run, StreamPoint
from harness.ops import Catalogue
from harness.processes import team
from tests.rare import rare

MakeJob = Callable[..., Job]
RunJobs = Callable[..., Run]
ROOT = Path(runner.__file__).parents[1]
FAULTY = ROOT / "tests" / "plugins" / "faults.py"

FAULTS = {
    "abort": ("crashed", ["killed by signal SIGABRT", "assertion 'pigs can fly' failed", "faults.py"]),
    "segfault": ("crashed", ["killed by signal SIGSEGV", "faults.py"]),
    "exit": ("crashed", ["ended with exit status 7"]),
    "killed": ("crashed", ["killed by signal SIGKILL from outside", "memory ran out"]),
    "endless": ("timeout", ["took longer than 60 s", "in spin"]),
    "raises": ("crashed", ["ValueError: no such table", "in raises: raise ValueError"]),
    "uncompilable": ("crashed", ["fault.cu(3): error: expected a ';'", "mend the kernel"]),
    "greedy": ("out_of_memory", ["allocate"]),
    "forks": ("crashed", ["ended with exit status 3"]),
    "noisy": ("ok", []),
}
RARE = ("segfault", "exit", "killed", "raises", "forks")
"""Faults that processes/test_team.py has with processes without torch, and a second way to die by a signal."""
USUAL = tuple(name for name in FAULTS if name not in RARE)
Wreck = tuple[Run, list[Measurement]]
"""A run over faults, and what its observer was told of."""


@pytest.fixture
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the memory can do needs no processes."""
    _know_limits(monkeypatch)


def _know_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    point = StreamPoint(read=2**20, written=2**20, seconds=1e-4, way="memcpy", is_copy=True)
    monkeypatch.setattr(runner, "_limits", lambda *_, **__: Limits((point,), end=(point,)))


class LateOnce:
    """The clock of a team, and what the team waits by: an hour passes as soon as the endless case is at work."""

    def __init__(self, home: Path) -> None:
        self._home, self._ahead = home, 0

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def select(self, *asked: Any) -> Any:
        if any("/endless/" in case for case, _ in log(self._home)):
            self._ahead = 3600
        return select.select(*asked)


@pytest.fixture(scope="module")
def run_faults(
    tmp_path_factory: pytest.TempPathFactory, job: MakeJob, run_jobs: RunJobs, make_watcher: Callable[[], Any]
) -> Callable[..., Wreck]:
    """run_faults(faults, before, after): a run over faults, each followed by a case in order."""

    def run(faults: Sequence[str], before: Sequence[Job] = (), after: Sequence[Job] = ()) -> Wreck:
        pairs = [(job(variant, n=n), job("fine", n=n)) for n, variant in enumerate(faults, 4096)]
        watcher, home = make_watcher(), tmp_path_factory.mktemp("wreck")
        with pytest.MonkeyPatch.context() as patch:
            _know_limits(patch)
            patch.setenv("FAULT_LOG", str(home / "log"))
            patch.setenv("WORLD_SIZE", "64")  # as a cluster's launcher may have left it
            patch.setattr(team, "time", late := LateOnce(home))
            patch.setattr(team, "select", late)
            return run_jobs(home / "run", *before, *chain(*pairs), *after, watcher=watcher), watcher.ended

    return run


@pytest.fixture(scope="module")
def wreck(job: MakeJob, run_faults: Callable[..., Wreck]) -> Wreck:
    """A run over the usual faults. The first fault is a fault of one of two processes."""
    together = job("gloo", op="rank_sum"), job("deserted", op="rank_sum"), job("fine", n=4095)
    return run_faults(USUAL, together, (job("slow"), job("fine", op="lie")))


@pytest.fixture(scope="module")
def rare_wreck(run_faults: Callable[..., Wreck]) -> Wreck:
    return run_faults(RARE)


@pytest.mark.parametrize("variant", [*USUAL, *map(rare, RARE)])
def test_a_fault_costs_its_own_case_alone(request: pytest.FixtureRequest, variant: str) -> None:
    run, _ = request.getfixturevalue("rare_wreck" if variant in RARE else "wreck")
    [faulty] = [m for m in run.measurements if m.case.variant == variant]
    after = run.measurements[run.measurements.index(faulty) + 1]
    status, phrases = FAULTS[variant]
    assert faulty.status == status, faulty.error
    assert [phrase for phrase in phrases if phrase not in (faulty.error or "")] == []
    assert (faulty.time is not None) == (status == "ok")
    assert (after.case.variant, after.status) == ("fine", "ok"), after.error
    assert after.time


def test_an_error_is_short_enough_to_print(wreck: Wreck) -> None:
    assert max(len((m.error or "").splitlines()) for m in wreck[0].measurements if m.case.world == 1) <= 21


def test_every_case_is_stored_in_order_and_reported_once(wreck: Wreck) -> None:
    run, ended = wreck
    assert len(run.measurements) == 3 + 2 * len(USUAL) + 2
    assert run.measurements == tuple(ended)


def test_the_header_tells_of_machine_limits_and_command(wreck: Wreck) -> None:
    header = wreck[0].header
    assert header.machine.kind == "cpu"
    assert header.finished
    assert header.limits
    assert header.limits.peak
    assert header.limits.end
    assert header.command == ("harness", "run", "test")
    assert len(header.plan) == 64


def test_more_than_the_memory_can_do_is_warned_of_on_a_processor(wreck: Wreck) -> None:
    *_, slow, lie = wreck[0].measurements
    [warning] = [w for w in lie.warnings if w.code == "above-ceiling"]
    assert "of the ceiling" in warning.message
    assert "work is counted wrong" in warning.advice
    assert "above-ceiling" not in [w.code for w in slow.warnings]


@pytest.mark.parametrize(
    ("share", "status", "warned"), [(1.019, "ok", 0), (1.021, "ok", 1), (1.199, "ok", 1), (1.201, "implausible", 0)]
)
def test_much_more_than_a_gpu_can_do_is_no_time(wreck, monkeypatch, share, status, warned) -> None:
    *_, slow, _ = wreck[0].measurements
    slow = replace(slow, case=replace(slow.case, device="cuda"))
    monkeypatch.setitem(metrics.METRICS, "of_ceiling", replace(metrics.METRICS["of_ceiling"], value=lambda _: share))
    found = runner.judged(slow, wreck[0].header.limits)
    assert (found.status, found.time is None) == (status, status != "ok")
    assert [w.code for w in found.warnings if w.code == "above-ceiling"] == ["above-ceiling"] * warned


def test_two_processes_measure_one_case_together(wreck: Wreck) -> None:
    together, deserted, alone, *_ = wreck[0].measurements
    statuses = [m.status for m in (together, deserted, alone)]
    assert statuses == ["ok", "crashed", "ok"], (together.error, deserted.error, alone.error)
    assert together.time
    assert "rank 1: killed by signal SIGABRT" in str(deserted.error)
    assert alone.time


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a run of jobs in a process of its own, into tmp_path/run."""
    monkeypatch.setenv("FAULT_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FAULT_GATE", str(tmp_path / "gate"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    started: list[subprocess.Popen[str]] = []

    def start(*jobs: Job, largest: int = -1) -> subprocess.Popen[str]:
        command = [sys.executable, str(ROOT / "tests" / "drive.py"), str(tmp_path / "run"), str(largest)]
        process = subprocess.Popen([*command, *map(store.dump, jobs)], stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def log(tmp_path: Path) -> list[tuple[str, int]]:
    """(case id, process id) of each case that a worker prepared."""
    path = tmp_path / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(case, int(pid)) for case, pid in map(str.split, lines)]


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.mark.slow  # cli/test_runs_ended.py stops and resumes a run, processes/test_ending.py has that nothing goes on
@pytest.mark.usefixtures("known_limits")
@pytest.mark.cold
def test_a_killed_parent_takes_its_worker_along_and_is_resumed(
    tmp_path: Path,
    job: MakeJob,
    run_jobs: RunJobs,
    drive: Callable[..., subprocess.Popen[str]],
    watcher: Any,
    watched: Callable[[int], Callable[..., bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [job("fine"), job("waits"), job("fine", n=8192)]
    parent = drive(*jobs)
    wait_until(lambda: len(log(tmp_path)) == 2)
    parent.kill()
    worker = log(tmp_path)[1][1]
    assert watched(worker)(60)

    assert [m.case for m in store.load(tmp_path / "run").measurements] == [jobs[0].case]
    (tmp_path / "gate").touch()
    run = run_jobs(tmp_path / "run", *jobs, resume=True, watcher=watcher)
    assert [(m.case, m.status) for m in run.measurements] == [(j.case, "ok") for j in jobs]
    assert [case for case, _ in log(tmp_path)] == [jobs[i].case.id for i in (0, 1, 1, 2)]
    assert run.header.finished
    assert watcher.plan == (3, 1)
    monkeypatch.setattr("harness.processes.team.Rank", None)
    assert run_jobs(tmp_path / "run", *jobs, resume=True, watcher=watcher) == run
    assert watcher.plan == (3, 3)


@pytest.mark.slow  # store/test_folder.py has the second run, cli/test_runs_ended.py Ctrl-C in a command
@pytest.mark.cold
def test_a_second_run_is_refused_and_ctrl_c_leaves_a_valid_run_and_no_worker(
    tmp_path: Path,
    job: MakeJob,
    run_jobs: RunJobs,
    drive: Callable[..., subprocess.Popen[str]],
    watched: Callable[[int], Callable[..., bool]],
) -> None:
    jobs = [job("fine"), job("waits")]
    parent = drive(*jobs)
    wait_until(lambda: len(log(tmp_path)) == 2)
    for resume in (False, True):
        with pytest.raises(UsageError, match="another run is being written there"):
            run_jobs(tmp_path / "run", *jobs, resume=resume)
    assert parent.poll() is None
    parent.send_signal(signal.SIGINT)
    _, stderr = parent.communicate(timeout=60)
    assert parent.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in stderr
    assert watched(log(tmp_path)[1][1])()
    run = store.load(tmp_path / "run")
    assert run.header.sealed
    assert [m.status for m in run.measurements] == ["ok"]
    assert run.header.finished is None
    assert run.header.limits
    assert run.losses == ()
    with pytest.raises(UsageError, match="holds a run already"):
        run_jobs(tmp_path / "run", *jobs)
    assert len(log(tmp_path)) == 2


@pytest.mark.slow  # store/test_folder.py has the full disk, tests of cli/ that a run is resumed
@pytest.mark.usefixtures("known_limits")
def test_a_disk_that_fills_up_keeps_what_was_measured(
    tmp_path: Path, job: MakeJob, run_jobs: RunJobs, drive: Callable[..., subprocess.Popen[str]]
) -> None:
    jobs = [job("fine", n=4096 + i) for i in range(12)]
    parent = drive(*jobs, largest=8000)
    _, stderr = parent.communicate(timeout=60)
    assert parent.returncode == 1
    assert "results.jsonl: can't be written: File too large" in stderr
    before = store.load(tmp_path / "run")
    assert 0 < len(before.measurements) < 12
    assert len(before.losses) == 1
    run = run_jobs(tmp_path / "run", *jobs, resume=True)
    assert [m.case for m in run.measurements] == [j.case for j in jobs]
    assert run.losses == before.losses
    assert len(log(tmp_path)) == 13


def test_resume_refuses_another_run_and_says_in_what_it_differs(
    tmp_path: Path, job: MakeJob, run_jobs: RunJobs, header: Header
) -> None:
    folder = tmp_path / "run"
    store.create(folder, header).close()
    with pytest.raises(UsageError, match="can't be resumed") as caught:
        run_jobs(folder, job("fine"), resume=True, repeat=3)
    here = devices.kinds()["cpu"].machine().name
    assert caught.value.message.removeprefix(f"{folder}: can't be resumed: ").split("; ") == [
        f"the machine was A processor, this is {here}",
        "the cases or their timing differ: there were 2, now there are 1",
        "--repeat was 1, now it is 3",
    ]
    assert store.load(folder).header == header


@dataclass(frozen=True)
class Repeated:
    """A run of two jobs, each measured twice: how it is asked for, what it found, and where its log lies."""

    jobs: list[Job]
    run: Callable[..., Run]
    found: Run
    home: Path


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory, job: MakeJob, run_jobs: RunJobs) -> Iterator[Repeated]:
    home, ops = tmp_path_factory.mktemp("repeated"), Catalogue([FAULTY])
    jobs = [job("fine"), job("fine", n=8192)]
    again = partial(run_jobs, home / "run", *jobs, repeat=2)
    with pytest.MonkeyPatch.context() as patch:
        _know_limits(patch)
        patch.setenv("FAULT_LOG", str(home / "log"))
        found = again(ops={"fault": ops["fault"]})
        yield Repeated(jobs, lambda **options: again(ops={"fault": ops["fault"]}, **options), found, home)


def test_repeating_takes_a_fresh_process_each_time_and_goes_back_the_way_it_came(repeated: Repeated) -> None:
    found = [(m.case.id, m.process) for m in repeated.found.measurements]
    assert found == [(repeated.jobs[number].case.id, process) for number, process in ((0, 0), (1, 0), (1, 1), (0, 1))]
    first, also_first, second, also_second = (pid for _, pid in log(repeated.home))
    assert first == also_first != second == also_second


def test_resume_refuses_results_of_other_code_and_names_the_op(
    repeated: Repeated, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {m.code for m in repeated.found.measurements} == {source.code("fault", FAULTY)}
    # What makes no number, such as a table, changes nothing: the run goes on.
    assert repeated.run(resume=True) == repeated.found
    monkeypatch.setattr(source, "code", lambda op, *_, **__: Code(op, "other"))
    with pytest.raises(UsageError, match="the code that measured fault has changed"):
        repeated.run(resume=True)


def test_resuming_nothing_is_refused(tmp_path: Path, job: MakeJob, run_jobs: RunJobs) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        run_jobs(tmp_path / "run", job("fine"), resume=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # processes/test_supervisor.py has the second start, processes/test_team.py the last words
def test_a_worker_that_cannot_start_ends_the_run_with_its_last_words(
    tmp_path: Path, job: MakeJob, run_jobs: RunJobs
) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "import os, sys, pathlib\n"
        f"pathlib.Path({str(tmp_path / 'starts')!r}).open('a').write('x')\n"
        "sys.stderr.write('libfrob.so: undefined symbol\\n'); sys.stderr.flush(); os._exit(5)\n"
    )
    with pytest.raises(MachineError, match=r"doesn't start: ended with exit status 5\nlibfrob\.so: undefined symbol"):
        run_jobs(tmp_path / "run", job("fine"), plugins=(plugin,))
    assert (tmp_path / "starts").read_text() == "xx"


@pytest.mark.slow  # processes/test_supervisor.py has that it is raised, processes/test_child.py that it is reported
def test_what_a_worker_reports_of_a_plugin_is_raised_as_it_is(tmp_path: Path, job: MakeJob, run_jobs: RunJobs) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("1 / 0\n")
    with pytest.raises(UsageError, match=r"mine\.py: ZeroDivisionError: division by zero") as caught:
        run_jobs(tmp_path / "run", job("fine"), plugins=(plugin,))
    assert caught.value.advice == "the plug-in raised while being loaded"


@pytest.mark.slow  # test_layers.py has what each command loads
def test_the_parent_never_imports_torch() -> None:
    script = "import sys; from harness import runner; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


@pytest.mark.gpu
@pytest.mark.alone
def test_faults_on_the_device_cost_their_own_case_alone(tmp_path: Path, job: MakeJob, run_jobs: RunJobs) -> None:
    def fault(variant: str, n: int) -> Job:
        return job(variant, op="cuda_fault", n=n, timeout=20.0 if variant == "endless" else 120.0, device="cuda")

    jobs = []
    for n, variant in enumerate(("out_of_bounds", "endless", "greedy"), 2**20):
        jobs += [fault(variant, n), fault("fine", n)]
    run = run_jobs(tmp_path / "run", *jobs, device="cuda")
    statuses = [m.status for m in run.measurements]
    assert statuses == ["crashed", "ok", "timeout", "ok", "out_of_memory", "ok"], [m.error for m in run.measurements]
    assert "illegal" in str(run.measurements[0].error).lower()
