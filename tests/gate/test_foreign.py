"""The gate in another's repository: each way in which slower code once passed, and identical code, which passes.

Slower code does its work 500 times, so that no load of the machine hides it. One gate judges all of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import store
from harness.gate.records import Finding, GateRun
from tests.gate import foreign

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
FEW_PAIRS = Path(__file__).with_name("few_pairs.py")
FAST = ["--device=cpu", "--ops=small.py", "--precision=0.05", "--max-time=0.05", "--margin=90%", "--output=out"]
PIP = "pip install --quiet --no-deps --no-build-isolation --disable-pip-version-check --target {site} {root}"
COMPILER = shutil.which("g++") is not None


@dataclass(frozen=True)
class Gated:
    """A gate run, and what the command said of it."""

    done: subprocess.CompletedProcess[str]
    run: GateRun

    def about(self, rule: str, op: str = "") -> list[Finding]:
        return [f for f in self.run.findings if f.rule == rule and (not op or (f.case and f.case.op == op))]


def gate(root: Path, *names: str, more: tuple[str, ...] = ()) -> Gated:
    """Gate the working tree against its first commit. names: ops, each with a scenario of its name."""
    ops = [f"--ops={name}.py" for name in names if name != "packaged"]
    paths = (foreign.ROOT, root / "third" / "vendored")
    done = subprocess.run(
        [sys.executable, "-P", FEW_PAIRS, "gate", "--base=first", *(f"{name}.yaml" for name in names), *ops, *more],
        cwd=root,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "HARNESS_CACHE": str(root.parent / "cache"),
            "KEPT": str(root.parent / "kept"),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    file = root / "out" / "gate.json"
    assert file.is_file(), done.stderr
    return Gated(done, store.parse(GateRun, file.read_bytes()))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return foreign.make(tmp_path_factory.mktemp("original"))


@pytest.fixture(scope="module")
def worse(tmp_path_factory: pytest.TempPathFactory) -> Gated:
    """A commit with each of the ways, and what the gate says of it."""
    root = foreign.make(tmp_path_factory.mktemp("worse"))
    foreign.bump(root)
    foreign.passes(root / "src" / "mykern" / "double.py", foreign.SLOW)
    foreign.passes(root / "include" / "passes.h", foreign.SLOW)
    foreign.write_op(root, "wrong", factor=3)
    declared = (root / "declared.py").read_text()
    foreign.write(root / "declared.py", f"import os\nos.environ['MYKERN_PASSES'] = '{foreign.SLOW}'\n{declared}")
    foreign.write(root / "requirements.txt", "torch==2.13\n")
    foreign.write(root / "notes.py", "nothing imports it\n")
    foreign.write(root / "build" / "fast.so", "ignored by git")
    names = (
        "packaged",
        "vendored",
        "kept",
        "found",
        "built",
        "wrong",
        "declared",
        *(("compiled",) if COMPILER else ()),
    )
    return gate(root, *names, more=(*FAST, f"--prepare={PIP}"))


def outcomes(run: GateRun) -> dict[str, str]:
    return {f"{e.case.op} {e.case.dtype}": e.decision.outcome for e in run.cases if e.decision}


def test_a_package_that_one_dtype_alone_imports_is_slower(worse: Gated) -> None:
    """Each side has its own installation, and so has this process, which finds the op by its entry point."""
    found = outcomes(worse.run)
    assert (found["packaged float64"], found["packaged float32"] != "regressed") == ("regressed", True), worse.done
    assert worse.done.returncode == 1


def test_a_submodule_on_the_path_of_modules_is_slower(worse: Gated) -> None:
    assert outcomes(worse.run)["vendored float32"] == "regressed"


def test_a_variable_that_an_op_sets_where_it_is_declared_is_its_own_side_s(worse: Gated) -> None:
    """The process that starts both sides loads the working tree's ops, too."""
    assert outcomes(worse.run)["declared float32"] == "regressed"


@pytest.mark.skipif(not COMPILER, reason="needs g++")
def test_a_header_that_only_the_compiler_reads_is_slower(worse: Gated) -> None:
    assert outcomes(worse.run)["compiled float32"] == "regressed"
    assert worse.run.used
    assert "include/passes.h" in dict(worse.run.used.now)


def test_an_artefact_that_is_kept_outside_by_its_name_was_not_compared(worse: Gated) -> None:
    code = next(f for f in worse.about("code") if f.severity == "undecided")
    assert [name.rpartition("/")[2] for name in code.message.split(", ")[-2:]] == ["kept", "kept-found"]
    assert "--prepare" in code.advice


def test_a_base_without_what_was_built_in_the_working_tree_alone_was_not_compared(worse: Gated) -> None:
    """Its slower way would hide any loss."""
    assert worse.run.used
    assert worse.run.used.unmatched == ("build/fast.so",)
    assert any("build/fast.so" in f.message for f in worse.about("code") if f.severity == "undecided")


def test_a_wrong_kernel_is_found_though_its_reference_is_wrong_alike(worse: Gated) -> None:
    assert outcomes(worse.run)["wrong float32"] != "regressed", "it is as fast, and right by its own reference"
    [finding] = worse.about("check")
    assert (finding.severity, finding.case and finding.case.op) == ("failure", "wrong")
    assert finding.message.startswith("wrong by the reference, check and inputs of first: y")


def test_other_software_than_both_sides_ran_with_is_named(worse: Gated) -> None:
    [finding] = worse.about("software")
    assert (finding.severity, "requirements.txt" in finding.message) == ("undecided", True)


def test_what_changed_is_told_used_or_not_and_never_called_the_same_code(worse: Gated) -> None:
    used = worse.run.used
    assert used
    # The package's source was installed: a copy of it is used.
    assert {"third/vendored/vendored_kernels.py", "wrong.py", "src/mykern/double.py"} <= {*used.changed}
    assert "{made}/site/mykern/double.py" in dict(used.now)
    assert "notes.py" in used.unused
    assert any("notes.py" in finding.message for finding in worse.about("code"))
    assert "same code" not in worse.done.stderr


def test_identical_code_passes_without_being_measured(original: Path) -> None:
    """Slower code elsewhere in the repository, which no case uses, is told."""
    foreign.passes(original / "include" / "other.h", foreign.SLOW)
    same = gate(original, "packaged", "vendored", more=(*FAST, f"--prepare={PIP}"))
    assert same.done.returncode == 0, same.done.stdout + same.done.stderr
    assert "both sides use the same code" in same.done.stderr
    assert same.run.cases == ()
    assert same.run.used
    assert same.run.used.base == same.run.used.now
    assert same.run.used.unused == ("include/other.h",)
    assert foreign.git(original, "worktree", "list").count("\n") == 1
    assert not [*(original.parent / "cache" / "worktrees").glob("*/*/")]
