"""How `harness run` ends: by a failed case, without a time, by a signal."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from harness import runner, store
from harness.cli import app
from harness.cli.run import _judge as judge
from harness.errors import Exit
from harness.model import Header, Job, Limits, Measurement, Run, StreamPoint
from tests.cli.fault_runs import FAULTS, HARNESS, LIMITED, write_scenario

Harness = Callable[..., subprocess.CompletedProcess[str]]
Environment = Callable[..., dict[str, str]]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


class Pretending:
    """Stands for the processes that measure: `abort` crashes, and `waits` has a time once the file `gate` exists.

    Until then the user presses Ctrl-C.
    """

    gate = Path()

    def __init__(self, *_: object, **__: object) -> None: ...

    def limits(self, *_: object) -> Limits:
        return Limits((StreamPoint(read=2**20, written=2**20, seconds=1e-4, way="memcpy", is_copy=True),))

    limits_again = limits

    def measure(self, job: Job, process: int = 0) -> Measurement:
        if job.case.variant == "abort":
            return Measurement(job.case, "crashed", error="killed by signal SIGABRT", process=process)
        if job.case.variant == "waits" and not self.gate.exists():
            signal.raise_signal(signal.SIGINT)
        return Measurement(job.case, "ok", samples=(1e-3,) * 5, process=process)

    def restart(self) -> None: ...

    def __enter__(self) -> Pretending:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def pretended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs in this process measure nothing, in the folder; the names of folders that reports are written of."""
    reports: list[str] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(runner, "Workers", Pretending)
    monkeypatch.setattr("harness.report.apart.Apart.write", lambda report: reports.append(report.folder.name))
    return reports


def test_failed_cases_end_with_5_and_have_a_report(pretended: list[str], folder: Path) -> None:
    scenario = write_scenario(folder / "failing.yaml", [4096], ["fine", "abort"])
    done = invoke("run", scenario, "--device=cpu", FAULTS)
    assert done.exit_code == 5
    assert done.stderr.splitlines()[-1] == "1 of 2 cases failed"
    assert "crashed" in done.stdout
    [report] = pretended
    assert report.startswith("failing-cpu-")


@pytest.mark.slow  # the test above has its code and its report, test_runner.py cases that crash
def test_failed_cases_end_with_5_and_leave_a_report(harness: Harness, folder: Path) -> None:
    scenario = write_scenario(folder / "faulty.yaml", [4096], ["fine", "abort"])
    done = harness("run", scenario, "--device=cpu", *LIMITED)
    assert done.returncode == 5
    assert done.stderr.splitlines()[-1] == "1 of 2 cases failed"
    assert "crashed" in done.stdout
    [report] = (folder / "reports").glob("faulty-cpu-*/report.md")
    assert "crashed" in report.read_text()


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        (["ok", "unsupported"], ""),
        (["unsupported", "out_of_memory"], "no case was timed\n"),
        ([], "no case was timed\n"),
        (["unsupported", "wrong"], "1 of 2 cases failed\n"),
    ],
)
def test_a_run_that_timed_nothing_is_no_success(
    statuses: list[str], said: str, header: Header, job: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    found = tuple(
        Measurement(job(f"v{i}").case, status, samples=(1e-3,) if status == "ok" else ())
        for i, status in enumerate(statuses)
    )
    with pytest.raises(typer.Exit) if said else nullcontext() as caught:
        judge(Run(header, found))
    assert capsys.readouterr().err == said
    assert not said or caught.value.exit_code == Exit.CASES_FAILED


def test_ctrl_c_prints_what_there_is_and_how_to_go_on(
    pretended: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = write_scenario(folder / "held.yaml", [4096, 8192], ["fine", "waits"])
    monkeypatch.setattr(Pretending, "gate", folder / "gate")
    command = ["run", str(scenario), "--device=cpu", FAULTS, "--output=held"]
    monkeypatch.setattr("sys.argv", ["harness", *command])
    stopped = invoke(*command)
    assert stopped.exit_code == 130
    assert "N4096" in stopped.stdout
    assert "fine" in stopped.stdout
    *_, last, again = stopped.stderr.splitlines()
    assert last == "stopped after 1 of 4 measurements; to continue:"
    assert shlex.split(again) == ["harness", *command, "--resume"]
    assert pretended == []
    (folder / "gate").touch()
    done = invoke(*shlex.split(again)[1:])
    assert done.exit_code == 0, done.stderr
    assert len(store.load(folder / "held").measurements) == 4
    assert "[2/4]" in done.stderr
    assert "[1/4]" not in done.stderr
    assert pretended == ["held"]


# The test above has what is printed, processes/test_ending.py that each signal is heard and no process goes on.
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_prints_what_there_is_and_how_to_go_on(
    folder: Path, harness: Harness, environment: Environment, number: signal.Signals
) -> None:
    stopped = f"stopped-{number}"
    scenario = write_scenario(folder / "waiting.yaml", [4096, 8192], ["fine", "waits"])
    gate = folder / stopped / "gate"
    command = ["run", str(scenario), "--device=cpu", *LIMITED, f"--output={stopped}"]
    process = subprocess.Popen(
        [*HARNESS, *command],
        cwd=folder,
        env=environment(FAULT_GATE=str(gate)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    results = folder / stopped / "results.jsonl"
    while not (results.exists() and results.stat().st_size):
        assert process.poll() is None
        time.sleep(0.05)
    # As a terminal does it: to every process of the group.
    os.killpg(process.pid, number)
    printed, told = process.communicate(timeout=60)
    assert process.returncode == 128 + number, told
    assert "N4096" in printed
    assert "fine" in printed
    *_, last, again = told.splitlines()
    assert last == "stopped after 1 of 4 measurements; to continue:"
    assert shlex.split(again) == ["harness", *command, "--resume"]
    assert "Traceback" not in told
    gate.touch()
    done = harness(*shlex.split(again)[1:], FAULT_GATE=str(gate))
    assert done.returncode == 0, done.stderr
    assert len(store.load(folder / stopped).measurements) == 4
    assert "[2/4]" in done.stderr
    assert "[1/4]" not in done.stderr
