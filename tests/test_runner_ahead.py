"""Where the processes of a run come from; nothing is measured here.

The next process loads torch while this one measures, where cores and devices allow it. On the host each process is
forked from one that has torch loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import devices, runner
from harness.devices.cpu import Cpu
from harness.model import Job, Limits, Measurement, Run
from harness.processes import python
from harness.processes.surroundings import Surroundings

MakeJob = Callable[..., Job]
RunJobs = Callable[..., Run]


class Remembering:
    """Measures nothing, and remembers what it was asked in which order."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def remembered(*_: object, compiler: bool = False, **__: object) -> Limits:
            self.asked.append(f"{name} with compiler" if compiler else name)
            return Limits()

        return remembered

    def measure(self, job: Job, process: int = 0) -> Measurement:
        self.asked.append(f"measure {process}")
        return Measurement(job.case, "unsupported", error="nobody measures it", process=process)

    def __enter__(self) -> Remembering:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("on_host", "cores", "world", "ahead"),
    [(False, 16, 1, True), (True, 16, 1, False), (False, 2, 1, False), (False, 16, 2, False)],
)
def test_a_next_process_starts_during_a_short_pass(
    tmp_path: Path,
    job: MakeJob,
    run_jobs: RunJobs,
    monkeypatch: pytest.MonkeyPatch,
    on_host: bool,
    cores: int,
    world: int,
    ahead: bool,
) -> None:
    machine = devices.kinds()["cpu"].machine()
    monkeypatch.setattr(Cpu, "machine", lambda _self: replace(machine, cpu_count=cores))
    monkeypatch.setattr(Cpu, "on_host", on_host)
    workers = Remembering()
    jobs = [replace(each, case=replace(each.case, world=world)) for each in (job("fine", n=4096), job("fine", n=4097))]
    run_jobs(tmp_path / "run", *jobs, repeat=2, workers=workers, before_end=lambda: workers.asked.append("report"))
    begin = ["begin_next"] if ahead else []
    report = ["report"] if ahead else []
    measured = [["restart", *begin, f"measure {number}", f"measure {number}"] for number in (0, 1)]
    assert workers.asked == [*begin, "limits", *measured[0], *measured[1], *report, "restart", "limits_again"]


def test_a_next_process_starts_a_few_cases_before_the_end_and_loads_a_compiler_that_its_cases_need(
    tmp_path: Path, job: MakeJob, run_jobs: RunJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = devices.kinds()["cpu"].machine()
    monkeypatch.setattr(Cpu, "machine", lambda _self: replace(machine, cpu_count=16))
    monkeypatch.setattr(Cpu, "on_host", False)
    workers = Remembering()
    jobs = [job("fine", n=4096 + number) for number in range(12)]
    compiled = replace(jobs[3], case=replace(jobs[3].case, variant="compile"))
    run_jobs(tmp_path / "run", *jobs[:3], compiled, *jobs[4:], repeat=2, workers=workers)
    passes = [
        ["restart", *[f"measure {number}"] * 4, begin, *[f"measure {number}"] * 8]
        for number, begin in enumerate(["begin_next with compiler", "begin_next"])
    ]
    assert workers.asked == ["begin_next with compiler", "limits", *passes[0], *passes[1], "restart", "limits_again"]


@pytest.mark.parametrize(("on_host", "world", "forked"), [(True, 1, ["nursery False"]), (False, 1, []), (True, 2, [])])
def test_processes_that_measure_the_host_are_forked(
    tmp_path: Path,
    job: MakeJob,
    run_jobs: RunJobs,
    monkeypatch: pytest.MonkeyPatch,
    on_host: bool,
    world: int,
    forked: list[str],
) -> None:
    monkeypatch.setattr(Cpu, "on_host", on_host)
    workers = forking(monkeypatch)
    one = job("fine", n=4096)
    run_jobs(tmp_path / "run", replace(one, case=replace(one.case, world=world)))
    assert [what for what in workers.asked if "nursery" in what] == forked


def test_each_pass_is_forked_from_a_process_of_its_own(
    tmp_path: Path, job: MakeJob, run_jobs: RunJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses of libraries move a time, so passes with the same addresses would agree more than times do."""
    workers = forking(monkeypatch)
    one = job("fine", n=4096)
    run_jobs(tmp_path / "run", replace(one, case=replace(one.case, variant="compile")), repeat=2)
    assert workers.asked == [
        "nursery True", "limits", "restart", "measure 0", "restart", "renew", "measure 1", "restart", "limits_again",
    ]  # fmt: skip


def forking(monkeypatch: pytest.MonkeyPatch) -> Remembering:
    """What stands for the workers of a run, and remembers also what happens to where they are forked from."""
    workers = Remembering()

    class Nursery:
        def __init__(self, root: Path, *, compiler: bool) -> None:
            assert root == python.own_root()
            workers.asked.append(f"nursery {compiler}")

        def renew(self) -> None:
            workers.asked.append("renew")

        def __enter__(self) -> Nursery:
            return self

        def __exit__(self, *_: object) -> None: ...

    def made(_device: str, _plugins: tuple[Path, ...], *, around: Surroundings | None) -> Remembering:
        assert isinstance(around.nursery if around else None, Nursery) is ("nursery" in " ".join(workers.asked))
        return workers

    monkeypatch.setattr(runner, "Nursery", Nursery)
    monkeypatch.setattr(runner, "Workers", made)
    return workers
