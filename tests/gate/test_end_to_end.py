"""The gate as a user runs it, on the CPU, in a small repository of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import harness
from harness import store
from harness.gate.records import GateRun

ROOT = Path(harness.__file__).parents[1]
SMALL = ROOT / "tests" / "plugins" / "small.py"
OP = '''
"""Twice: y = 2 x."""

from harness.ops import Op, Tensor

OP = Op(
    "{name}",
    "y = 2 x",
    symbols={{"N": "elements"}},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    dtypes=("float32",),
    reference=lambda _, t: {{"y": 2 * t.x.double()}},
)


@OP.variant("plain", "one pass", devices=("cpu",))
def plain(_):
    import torch

    def launch(t):
        for _ in range({passes}):
            torch.mul(t.x, 2, out=t.y)

    return launch
'''
VARIANT = """

@OP.variant("other", "another pass", devices=("cpu",))
def other(ctx):
    return plain(ctx)
"""
SCENARIO = "title: Twice\nop: {name}\nshapes: [{{N: 2**14}}]\ndtypes: [float32]\nbaseline: plain\n"
# As the command line does it, with fewer pairs: the statistics have tests of their own.
FEW_PAIRS = """
import sys
from harness.cli import app
from harness.gate import _decision
_decision.SCREEN_PAIRS = _decision.LEAST_PAIRS = 2
_decision.CONFIRM_PAIRS, _decision.LOOKS, _decision.LOOK_ALPHAS = 3, 1, (0.05,)
app(sys.argv[1:], prog_name="harness")
"""
ON_CPU = ["--device=cpu", f"--ops={SMALL}", "--precision=0.05", "--max-time=0.05"]
MARGIN = "--margin=60%"
# Other work on the machine may halve a speed for a while; a limit this wide spares the identical code its confirmation.
WIDE = "--margin=95%"

# A dozen processes that import torch, one after the other.
pytestmark = pytest.mark.timeout(300)
Gate = Callable[..., subprocess.CompletedProcess[str]]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout


def write_op(root: Path, name: str, passes: int = 1, more: str = "") -> None:
    (root / "harness" / "ops" / "access" / f"{name}.py").write_text(OP.format(name=name, passes=passes) + more)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the harness and two ops of its own, committed."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "harness", root / "harness", ignore=shutil.ignore_patterns("__pycache__", "_data"))
    for op in (root / "harness" / "ops").glob("*/[!_]*.py"):
        if op.stem not in ("copy", "__init__"):
            op.unlink()
    (root / "kernels" / "access").mkdir(parents=True)
    (root / "kernels" / "access" / "copy.cu").write_text("// nothing is compiled here\n")
    (root / "scenarios").mkdir()
    (root / ".gitignore").write_text("__pycache__/\n/reports/\n")
    for name in ("steady", "changed"):
        write_op(root, name, more=VARIANT)
        (root / "scenarios" / f"{name}.yaml").write_text(SCENARIO.format(name=name))
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=first")
    return root


@pytest.fixture
def repository(original: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(original, tmp_path / "repository"))


def environment(root: Path) -> dict[str, str]:
    # With more threads than free processors a kernel waits for the scheduler a hundred times longer than it runs.
    return os.environ | {
        "PYTHONPATH": str(root),
        "HARNESS_CACHE": str(root.parent / "cache"),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def gate(repository: Path) -> Gate:
    """Runs `harness gate` in the repository, with few pairs unless told."""

    def run(*arguments: str, whole: bool = False) -> subprocess.CompletedProcess[str]:
        program = ["-m", "harness"] if whole else ["-c", FEW_PAIRS]
        command = [sys.executable, *program, "gate", *arguments]
        return subprocess.run(
            command,
            cwd=repository,
            env=environment(repository),
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )

    return run


def outcomes(run: GateRun) -> dict[str, str]:
    return {f"{e.case.op}/{e.case.variant}": e.decision.outcome for e in run.cases if e.decision}


def test_the_same_code_passes(repository: Path, gate: Gate) -> None:
    done = gate("--base=HEAD", "steady", *ON_CPU, WIDE, "--only=*/plain/*", "--output=out", "--seed=7", whole=True)
    assert done.returncode == 0, done.stderr
    assert "comparing the working tree" in done.stderr.splitlines()[0]
    assert "both have the same code" in done.stderr.splitlines()[1]
    run = store.parse(GateRun, (repository / "out" / "gate.json").read_bytes())
    assert set(outcomes(run).values()) <= {"ok", "improved"}
    assert run.base.digest == run.now.digest
    assert (run.seed, run.base.label, run.now.dirty) == (7, "HEAD", False)
    assert git(repository, "worktree", "list").count("\n") == 1
    assert not list((repository.parent / "cache" / "worktrees").glob("*/base"))


def test_a_slower_op_fails_and_a_steady_one_does_not(repository: Path, gate: Gate) -> None:
    write_op(repository, "changed", passes=50)  # and one of its variants is gone
    write_op(repository, "steady", more=VARIANT.replace("other", "another"))
    done = gate("--base=main", "steady", "changed", *ON_CPU, MARGIN, "--output=out")
    assert done.returncode == 1, done.stderr
    run = store.parse(GateRun, (repository / "out" / "gate.json").read_bytes())
    assert outcomes(run)["changed/plain"] == "regressed"
    assert outcomes(run)["steady/plain"] != "regressed"
    missing = {f.case.op + "/" + f.case.variant: f.severity for f in run.findings if f.rule == "missing" and f.case}
    assert missing == {"changed/other": "failure", "steady/other": "failure", "steady/another": "note"}
    [slow] = [f for f in run.findings if f.rule == "slower" and f.severity == "failure"]
    assert "slower than main" in slow.message
    assert run.now.dirty


def test_an_op_that_is_gone_fails_at_once(repository: Path, gate: Gate) -> None:
    (repository / "harness" / "ops" / "access" / "changed.py").unlink()
    done = gate("--base=HEAD", "changed", *ON_CPU, "--output=out")
    assert done.returncode == 1, done.stderr
    assert "can't be loaded any more" in done.stdout
    assert "no op is named 'changed'" in done.stdout


def test_a_scenario_that_neither_can_load_is_bad_input(repository: Path, gate: Gate) -> None:
    scenario = repository / "scenarios" / "changed.yaml"
    scenario.write_text(scenario.read_text().replace("op: changed", "op: chnaged"))
    done = gate("--base=HEAD", "changed", *ON_CPU)
    assert done.returncode == 2
    assert "did you mean 'changed'?" in done.stderr


def test_what_cannot_be_compared_is_refused(repository: Path, gate: Gate) -> None:
    unknown = gate("--base=nowhere", "steady", *ON_CPU)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "git knows no revision 'nowhere'" in unknown.stderr
    shutil.rmtree(repository / ".git")
    outside = gate("--base=HEAD", "steady", "--device=cpu")
    assert outside.returncode == 2
    assert "--base needs a git checkout" in outside.stderr


def test_a_base_that_speaks_otherwise_is_refused(repository: Path, gate: Gate) -> None:
    protocol = repository / "harness" / "processes" / "messages.py"
    protocol.write_text(protocol.read_text().replace("VERSION = 1\n", "VERSION = 99\n"))
    done = gate("--base=HEAD", "steady", *ON_CPU)
    assert done.returncode == 4, done.stderr
    assert "protocol 1 with its workers, this one 99" in done.stderr
    assert "judge stored runs" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_it_leaves_nothing_behind(repository: Path, number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-m", "harness", "gate", "--base=HEAD", "steady", *ON_CPU]
    process = subprocess.Popen(
        command, cwd=repository, env=environment(repository), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr
    while "screen" not in process.stderr.readline():
        assert process.poll() is None
    assert git(repository, "worktree", "list").count("\n") == 2
    # As a terminal does it: to every process of the group.
    os.killpg(process.pid, number)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert git(repository, "worktree", "list").count("\n") == 1
    deadline = time.monotonic() + 10
    while mine := [pid for pid in workers(repository) if pid != process.pid]:
        assert time.monotonic() < deadline, mine
        time.sleep(0.1)


def workers(repository: Path) -> list[int]:
    """Processes that import the harness of the repository or of its worktree."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(repository.parent).encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found
