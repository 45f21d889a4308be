"""`harness profile`: cases of a stored run under a stand-in for a tool, imports, and what is refused."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from harness import devices, source, store
from harness.cli import profile, profile_cases, run
from harness.errors import MachineError, UsageError
from harness.model import Case, Header, Job, Measurement, Run, Timing
from harness.ops import Catalogue
from tests.profile.light import TARGET

STORED = Path(__file__).parents[2] / "reports" / "h200" / "ci"
TUNED = "dropout/tuned/float16/N67108864"
APP = typer.Typer(pretty_exceptions_enable=False)
APP.command(cls=profile.ProfileCommand)(profile.command)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stored run. Its cases run in a process that says how each ended, and does nothing else."""
    monkeypatch.setattr("harness.processes.python.command", lambda _, arguments: [*TARGET, *arguments])
    monkeypatch.setattr(run, "write_report", lambda folder, _: (folder / "report.md").write_text("rendered again"))
    monkeypatch.setattr(profile_cases, "refuse_another", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    copied = tmp_path / "mine"
    shutil.copytree(STORED, copied)
    return copied


def profiled(*arguments: object) -> Any:
    return CliRunner().invoke(APP, [*map(str, arguments)], catch_exceptions=True)


@pytest.mark.usefixtures("fake_ncu")
def test_what_the_tool_found_stands_in_the_run(folder: Path) -> None:
    done = profiled("ncu", "--run", folder, "--only", "dropout/*")
    assert done.exit_code == 0, done.output
    (attachment,) = store.load(folder).attachments
    assert (attachment.case, attachment.tool) == (TUNED, "ncu")
    assert dict(attachment.values)["read_bytes"] == 4096
    assert "copy_kernel" in done.output
    assert f"{TUNED}, by ncu" in done.output
    assert (folder / "report.md").read_text() == "rendered again"


@pytest.mark.usefixtures("fake_ncu")
def test_cases_that_fail_under_the_tool_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHT_WRONG", "tuned")
    done = profiled("ncu", "--run", folder, "--only", "dropout/*")
    assert done.exit_code == 5
    assert "1 of 1 cases failed under ncu" in done.output
    assert store.load(folder).attachments == ()


def test_a_case_may_take_as_long_as_its_scenario_allows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's folder doesn't say how long a case may take: a scenario of slow trainings allows more than usual."""
    slow = folder.parent / "slow.yaml"
    shape = "shapes: [{N: 33554432}]\ndtypes: [float32]\nvariants: [eager]\nbaseline: eager"
    slow.write_text(f"title: Slow\nshows: Slow\nop: copy\n{shape}\ntiming: {{timeout: 1234}}\n")
    given: list[Job] = []
    monkeypatch.setattr(profile, "_time", lambda *_, **__: 0)
    monkeypatch.setattr(profile, "_profile", lambda _tool, jobs, *_, **__: given.extend(jobs))
    eager = "copy/eager/float32/N33554432"
    done = profiled("torch", slow, "--output", folder, "--only", eager, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert [(job.case.id, job.timing.timeout) for job in given] == [(eager, 1234)]


@pytest.fixture
def measured(
    header: Header, measurement: Callable[[int], Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A run of this machine, in which one case was measured by the code that is here."""
    machine = devices.kinds()["cpu"].machine()
    op = Catalogue()["prelu"]
    assert op.file
    case = Case("prelu", "eager", "float32", (("N", 2), ("C", 3), ("H", 4), ("W", 5)), device="cpu")
    run = Run(
        replace(header, machine=machine),
        (replace(measurement(0), case=case, code=source.code("prelu", op.file)),),
    )
    monkeypatch.setattr(store, "load", lambda _: run)
    return tmp_path


def test_a_run_of_this_machine_and_code_is_profiled(measured: Path) -> None:
    profile_cases.refuse_another(measured, [Job(m.case) for m in store.load(measured).measurements], "cpu", ())


def test_a_run_of_another_machine_or_of_other_code_is_refused(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.load(measured)
    jobs = [Job(m.case) for m in run.measurements]
    other = replace(run, header=replace(run.header, machine=replace(run.header.machine, fingerprint="other")))
    monkeypatch.setattr(store, "load", lambda _: other)
    with pytest.raises(UsageError, match="is a run of another machine"):
        profile_cases.refuse_another(measured, jobs, "cpu", ())
    profile_cases.refuse_another(measured, jobs, "cpu", (), same_kind=True)
    third = replace(run.header.machine, devices=(replace(run.header.machine.device, name="another processor"),))
    monkeypatch.setattr(store, "load", lambda _: replace(run, header=replace(run.header, machine=third)))
    with pytest.raises(UsageError, match="is a run of another machine \\(another processor\\)"):
        profile_cases.refuse_another(measured, jobs, "cpu", (), same_kind=True)
    older = [replace(m, code=replace(m.code, digest="0" * 64)) for m in run.measurements if m.code]
    monkeypatch.setattr(store, "load", lambda _: replace(run, measurements=tuple(older)))
    with pytest.raises(UsageError, match="'prelu' was measured with other code"):
        profile_cases.refuse_another(measured, jobs, "cpu", ())


def test_a_case_of_a_run_may_take_as_long_as_it_took_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = store.load(folder)
    long = [
        replace(m, phases=(("compile", 700.0), ("check", 800.0))) if m.case.op == "dropout" else m
        for m in known.measurements
    ]
    again = [replace(m, process=1, phases=(("check", 1.0),)) for m in long]
    monkeypatch.setattr(store, "load", lambda _: replace(known, measurements=(*long, *again)))
    jobs, _ = profile_cases.of_run(folder, "ncu", only=["dropout/*", "relu_mask/*"], variants=None)
    assert {job.case.op: job.timing.timeout for job in jobs} == {"dropout": 1500.0, "relu_mask": Timing().timeout}


def test_cases_without_a_time_are_told(folder: Path) -> None:
    lines = (folder / "results.jsonl").read_text().splitlines()
    changed = [line.replace('"status": "ok"', '"status": "wrong"') if '"dropout"' in line else line for line in lines]
    (folder / "results.jsonl").write_text("\n".join(changed) + "\n")
    error = profiled("ncu", "--run", folder, "--only", "dropout/*").exception
    assert isinstance(error, UsageError)
    assert error.message.endswith("no case has a time")
    done = profiled("ncu", "--run", folder, "--only", "dropout/*", "--only", "relu_mask/*", "--print")
    assert "left out: 1 case without a time" in done.output


def test_a_tool_that_fails_after_its_cases_is_told(folder: Path, on_the_path: Callable[[str, str], Path]) -> None:
    run = f'for last; do :; done; {shlex.join(TARGET)} "$last"; echo "==ERROR== ERR_NVGPUCTRPERM"'
    on_the_path("ncu", f'case "$1" in --version) echo Version 2025.3;; *) {run};; esac')
    error = profiled("ncu", "--run", folder, "--only", "dropout/*").exception
    assert isinstance(error, MachineError)
    assert "doesn't let this user read counters" in error.message


@pytest.mark.usefixtures("fake_ncu")
def test_bytes_are_kept_if_the_second_run_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAILS", "details")
    done = profiled("ncu", "--run", folder, "--only", "dropout/*")
    assert done.exit_code == 5
    assert "warning: ncu: no luck today" in done.output
    (attachment,) = store.load(folder).attachments
    assert dict(attachment.values)["read_bytes"] == 4096
    assert "instructions" not in dict(attachment.kernels[0].values)


@pytest.mark.slow  # the next tests have files that were made elsewhere
@pytest.mark.usefixtures("fake_ncu")
def test_a_report_of_our_command_is_imported_by_its_request(folder: Path) -> None:
    profiled("ncu", "--run", folder, "--only", "dropout/*", "--only", "relu_mask/*")
    before = store.load(folder).attachments
    (folder / "attachments.jsonl").unlink()
    report = folder / "profile" / "ncu-1.details.ncu-rep"
    done = profiled("ncu", "--run", folder, "--only", "dropout/*", "--import", report)
    assert done.exit_code == 0, done.output
    # Only the case that was asked for, with the bytes of the other part.
    assert store.load(folder).attachments == tuple(found for found in before if found.case == TUNED)
    request = folder / "profile" / "ncu-1.request.json"
    request.unlink()
    error = profiled("ncu", "--run", folder, "--only", "dropout/*", "--import", report).exception
    assert isinstance(error, UsageError)
    assert "ncu-1.request.json, beside it" in error.advice


def test_print_runs_nothing(folder: Path) -> None:
    done = profiled("ncu", "--run", folder, "--only", "dropout/*", "--print")
    first, second = done.output.splitlines()
    assert first.startswith("env 'HARNESS_IMPORTS=")
    assert " ncu --profile-from-start off " in first
    assert "--section WarpStateStats" in second
    assert not (folder / "attachments.jsonl").exists()


def test_a_file_that_was_made_elsewhere_is_attached_to_the_case(folder: Path) -> None:
    page = folder / "a.csv"
    page.write_text(
        '"ID","Kernel Name","Grid Size","dram__bytes_read.sum"\n"","","","byte"\n"0","mine","(4, 1, 1)","5"\n'
    )
    done = profiled("ncu", "--run", folder, "--only", TUNED, "--import", page)
    assert done.exit_code == 0, done.output
    (attachment,) = store.load(folder).attachments
    assert (attachment.case, dict(attachment.values)) == (TUNED, {"kernels": 1, "read_bytes": 5})
    assert isinstance(profiled("ncu", "--run", folder, "--import", page).exception, UsageError)


def test_a_file_alone_is_shown(tmp_path: Path) -> None:
    page = tmp_path / "a.csv"
    rows = ['"ID","Kernel Name","Grid Size","dram__bytes_read.sum"', '"","","","byte"', '"0","mine","(4, 1, 1)","5e9"']
    page.write_text("\n".join(rows))
    done = profiled("ncu", "--import", page)
    assert done.exit_code == 0, done.output
    assert "a program, by ncu" in done.output
    assert "5.000 GB" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nuc", "quick"), "no tool is named 'nuc'"),
        (("ncu",), "name either scenarios or --run"),
        (("ncu", "quick", "--run", "mine"), "name either scenarios or --run"),
        (("ncu", "quick", "--import", "a.csv"), "--import takes a run"),
        (("ncu", "--run", "mine", "--only", "softmax/none/*"), "no case is like that"),
        (("ncu", "--run", "mine", "--output", "b"), "--output is the folder of a new run"),
        (("ncu", "--run", "mine", "--import", "a", "--print"), "--print and --import exclude each other"),
        (("torch", "quick", "--", "x.py"), "takes no options but --output"),
        (("torch", "--"), "no script of Python's"),
    ],
)
def test_what_can_not_be_done_is_said(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    assert folder.exists()
    error = profiled(*arguments).exception
    assert isinstance(error, UsageError)
    assert said in error.message


# ---- Several ranks of a program.


def test_a_folder_with_traces_of_ranks_is_one_answer(tmp_path: Path) -> None:
    from tests.profile.made_ranks import alike, write

    usual = alike()
    write(tmp_path, lambda rank, turn: usual(rank, turn) + 300 * (rank == 1), ranks=3)
    done = profiled("torch", "--import", tmp_path, "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "Rank 1 holds the other ranks up" in done.output
    assert "Rank 1 holds" in (tmp_path / "out" / "timeline.md").read_text()
    assert (tmp_path / "out" / "ranks.json.gz").is_file()
    for _ in range(2):  # what was written is no trace of a rank
        assert profiled("torch", "--import", tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ncu", "quick", "--ranks", "0"], "--ranks is for the tool torch"),
        (["torch", "quick", "--wait", "3"], "--wait and --active are for a program"),
        (["nsys", "--import", "."], "is a folder, which 'harness profile torch"),
        (["torch", "--import", ".", "--run", "."], "is a folder, which 'harness profile torch"),
        (["torch", "--import", "."], "has 0 traces"),
        (["torch", "--ranks", "0", "--", "python", "train.py"], "this program is one process"),
        (["torch", "--ranks", "a-b", "--", "torchrun", "train.py"], "'a-b' is no number"),
        (["torch", "--ranks", "5-3", "--", "torchrun", "train.py"], "'5-3' is no number"),
    ],
)
def test_what_is_wrong_with_ranks_is_said(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    error = profiled(*words).exception
    assert isinstance(error, UsageError)
    assert said in error.message


def test_ranks_that_no_case_has_are_refused_before_cases_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "_time", lambda *_, **__: pytest.fail("cases were timed"))
    error = profiled("torch", "quick", "--device", "cpu", "--ranks", "0").exception
    assert isinstance(error, UsageError)
    assert error.message == "--ranks 0: every case is of one device"


@pytest.mark.parametrize(("text", "wanted"), [("", ()), ("0,4-6", (0, 4, 5, 6)), ("3, 3-4", (3, 4))])
def test_numbers_of_ranks(text: str, wanted: tuple[int, ...]) -> None:
    from harness.cli import values

    assert values.numbers(text) == wanted
