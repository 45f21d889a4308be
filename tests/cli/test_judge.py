"""`harness judge` as a command: its page, its exit codes, and what it keeps out of its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli import app, judge
from harness.judge import Judgement

PLUGINS = Path(__file__).parents[1] / "plugins"
Harness = Callable[..., subprocess.CompletedProcess[str]]
OP = """
from harness.ops import Op, Tensor

OP = Op(
    "doubling", "y = 2 x", symbols={"N": "elements"}, dtypes=("float32",),
    inputs=(Tensor("x", ("N",)),), outputs=(Tensor("y", ("N",)),),
    reference=lambda _, t: {"y": 2 * t.x.double()},
)
OP.variant("eager", "torch", role="baseline", devices=("any",), returns=True)(lambda _: lambda t: (t.x * 2,))
"""
DOUBLING = ["--ops=doubling.py", "--op=doubling", "--sizes=N=4096", "--device=cpu"]
QUICK = [
    *(f"--ops={PLUGINS / name}.py" for name in ("small", "limited")), *DOUBLING, "--max-time=0.02", "--precision=0.5",
]  # fmt: skip
MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2

def get_inputs():
    return [torch.randn(6, 8)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module", autouse=True)
def op(folder: Path) -> None:
    (folder / "doubling.py").write_text(OP)


@pytest.mark.slow  # tests/judge has such candidates, the next test the command
def test_a_candidate_that_is_right(harness: Harness, folder: Path) -> None:
    (folder / "mine.py").write_text("import torch\n\ndef double(x):\n    return x + x\n")
    done = harness("judge", "mine.py", *QUICK, "--seed=7", "--format=json", "--output=page.json", "--at-least=0.0001x")
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[0]
    assert line.startswith("right, ")
    assert line.endswith("; it only calls torch")
    found = json.loads((folder / "page.json").read_text())
    assert (found["verdict"], found["seed"], found["line"], found["code"]) == ("right", 7, line, 0)
    assert [one["case"] for one in found["timed"]] == ["doubling/candidate/float32/N4096"]
    assert found["timed"][0]["low"] <= found["timed"][0]["time"] <= found["timed"][0]["high"]
    assert {one["sizes"] for one in found["checked"]} == {"given", "unseen"}
    assert "what the candidate is, and its reference" in done.stderr


@pytest.mark.slow  # judge/test_asking.py has the end of the process, the next test the command
def test_a_candidate_that_ends_its_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "aborts.py").write_text("import os\n\ndef double(x):\n    os.abort()\n")
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["judge", "aborts.py", *DOUBLING, "--output=page.md"])
    assert done.exit_code == 5
    said = "crashed: killed by signal SIGABRT (aborts.py:4 in double) (doubling/candidate/"
    assert " ".join(done.stdout.split()).startswith(said)
    assert (folder / "page.md").read_text().startswith("# crashed: killed by signal SIGABRT")


def test_a_command_prints_its_judgement_and_ends_with_its_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "aborts.py").touch()
    monkeypatch.chdir(folder)
    line = "crashed: killed by signal SIGABRT (aborts.py:4 in double)"
    judgement = Judgement("crashed", line, 5, "aborts.py", "f00d", "function", "doubling", "a machine", 7, "judge")
    monkeypatch.setattr("harness.judge.judge", lambda *_: judgement)
    done = CliRunner().invoke(app, ["judge", "aborts.py", *DOUBLING, "--output=page.md"])
    assert (done.exit_code, done.stdout.splitlines()[0]) == (5, line)
    assert (folder / "page.md").read_text().startswith(f"# {line}\n")
    done = CliRunner().invoke(app, ["judge", "aborts.py", *DOUBLING, "--output=/dev/full"])
    assert (done.exit_code, done.stdout.splitlines()[0]) == (4, line)
    assert "error: can't write the report: /dev: No space left on device\n  free some space" in done.stderr


def test_a_page_is_written_where_nobody_reads_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("harness.judge.page.text", lambda _: "the page")
    monkeypatch.setattr("typer.echo", closed)
    judgement: Any = None
    with pytest.raises(BrokenPipeError):
        judge._show(judgement, None, tmp_path / "page.txt")
    assert (tmp_path / "page.txt").read_text() == "the page\n"


@pytest.mark.slow  # tests/judge has such models, test_a_candidate_that_is_right the command
def test_a_model_that_is_wrong(harness: Harness, folder: Path) -> None:
    """Its reference lies in another file, and neither is loaded by the process that judges."""
    (folder / "ref.py").write_text(MODEL)
    (folder / "new.py").write_text(
        "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.clone()\n"
    )
    program = (
        f"import sys\nfrom harness.cli import app\nsys.executable = {sys.executable!r}\n"  # starts forked ones
        "code = app(sys.argv[1:], standalone_mode=False)\n"
        "print(code, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "judge", "new.py", "--reference=ref.py", "--device=cpu", "--format=md"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("# wrong: y0: 48 of 48 elements are wrong by up to ")
    assert lines[-1] == "5 False"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["missing.py"], 2, "missing.py: there is no such file"),
        (["."], 2, ".: is no file"),
        (["doubling.py", "--device=cpu"], 2, "has no form of a candidate that is known"),
        (["doubling.py", "--sizes=N:3"], 2, "--sizes N:3: aren't sizes"),
        (["doubling.py", "--sizes=N=0"], 2, "--sizes N=0: N is 0"),
        (["doubling.py", "--at-least=fast"], 2, "--at-least fast: isn't a ratio"),
        (["doubling.py", "--format=pdf"], 2, "--format pdf isn't known"),
        (["doubling.py", "--output=none/page.md"], 2, "there is no folder none"),
    ],
)
def test_requests_that_can_t_be_carried_out(
    folder: Path, arguments: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["judge", *arguments])
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr
