"""`harness ladder` as a command: its messages and exit codes, its run's folder, and resuming."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.cli.ladder import _worlds
from harness.errors import UsageError
from harness.processes import supervisor
from tests.rare import rare

PLUGINS = Path(__file__).parents[1] / "plugins"
PAGE = Path(__file__).parents[2] / "docs" / "make_my_model_faster.md"
STEP = "step.py"
QUICK = [
    f"--ops={PLUGINS / 'limited.py'}", "--device=cpu", "--max-time=0.02", "--precision=0.5", "--no-profile",
    "--variants=float32,amp,channels_last", "--output=mine",
]  # fmt: skip
Harness = Callable[..., subprocess.CompletedProcess[str]]


def programs(text: str) -> list[str]:
    """Blocks of code in a page that import something."""
    blocks = re.findall(r"^`{3}(?:python|sh)?\n(.*?)^`{3}$", text, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "import torch" in block]


@pytest.fixture(scope="module", autouse=True)
def step(folder: Path) -> None:
    """The file that the page tells users to write."""
    (folder / STEP).write_text(programs(PAGE.read_text())[0])


@pytest.fixture(scope="module")
def climbed(harness: Harness) -> subprocess.CompletedProcess[str]:
    """A ladder of three rungs, one of which the step has nothing for, with losses from several seeds."""
    return harness("ladder", STEP, *QUICK, "--seeds=3", "--steps=10")


# examples/test_examples.py has the ladder of a step, steps/ladder the check of its rungs, their code and the report.
@pytest.mark.slow
def test_a_ladder_leaves_a_run_with_the_code_of_the_fastest_rung(
    climbed: subprocess.CompletedProcess[str], folder: Path, environment: Callable[..., dict[str, str]]
) -> None:
    assert climbed.returncode == 0, climbed.stderr
    assert "harness.nn.patch: swapped: " in climbed.stderr
    assert "channels_last unsupported" in " ".join(climbed.stdout.split())
    assert "Use amp" in climbed.stdout or "No rung is surely faster than float32" in climbed.stdout
    report = (folder / "mine" / "report.md").read_text()
    assert "What to use" in report
    assert (folder / "mine" / "ladder.py").is_file()
    (code,) = programs(report)
    assert "import step as user" in code
    (folder / "faster.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "faster.py"], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout.count("loss ") == 10, done.stderr


@pytest.mark.slow  # steps/ladder/test_learning.py has the trainings, steps/ladder/test_report.py what is said of them
def test_losses_from_several_seeds_are_part_of_the_recommendation(
    climbed: subprocess.CompletedProcess[str], folder: Path
) -> None:
    assert "trainings of 10 steps from 3 seeds: 6 of them, steps of " in climbed.stderr
    report = (folder / "mine" / "report.md").read_text()
    assert "10 steps on a few batches of 32 that repeat, from 3 seeds" in report
    told = r"The mean losses of [01] of 1 rungs lie within the spread of the seeds of float32"
    assert re.search(told, climbed.stdout)


@pytest.mark.slow  # cli/test_runs.py has what refuses and resumes a run, the test above that the plug-in lies beside it
def test_a_ladder_is_gone_on_with_and_its_report_needs_no_plug_in(
    climbed: subprocess.CompletedProcess[str], harness: Harness, folder: Path
) -> None:
    lines = (folder / "mine" / "results.jsonl").read_text().splitlines(keepends=True)
    (folder / "mine" / "results.jsonl").write_text("".join(lines[:1]))
    again = harness("ladder", STEP, *QUICK)
    assert again.returncode == 2
    assert "holds a run already" in again.stderr
    resumed = harness("ladder", STEP, *QUICK, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert len((folder / "mine" / "results.jsonl").read_text().splitlines()) == len(lines)
    (folder / "mine" / "report.md").unlink()
    assert harness("report", "mine").returncode == 0
    assert "What to use" in (folder / "mine" / "report.md").read_text()


# steps/ladder/test_ranks.py has rungs on two ranks, profile/test_team.py records of ranks, steps/ladder/test_report.py
# what a report says.
@pytest.mark.slow
def test_two_ranks_are_measured_beside_one(harness: Harness, folder: Path) -> None:
    arguments = [argument for argument in QUICK if not argument.startswith(("--output", "--variants"))]
    arguments.remove("--no-profile")
    done = harness(
        "ladder", STEP, *arguments, "--world=2", "--variants=float32", "--seeds=3", "--steps=10", "--output=two"
    )
    assert done.returncode == 0, done.stderr
    assert "trainings of 10 steps from 3 seeds: 6 of them" in done.stderr
    report = (folder / "two" / "report.md").read_text()
    assert "ladder_step/bfloat16/B32/world=2" in report
    assert "efficiency low" in report
    assert re.search(r"step, \S+ items a second on 2 devices, an efficiency of \S+%", report)
    assert "bfloat16, 2 devices" in report
    assert "B32/world=2, by rank" in report
    assert "torchrun --standalone --nproc-per-node=2 faster.py" in report


def test_more_devices_than_there_are_can_be_looked_at_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = "needs 4 devices, this machine has 1"
    monkeypatch.setattr(supervisor, "too_few", lambda _, world: found if world > 1 else None)
    assert _worlds("1", "cuda", dry_run=False) == (1,)
    assert _worlds("2,4", "cuda", dry_run=True) == (1, 2, 4)
    with pytest.raises(UsageError) as raised:
        _worlds("2,4", "cuda", dry_run=False)
    assert raised.value.message == f"--world 2,4: {found}"
    assert "--device cpu" in raised.value.advice


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([STEP, "--world=0"], "--world 0: names no number of devices"),
        ([STEP, "--world=two"], "'two' is no number"),
        ([STEP, "--batch=64"], "--batch is for --model"),
        ([STEP, "--steps=20"], "--steps is for trainings from several seeds"),
        ([STEP, "--ranks=0"], "--ranks says which of several devices are recorded"),
        ([STEP, "--world=2", "--ranks=0", "--no-profile"], "--ranks says which of several devices are recorded"),
        ([STEP, "--world=2,4", "--ranks=2"], "--ranks 2: 2 devices have the ranks 0 to 1"),
        ([], "name either a file or --model"),
        (["nowhere.py"], "nowhere.py: there is no such file"),
        rare(["--model=mine:vit"], "mine:vit: names no library that is known"),
        rare(["--model=timm:no_such_model"], "timm"),
        rare(["empty.py"], "defines no function model and no function batch"),
        (["fails.py"], "the step can't be run: ValueError: no data"),
        rare(["both.py"], "defines both loss and step"),
    ],
)
def test_what_cant_be_climbed_says_why(
    folder: Path, arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "empty.py").write_text("import torch\n")
    (folder / "both.py").write_text("".join(f"def {name}(*_): ...\n" for name in ("model", "batch", "loss", "step")))
    fails = (
        "import torch\ndef model():\n    return torch.nn.Linear(2, 2)\ndef batch():\n    raise ValueError('no data')\n"
    )
    (folder / "fails.py").write_text(fails)
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["ladder", *arguments, "--device=cpu"])
    assert done.exit_code == 2
    assert told in done.stderr.replace("\n", " ")


def test_a_dry_run_shows_the_rungs_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {*folder.iterdir()}
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["ladder", STEP, "--device=cpu", "--dry-run"])
    assert done.exit_code == 0, done.stderr
    assert "ladder_step/patched_compile/bfloat16/B32" in done.stdout
    cases = [line.strip() for line in done.stdout.splitlines() if line.startswith("ladder_step/")]
    assert not any("graph" in case for case in cases), "a rung that is none here is no case"
    assert f"\n{len(cases)} measurements on " in done.stdout
    told = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith(("amp ", "graph ")))
    assert told["amp"].startswith("mixed precision: autocast")
    assert told["graph"].strip() == "not here: a CPU has no CUDA graphs"
    assert {*folder.iterdir()} - before <= {folder / "__pycache__"}


@pytest.mark.slow  # test_layers.py has what each command loads
def test_help_loads_no_torch() -> None:
    program = "import sys; from harness.cli import app\ntry:\n    app(['ladder', '--help'])\nexcept SystemExit: ...\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}assert 'torch' not in sys.modules"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
