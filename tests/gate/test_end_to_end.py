"""The gate as a user runs it, on the CPU, in a small repository of its own.

Each measuring process imports torch, which takes seconds. So one gate run serves all tests that look at what it found.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import harness
from harness import store
from harness.gate.records import GateRun
from harness.processes.messages import VERSION

ROOT = Path(harness.__file__).parents[1]
SMALL = ROOT / "tests" / "plugins" / "small.py"
FEW_PAIRS = Path(__file__).with_name("few_pairs.py")
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
    tolerance={{"float32": (1e-2, 1e-2)}},
)


@OP.variant("plain", "one pass", devices=("cpu",))
def plain(_):
    import torch

    def launch(t):
        for _ in range({passes}):
            torch.mul(t.x, 2, out=t.y)

    return launch
'''
OTHER = """

@OP.variant("other", "another pass", devices=("cpu",))
def other(ctx):
    return plain(ctx)
"""
LEANER = """

HALF = (Tensor("y", ("N",), "bfloat16"),)


@OP.variant("leaner", "half as many bytes", devices=("cpu",), outputs=HALF, decode=lambda _, t: {"y": t.y.float()})
def leaner(_):
    return lambda t: t.y.copy_(2 * t.x)
"""
SCENARIO = "title: Twice\nop: {name}\nshapes: [{{N: 2**14}}]\ndtypes: [float32]\nbaseline: plain\n"
# A scenario file of two documents. The working tree drops the second one together with its op, makes the shape of the
# first one smaller, and lowers its floor.
HELD = SCENARIO + "expect: {{plain: {{bandwidth: 2.0}}}}\n"
TWO = f"{HELD.format(name='steady')}---\n{SCENARIO.format(name='dropped')}"
LESS = HELD.format(name="steady").replace("2.0", "1.0").replace("{N: 2**14}", "{N: 2**14}, {N: 2**13}")
ON_CPU = ["--device=cpu", "--ops=plugins/small.py", "--precision=0.05", "--max-time=0.05"]
MARGIN = "--margin=60%"
# Other work on the machine may halve a speed for a while. So wide a margin spares the identical code its confirmation.
WIDE = "--margin=99.9%"

# Up to nine processes that import torch, one after the other.
pytestmark = pytest.mark.timeout(300)
# devices/test_plugged_in.py has a gate that fails a slower run and passes an equal one, test_procedure.py and
# test_sides.py what is measured of both sides, rules/ and test_pairs.py what becomes of it, cli/test_gate_progress.py
# what is said.
whole = pytest.mark.slow
Gate = Callable[..., subprocess.CompletedProcess[str]]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout


def write_op(root: Path, name: str, passes: int = 1, more: str = "") -> None:
    (root / "harness" / "collection" / "ops" / "access" / f"{name}.py").write_text(
        OP.format(name=name, passes=passes) + more
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the harness and ops of its own, committed."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "harness", root / "harness", ignore=shutil.ignore_patterns("_data"))
    for op in (root / "harness" / "collection" / "ops").glob("*/[!_]*.py"):
        if op.stem not in ("copy", "__init__"):
            op.unlink()
    # What adds variants to ops that are gone, and what every process would load and no test here needs.
    for part in ("peers", "steps"):
        shutil.rmtree(root / "harness" / "collection" / part)
    (root / "kernels" / "access").mkdir(parents=True)
    (root / "kernels" / "access" / "copy.cu").write_text("// nothing is compiled here\n")
    (root / "scenarios").mkdir()
    (root / ".gitignore").write_text("__pycache__/\n/reports/\n")
    (root / "plugins").mkdir()
    shutil.copy(SMALL, root / "plugins")
    for name in ("steady", "changed", "removed", "dropped"):
        write_op(root, name, more=OTHER)
        (root / "scenarios" / f"{name}.yaml").write_text(SCENARIO.format(name=name))
    write_op(root, "single")
    (root / "scenarios" / "single.yaml").write_text(SCENARIO.format(name="single"))
    (root / "scenarios" / "steady.yaml").write_text(TWO.replace("{N: 2**14}", "{N: 2**14}, {N: 2**15}", 1))
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=first")
    return root


@pytest.fixture
def repository(original: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(original, tmp_path / "repository"))


def environment(root: Path, *paths: Path) -> dict[str, str]:
    # With more threads than free processors a kernel waits for the scheduler a hundred times longer than it runs.
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths or (root,))),
        "HARNESS_CACHE": str(root.parent / "cache"),
        "OMP_NUM_THREADS": "1",
    }


def run_gate(repository: Path, *arguments: str, paths: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
    """Run `harness gate` in the repository, with few pairs. paths: where packages are, if not there."""
    return subprocess.run(
        [sys.executable, "-P", FEW_PAIRS, "gate", *arguments],
        cwd=repository,
        env=environment(repository, *paths),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.fixture
def gate(repository: Path) -> Gate:
    """Runs `harness gate` in a repository of the test's own."""
    return partial(run_gate, repository)


@dataclass(frozen=True)
class Compared:
    """A gate run, and what the command said of it."""

    done: subprocess.CompletedProcess[str]
    run: GateRun


@pytest.fixture(scope="module")
def compared(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """A working tree with everything that a change can do, and what the gate says of it."""
    repository = Path(shutil.copytree(original, tmp_path_factory.mktemp("compared") / "repository"))
    write_op(repository, "changed", passes=500)  # slower, and the variant `other` is gone
    write_op(repository, "steady", more=LEANER)
    (repository / "scenarios" / "steady.yaml").write_text(LESS)
    for name in ("removed", "dropped"):
        (repository / "harness" / "collection" / "ops" / "access" / f"{name}.py").unlink()
    scenarios = ("steady", "changed", "removed")
    done = run_gate(repository, "--base=main", *scenarios, *ON_CPU, MARGIN, "--accept=scenario", "--output=out")
    assert (repository / "out" / "gate.json").is_file(), done.stderr
    return Compared(done, store.parse(GateRun, (repository / "out" / "gate.json").read_bytes()))


def outcomes(run: GateRun) -> dict[str, str]:
    return {f"{e.case.op}/{e.case.variant}": e.decision.outcome for e in run.cases if e.decision}


# rules/test_code.py has what becomes of such code, cli/test_gate_progress.py what is said, processes/test_used.py what
# finds it.
@pytest.mark.slow
def test_code_that_both_sides_import_is_named_and_passes_only_if_that_is_accepted(
    tmp_path: Path,
) -> None:
    """A repository of a user, with a package that both sides import, measured with a harness of another repository."""
    mine = tmp_path / "mykern"
    installed = tmp_path / "site-packages" / "mykern" / "__init__.py"
    for package in (mine / "src" / "mykern", installed.parent):
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("def twice(x, y):\n    return y.copy_(2 * x)\n")
    op = OP.format(name="mine", passes=1).replace("    import torch\n", "    import mykern\n")
    (mine / "mine.py").write_text(op.replace("torch.mul(t.x, 2, out=t.y)", "mykern.twice(t.x, t.y)"))
    (mine / "mine.yaml").write_text(SCENARIO.format(name="mine"))
    (mine / "plugins").mkdir()
    shutil.copy(SMALL, mine / "plugins")
    git(mine, "init", "--quiet", "--initial-branch=trunk")
    git(mine, "add", ".")
    git(mine, "commit", "--quiet", "--message=first")
    asked = ["--base=trunk", "mine.yaml", "--ops=mine.py", *ON_CPU, WIDE, "--accept=code", "--output=out", "--seed=7"]
    done = run_gate(mine, *asked, paths=(ROOT, tmp_path / "site-packages"))
    assert done.returncode == 0, done.stderr
    first, second = done.stderr.splitlines()[:2]
    assert re.fullmatch(rf"comparing the working tree \(\w+\) with trunk \(\w+\) in {mine}: 1 case on .+", first)
    assert second == f"not compared, since both sides use the same files: {installed}"
    run = store.parse(GateRun, (mine / "out" / "gate.json").read_bytes())
    assert set(outcomes(run).values()) <= {"ok", "improved"}
    assert run.base.digest == run.now.digest
    assert (run.seed, run.base.label, run.base.repository, run.now.dirty) == (7, "trunk", str(mine), False)
    [code] = [finding for finding in run.findings if finding.rule == "code"]
    assert (code.severity, code.message.endswith(f": {installed}")) == ("accepted", True)
    assert "accepted with --accept: code (1 finding)" in " ".join(done.stdout.split())
    assert git(mine, "worktree", "list").count("\n") == 1
    assert not list((tmp_path / "cache" / "worktrees").glob("*/base"))


@whole
def test_a_slower_op_fails_and_a_steady_one_does_not(compared: Compared) -> None:
    assert compared.done.returncode == 1, compared.done.stderr
    assert outcomes(compared.run)["changed/plain"] == "regressed"
    assert outcomes(compared.run)["steady/plain"] != "regressed"
    [slow] = [f for f in compared.run.findings if f.rule == "slower" and f.severity == "failure"]
    assert "slower than main" in slow.message
    assert compared.run.now.dirty


@whole
def test_what_is_gone_fails_and_what_is_new_is_a_note(compared: Compared) -> None:
    missing = [finding for finding in compared.run.findings if finding.rule == "missing" and finding.case]
    assert {finding.severity for finding in missing} == {"failure"}
    assert {finding.case.id.replace("/float32/N", " ") for finding in missing if finding.case} == {
        "changed/other 16384",
        *(f"steady/other {n}" for n in (8192, 16384, 32768)),
        "steady/plain 32768",  # a smaller shape stands in its place
        *(f"dropped/{variant} 16384" for variant in ("plain", "other")),  # gone: its document together with its op
        *(f"removed/{variant} 16384" for variant in ("plain", "other")),  # gone: its op; its document is there
    }
    new = [f.case.variant for f in compared.run.findings if f.rule == "uncompared" and f.case]
    assert new == ["leaner", "leaner"]


@whole
def test_a_lowered_floor_fails_unless_it_is_accepted_which_every_output_says(compared: Compared) -> None:
    [lower] = [finding for finding in compared.run.findings if finding.rule == "scenario"]
    assert lower.severity == "accepted"
    assert "in main, is" in lower.message
    assert lower.message.endswith("now: steady/plain/float32/N16384")
    assert compared.run.accept == ("scenario",)
    assert "accepted (scenario): the floor of effective bandwidth" in " ".join(compared.done.stdout.split())
    assert "accepted with --accept: scenario (1 finding)" in " ".join(compared.done.stdout.split())


@whole
def test_a_leaner_variant_leaves_the_work_of_the_others_as_it_was(compared: Compared) -> None:
    steady = {
        e.case.variant: e
        for e in compared.run.cases
        if e.case.id.startswith("steady/") and e.case.shape == (("N", 2**14),)
    }
    works = {m.work for e in (steady["plain"], steady["leaner"]) for m in (*e.base, *e.now)}
    [work] = works
    [traffic] = {m.traffic for m in steady["leaner"].now}
    assert traffic.moved < work.moved
    assert not [finding for finding in compared.run.findings if finding.rule == "work"]


@whole
def test_an_op_that_is_gone_fails(compared: Compared) -> None:
    assert "can't be loaded any more" in compared.done.stdout
    assert "no op is named 'removed'" in compared.done.stdout


@pytest.mark.slow  # test_worktree.py has both, cli/test_requests.py the first one
def test_what_cannot_be_compared_is_refused(repository: Path, gate: Gate) -> None:
    unknown = gate("--base=nowhere", "steady", *ON_CPU)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "git knows no revision 'nowhere'" in unknown.stderr
    shutil.rmtree(repository / ".git")
    outside = gate("--base=HEAD", "steady", "--device=cpu")
    assert outside.returncode == 2
    assert "--base needs a git checkout" in outside.stderr


@pytest.mark.slow  # test_alike.py has what becomes of such a base, processes/test_team.py how it is noticed
def test_a_base_that_speaks_otherwise_is_measured_by_the_working_tree_alone(repository: Path, gate: Gate) -> None:
    messages = repository / "harness" / "processes" / "messages.py"
    messages.write_text(messages.read_text().replace(f"VERSION = {VERSION}\n", "VERSION = 99\n"))
    done = gate("--base=HEAD", "single", *ON_CPU, WIDE, "--output=out")
    assert done.returncode == 3, done.stderr
    told = " ".join(done.stdout.split())
    assert "undecided (measuring): the code that measures both sides changed: harness/processes/messages.py" in told
    assert "the kernels of the base are measured by one of them alone: the harness in" in told
    assert f"speaks protocol {VERSION}" in " ".join((repository / "out" / "gate.md").read_text().split())


@pytest.mark.slow  # test_alike.py has what is said of other times, test_sides.py which code measures which side
def test_a_commit_that_makes_its_numbers_small_hides_no_slower_op(repository: Path, gate: Gate) -> None:
    """One code measures both sides, and it must give the kernels of the base the times that they had."""
    measure = repository / "harness" / "measure.py"
    text = measure.read_text()
    assert '"samples": tuple(self.samples),' in text
    small = text.replace("tuple(self.samples),", "tuple(seconds / 1000 for seconds in self.samples),")
    measure.write_text(small)
    write_op(repository, "single", passes=500)
    done = gate("--base=HEAD", "single", *ON_CPU, MARGIN, "--output=out")
    assert done.returncode == 1, done.stderr
    run = store.parse(GateRun, (repository / "out" / "gate.json").read_bytes())
    assert outcomes(run) == {"single/plain": "regressed"}
    [measuring] = [finding for finding in run.findings if finding.rule == "measuring"]
    assert measuring.severity == "undecided"
    assert "changed: harness/measure.py; the kernels of the base are not measured alike" in measuring.message


@pytest.mark.slow  # test_worktree.py has what an error leaves, processes/test_ending.py and test_team.py a signal
@pytest.mark.cold
def test_stopping_it_leaves_nothing_behind(repository: Path, watched: Callable[[int], Callable[..., bool]]) -> None:
    command = [sys.executable, "-m", "harness", "gate", "--always", "--base=HEAD", "steady", *ON_CPU]
    process = subprocess.Popen(
        command, cwd=repository, env=environment(repository), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr
    while "screen" not in process.stderr.readline():
        assert process.poll() is None
    assert git(repository, "worktree", "list").count("\n") == 2
    # As a terminal does it: to every process of the group.
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert git(repository, "worktree", "list").count("\n") == 1
    assert all(watched(pid)(60) for pid in workers(repository))


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
