"""`harness gate ci`: what it hands to the gate, when it calibrates, and what later steps of a job learn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from harness.cli import app, gate, gate_calibrate
from harness.errors import MachineError
from harness.gate import ci
from tests.gate.foreign import git, write, write_op

SCENARIO = "title: t\nop: wrong\nshapes: [{N: 4}, {N: 8}]\ndtypes: [float32]\nbaseline: plain\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two commits, in which the command works; the measuring itself is left out."""
    folder = tmp_path / "mine"
    write_op(folder, "wrong")
    write(folder / "s.yaml", SCENARIO)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")
    git(folder, "switch", "--quiet", "--create=change")
    write(folder / "more.py", "")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=second")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.delenv("GITHUB_EVENT_PATH", raising=False)
    return folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the gate was asked for. It ends with 3."""
    requests: list[Any] = []

    def paired(request: Any) -> Any:
        requests.append(request)
        return None

    monkeypatch.setattr(gate, "_paired", paired)

    def finish(_made: Any, folder: Path) -> int:
        requests.append(folder)
        return 3

    monkeypatch.setattr(gate, "_finish", finish)
    return requests


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was calibrated."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(gate_calibrate, "command", lambda **given: found.append(given))
    return found


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["gate", "ci", *words])


FOUND = ("s.yaml", "--ops", "wrong.py", "--device=cpu")
Outputs = Callable[[], dict[str, str]]


@pytest.fixture
def outputs(tmp_path: Path) -> Outputs:
    return lambda: dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())


@pytest.mark.slow  # gate/test_ci.py has the base, the tests below the command
def test_the_gate_gets_the_base_and_its_own_options(root: Path, asked: list[Any], outputs: Outputs) -> None:
    done = call(*FOUND, "--target", "main", "--calibrate=0", "--margin=2%", "--accept", "work", "--only=wrong/*")
    assert done.exit_code == 3, done.output
    request, folder = asked
    main = git(root, "rev-parse", "main").strip()
    assert (request.base, request.margin, request.accept) == (main, 0.02, ("work",))
    assert (request.selection.only, request.selection.device) == (("wrong/*",), "cpu")
    assert folder == Path("reports/gate")
    assert outputs() == {"exit": "3", "verdict": "undecided", "base": main, "folder": "reports/gate"}


@pytest.mark.slow  # the next test has a calibration
def test_a_machine_is_calibrated_whose_noise_is_not_known(
    root: Path, asked: list[Any], calibrated: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    main = git(root, "rev-parse", "main").strip()
    call(*FOUND, "--target=main", "--noise=n.json")
    [given] = calibrated
    assert (given["base"], given["blocks"], given["scenarios"]) == (main, 10, ["s.yaml"])
    assert (given["noise"], given["ops"], given["device"]) == (Path("n.json"), [Path("wrong.py")], "cpu")
    assert len(asked) == 2
    for event, known, base in (
        (ci.Event(), (1, 2), None),  # a new case, which the base doesn't have
        (ci.Event(on_default=True), (1, 2), "HEAD"),
        (ci.Event(on_default=True), (0, 2), None),
    ):
        monkeypatch.setattr(ci, "unknown", lambda _, known=known: known)
        monkeypatch.setattr(ci.Event, "read", lambda _, event=event: event)
        calibrated.clear()
        call(*FOUND, *(() if event.on_default else ("--target=main",)))
        assert [given["base"] for given in calibrated] == ([base] if base else [])


def test_a_calibration_that_fails_leaves_the_verdict_to_the_gate(
    root: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**_: object) -> None:
        raise MachineError("the base knows none of these cases")

    monkeypatch.setattr(gate_calibrate, "command", fails)
    done = call(*FOUND, "--target=main")
    assert done.exit_code == 3
    assert "not calibrated: the base knows none of these cases" in done.output
    assert asked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*FOUND, "--nonsense"), "No such option: --nonsense"),
        ((*FOUND, "--margin=huge"), "isn't a number"),
        (("gone.yaml", "--target=main"), "gone.yaml"),
        ((*FOUND, "--target=nowhere"), "knows no branch 'nowhere'"),
        ((*FOUND, "--target=main", "--base=main"), "name two bases"),
        (FOUND, "nothing says what to compare with"),
    ],
)
def test_a_mistake_leaves_a_report_and_outputs(
    words: tuple[str, ...], message: str, root: Path, asked: list[Any], outputs: Outputs
) -> None:
    done = call(*words, "--output=out")
    assert done.exit_code == 2
    assert message in json.loads((root / "out" / "gate.json").read_text())["stopped"]["message"]
    assert (outputs()["exit"], outputs()["verdict"], outputs()["folder"]) == ("2", "usage", "out")
    assert not asked


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("--base", "HEAD", "--only", "a/*"), "harness gate --base HEAD --only 'a/*' ci;"),
        (("--base=HEAD",), "harness gate --base=HEAD ci;"),
        (("--device=cpu",), "harness gate --base REV --device=cpu ci;"),
    ],
)
def test_who_gives_options_to_the_scenario_ci_is_told_what_to_write(
    words: tuple[str, ...], instead: str, root: Path, asked: list[Any]
) -> None:
    """`harness gate ci` is a command, so `--base HEAD` after it has no scenario."""
    done = call(*words, "--output", str(root / "out"))
    assert (done.exit_code, asked) == (2, [])
    told = done.output.replace(f" --output {root / 'out'}", "")
    assert "error: 'harness gate ci' is the command for CI jobs, and no scenario comes after it" in told
    assert instead in told
    assert "harness gate ci SCENARIO..." in told


def test_a_job_that_is_stopped_is_told(root: Path, outputs: Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(ci, "base", stops)
    call(*FOUND, "--target=main")
    assert (outputs()["exit"], outputs()["verdict"]) == ("130", "stopped")


def test_a_bug_is_told(root: Path, outputs: Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ci, "base", lambda *_: 1 / 0)
    call(*FOUND, "--target=main", "--output", "out")
    assert (outputs()["exit"], outputs()["verdict"], outputs()["folder"]) == ("70", "bug", "out")
    assert json.loads((root / "out" / "gate.json").read_text())["stopped"]["exit"] == 70
