"""Runs as a user meets them: what the command line prints, where, and the exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from harness import runner, steadiness, store
from harness.cli import app
from harness.cli.progress import follow
from harness.cli.resuming import spelled as as_spelled
from harness.devices.cpu import Cpu
from harness.model import Job, Limits, Machine, Measurement, StreamPoint
from harness.steadiness import Steadiness
from tests.cli.fault_runs import FAULTS, HARNESS, LIMITED, PLUGINS, write_scenario
from tests.one_test import one_test

COLOUR = r"\x1b\[[\d;]*3[0-8]"

Harness = Callable[..., subprocess.CompletedProcess[str]]
Environment = Callable[..., dict[str, str]]


def invoke(*arguments: object) -> Result:
    """Run a command in this process, for commands that load no plug-ins."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def finished(harness: Harness, folder: Path) -> subprocess.CompletedProcess[str]:
    """A run of two cases into `one`, with its results as JSON on standard output."""
    scenario = write_scenario(folder / "copies.yaml", [4096, 8192], ["fine"])
    return harness("run", scenario, "--device=cpu", *PLUGINS, "--output=one", "--json")


def test_peak_prints_the_limits_and_leaves_them_in_a_folder(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [
        StreamPoint(read=2**19 * scale, written=2**19 * scale, seconds=1e-4 * scale, way="memcpy", is_copy=True)
        for scale in (1, 4)
    ]
    monkeypatch.setattr(runner, "measure_limits", lambda *_: (machine, Limits(tuple(points))))
    monkeypatch.setattr(steadiness, "watch", lambda _seconds: Steadiness(0.0006, 0.0012))
    result = invoke("peak", "--device=cpu", "--output", tmp_path / "peak")
    assert result.exit_code == 0, result.output
    # 1 MiB in 100 us, twice.
    assert "10.5 GB/s" in result.stdout
    assert "The host does the same work in 600 us to 1.20 ms: something shares its cores" in result.stdout
    assert {"peak.md", "peak.svg"} <= {path.name for path in (tmp_path / "peak").iterdir()}
    assert str(tmp_path / "peak" / "peak.md") in result.stdout.splitlines()


def test_a_dry_run_measures_nothing_and_shows_bytes_and_what_it_would_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "empty"))
    done = invoke("run", "quick", "--device=cpu", "--dry-run", "--repeat=3")
    assert done.exit_code == 0, done.stderr
    [row] = [line.split() for line in done.stdout.splitlines() if line.startswith("prelu/eager/float32/N8-C64-H56-W56")]
    # x and alpha are read, y is written: 4 * 8 * 64 * 56 * 56 bytes and 4 * 64 more.
    assert row[1:] == ["6.423", "MB", "6.423", "MB", "44.96", "MB"]
    assert re.search(r"^12 measurements on .*, about 0:0\d:\d\d$", done.stdout, re.MULTILINE)
    [left_out] = re.findall(r"left out on cpu: (.*?) \(need cuda\)", " ".join(done.stdout.split()))
    assert left_out.startswith("prelu/compile_autotune, naive, ")
    assert left_out.endswith(", tuned")
    assert "run 'harness peak'" in done.stdout
    assert not (tmp_path / "reports").exists()


def test_a_run_prints_json_alone_on_standard_output(finished: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert finished.returncode == 0, finished.stderr
    printed = json.loads(finished.stdout)
    assert printed["header"]["jobs"] == 2
    assert [row["case"] for row in printed["results"]] == ["fault/fine/float32/N4096", "fault/fine/float32/N8192"]
    run = store.load(folder / "one")
    assert [row["time"] for row in printed["results"]] == [result.time for result in run.results]
    with (folder / "one" / "results.csv").open() as file:
        assert list(printed["results"][0]) == csv.DictReader(file).fieldnames


def test_a_run_reports_progress_by_the_line_and_where_the_report_lies(
    finished: subprocess.CompletedProcess[str], folder: Path
) -> None:
    lines = finished.stderr.splitlines()
    [line] = [line for line in lines if line.startswith("[2/2] ")]
    assert re.match(r"\[2/2\] fault/fine/float32/N8192  [\d.]+ [mun]?s  [\d.]+ [GM]B/s  [\d.]+% of ceiling", line)
    assert lines[-1] == "report: one/"
    assert {"run.json", "results.jsonl", "results.csv", "report.md"} <= {
        path.name for path in (folder / "one").iterdir()
    }
    assert "\x1b" not in finished.stderr


def test_the_command_is_kept_with_the_run(finished: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert finished.returncode == 0
    command = store.load(folder / "one").header.command
    assert command[:2] == ("harness", "run")
    assert command[-2:] == ("--output=one", "--json")


def test_a_folder_that_holds_a_run_is_refused_and_resumed(
    finished: subprocess.CompletedProcess[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finished.returncode == 0
    monkeypatch.chdir(folder)
    written: list[Path] = []
    monkeypatch.setattr("harness.report.apart.Apart.write", lambda report: written.append(report.folder))
    arguments = ["run", "copies.yaml", "--device=cpu", FAULTS, "--output=one"]
    refused = invoke(*arguments)
    assert refused.exit_code == 2
    assert "go on with it by --resume" in refused.stderr
    before = (folder / "one" / "results.jsonl").read_bytes()
    resumed = invoke(*arguments, "--resume", "--json=results.json")
    assert resumed.exit_code == 0, resumed.stderr
    assert (folder / "one" / "results.jsonl").read_bytes() == before
    assert json.loads((folder / "results.json").read_text())["results"] == json.loads(finished.stdout)["results"]
    assert written == [Path("one")]
    another = invoke(*arguments, "--resume", "--only=*/N4096")
    assert another.exit_code == 2
    assert "the cases or their timing differ: only stored " in another.stderr


def test_a_dry_run_predicts_what_does_not_fit(tmp_path: Path) -> None:
    scenario = tmp_path / "huge.yaml"
    scenario.write_text("title: Huge\nop: copy\nshapes: [{N: 2**50}]\ndtypes: [float32]\nvariants: [eager]\n")
    done = invoke("run", scenario, "--device=cpu", "--dry-run")
    assert done.exit_code == 0, done.output
    assert re.search(r"N1125899906842624 .* 31525 TB, out of memory$", done.stdout, re.MULTILINE)


def test_a_dry_run_needs_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "missing", lambda self: "it was taken away")
    monkeypatch.setattr(Cpu, "machine", lambda self: pytest.fail("it was asked what it is"))
    scenario = tmp_path / "huge.yaml"
    scenario.write_text("title: Huge\nop: copy\nshapes: [{N: 2**50}]\ndtypes: [float32]\nvariants: [eager]\n")
    assert "'cpu' can't be used: it was taken away" in invoke("run", scenario, "--device=cpu").stderr
    done = invoke("run", scenario, "--device=cpu", "--dry-run")
    assert done.exit_code == 0, done.stderr
    assert "1 measurement on a cpu device, about" in done.stdout
    assert "No such device can be used here: it was taken away" in done.stdout
    assert "out of memory" not in done.stdout
    assert "harness peak" not in done.stdout


def test_a_dry_run_tells_of_cases_that_need_more_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "count", 2)
    scenario = tmp_path / "sums.yaml"
    scenario.write_text("title: Sums\nop: all_reduce\nshapes: [{N: 8}]\ndtypes: [float32]\nworld: [1, 2, 4, 8]\n")
    done = invoke("run", scenario, "--device=cpu", "--dry-run")
    assert done.exit_code == 0, done.output
    told = [line for line in done.stdout.splitlines() if "can't run here" in line]
    assert told == [f"1 case can't run here: needs {n} devices, this machine has 2" for n in (4, 8)]


def test_a_dry_run_knows_the_limits_that_were_measured(
    finished: subprocess.CompletedProcess[str], folder: Path
) -> None:
    assert finished.returncode == 0
    done = invoke("run", folder / "copies.yaml", "--device=cpu", FAULTS, "--dry-run")
    assert re.search(r"^fault/fine/float32/N4096 +16.38 kB +16.38 kB +[\d.]+ [nu]s ", done.stdout, re.MULTILINE)
    assert "harness peak" not in done.stdout


def test_report_writes_again_what_was_stored_and_names_what_is_lost(
    finished: subprocess.CompletedProcess[str], folder: Path, tmp_path: Path
) -> None:
    assert finished.returncode == 0
    for name in ("run.json", "results.jsonl"):
        shutil.copy(folder / "one" / name, tmp_path)
    results = tmp_path / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-20])
    result = invoke("report", tmp_path, "--format=csv")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [str(tmp_path / "results.csv")]
    assert result.stderr == f"warning: {results}:2: one result is lost: the line is cut short\n"
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 2


@pytest.mark.slow  # test_runs_resumed.py has what is told, a test above what is resumed
def test_a_run_is_gone_on_with_by_the_command_that_is_told(
    finished: subprocess.CompletedProcess[str], harness: Harness, folder: Path
) -> None:
    """Its scenario is a file, so the user names it again, and the plug-ins as well."""
    assert finished.returncode == 0
    before = (folder / "one" / "results.jsonl").read_bytes()
    refused = harness("run", "--resume", "one", "--quiet", "--json=again.json")
    assert refused.returncode == 2
    told, advice = refused.stderr.splitlines()
    assert told.startswith(f"error: one: the run was of {folder / 'copies.yaml'}, and a stored run doesn't say which")
    command = shlex.split(advice[advice.index("harness run") :])
    done = harness(*command[1:], "--quiet", "--json=again.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "report: one/\n", "")
    assert (folder / "one" / "results.jsonl").read_bytes() == before
    assert json.loads((folder / "again.json").read_text())["results"] == json.loads(finished.stdout)["results"]


@one_test(
    ("words", "spelled"),
    [
        (["quick", "--json"], ["quick", "--json=stdout"]),
        (["--json", "a.json", "quick"], ["--json", "a.json", "quick"]),
        (["quick", "--output", "x", "--resume"], ["quick", "--output", "x", "--resume="]),
        (["--output=x", "--resume", "quick"], ["--output=x", "--resume=", "quick"]),
        (["--resume", "x", "--quiet"], ["--resume", "x", "--quiet"]),
        (["--resume", "--quiet"], ["--resume=", "--quiet"]),
        (["--resume"], ["--resume="]),
    ],
)
def test_options_may_stand_without_a_value(words: list[str], spelled: list[str]) -> None:
    assert as_spelled(words) == spelled


def test_an_unknown_format_is_refused(finished: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert finished.returncode == 0
    result = invoke("report", folder / "one", "--format=cvs")
    assert result.exit_code == 2
    assert "csv" in result.stderr


def test_a_run_is_no_different_from_itself(finished: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert finished.returncode == 0
    result = invoke("compare", folder / "one", folder / "one")
    assert result.exit_code == 0
    assert result.stdout.count("~") >= 2
    assert "faster" not in result.stdout


def test_a_reader_that_leaves_early_is_no_error(environment: Environment) -> None:
    process = subprocess.Popen(
        [*HARNESS, "list"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=30) == 128 + signal.SIGPIPE
    process.stderr.close()


def on_a_terminal(command: list[str], folder: Path, variables: dict[str, str]) -> str:
    """What a command draws on a terminal of 100 columns."""
    main, terminal = pty.openpty()
    variables |= {"TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(command, cwd=folder, env=variables, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    drawn = b""
    while True:
        try:
            drawn += (piece := os.read(main, 65536))
        except OSError:  # Linux: the other end is closed
            break
        if not piece:
            break
    process.wait(timeout=30)
    os.close(main)
    return drawn.decode()


@pytest.mark.slow  # what a bar draws, the next tests and test_progress.py have, on a console in memory
def test_a_terminal_shows_what_is_left_and_no_colour_where_none_is_wanted(
    folder: Path, environment: Environment
) -> None:
    write_scenario(folder / "drawn.yaml", [4096], ["fine"])
    # Long enough to be drawn, which happens ten times a second.
    slowly = ["--max-time=0.5", "--precision=0.0001%"]
    command = [*HARNESS, "run", "drawn.yaml", "--device=cpu", *LIMITED, *slowly, "--output=drawn"]
    drawn = on_a_terminal(command, folder, environment(NO_COLOR="1"))
    assert re.search(r"0/1 .*0:00:\d\d ~0:00:\d\d left +fault/fine/float32/N4096", drawn)
    assert re.search(r"\[1/1\] fault/fine/float32/N4096  [\d.]+ [mun]?s  ", drawn)
    assert "1 measurement, 0:0" in drawn
    assert "report: drawn/" in drawn
    assert not re.search(COLOUR, drawn)


def test_a_bar_has_colour_otherwise(monkeypatch: pytest.MonkeyPatch, job: Callable[..., Job]) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    drawn = io.StringIO()
    with follow(Console(file=drawn, force_terminal=True, color_system="standard", width=100)) as bar:
        bar.planned(total=4, done=1)
        bar.started(job("fine"), 2)
    assert "1/4" in drawn.getvalue()
    assert "fault/fine/float32/N4096 (process 3)" in drawn.getvalue()
    assert re.search(COLOUR, drawn.getvalue())


def test_finished_cases_stay_above_the_bar(job: Callable[..., Job]) -> None:
    drawn = io.StringIO()
    with follow(Console(file=drawn, force_terminal=True, width=100, highlight=False)) as bar:
        bar.planned(total=2, done=0)
        bar.finished(Measurement(job("abort").case, "crashed", error="killed by signal SIGABRT\nand more"))
        bar.finished(Measurement(job("fine").case, "ok", samples=(1e-6,)))
    assert "[1/2] fault/abort/float32/N4096 crashed: killed by signal SIGABRT\n" in drawn.getvalue()
    assert "[2/2] fault/fine/float32/N4096  1.000 us\n" in drawn.getvalue()
