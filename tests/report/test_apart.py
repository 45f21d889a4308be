"""The process that writes a report, started when it is asked for, and ahead."""

from __future__ import annotations

import importlib
import io
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.processes import python
from harness.report import apart
from harness.report.apart import Apart


@pytest.fixture
def printing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What is started writes what it was started as, and the line that it got, into this file."""
    file = tmp_path / "said"
    script = (
        f"import sys; line = sys.stdin.readline() if 'apart' in sys.argv[1] else 'at once'; "
        f"line and open({str(file)!r}, 'w').write(repr((sys.argv[1:], line))); sys.exit(len(line))"
    )
    monkeypatch.setattr(python, "command", lambda module, more: [sys.executable, "-Sc", script, module, *more])
    return file


ARGUMENTS = ["report", "mine", "--ops", "a.py", "--ops", "b.py"]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_process_that_is_started_ahead_writes_when_it_is_asked_to(printing: Path, ahead: bool) -> None:
    report = Apart(Path("mine"), (Path("a.py"), Path("b.py")))
    if ahead:
        report.begin()
    assert report.write() == (1 if ahead else len("at once"))
    expected = (["harness.report.apart", *ARGUMENTS], "\n") if ahead else (["harness", *ARGUMENTS], "at once")
    assert printing.read_text() == repr(expected)


def test_a_process_that_nobody_asks_ends_with_the_run_and_writes_nothing(printing: Path) -> None:
    report = Apart(Path("mine"))
    report.begin()
    process = report._begun
    assert process
    assert process.stdin
    process.stdin.close()  # as the end of the run's process does it
    assert process.wait(60) == 0
    assert not printing.exists()


@pytest.mark.parametrize("line", ["\n", ""])
def test_the_process_loads_libraries_waits_for_a_line_and_goes_on_as_the_command(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    done: list[object] = []

    def missing(name: str) -> None:
        done.append(name)
        raise ImportError(name)

    def noted(what: int, how: Callable[..., object] | int) -> None:
        done.append((what, how))

    monkeypatch.setattr(importlib, "import_module", missing)
    monkeypatch.setattr(signal, "signal", noted)
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: done.append(f"run {name}"))
    monkeypatch.setattr(sys, "stdin", io.StringIO(line))
    apart.main()
    waiting = [(signal.SIGINT, signal.SIG_IGN), "matplotlib.figure", "pandas"]
    assert done == waiting + ([(signal.SIGINT, signal.default_int_handler), "run harness"] if line else [])


@pytest.mark.slow  # the tests above have a process that writes when it is asked to
def test_a_report_that_was_begun_is_the_same(tmp_path: Path) -> None:
    report = Apart(tmp_path / "none")
    report.begin()
    assert (
        report.write()
        == subprocess.run(
            [sys.executable, "-P", "-m", "harness", "report", str(tmp_path / "none")], check=False, capture_output=True
        ).returncode
        == 2
    )
