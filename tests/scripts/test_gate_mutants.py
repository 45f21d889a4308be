"""The mutants still fit the kernels that they slow down, and what is written about them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOP = Path(__file__).parents[2]

# Compiles what the cases ask for, with the harness that PYTHONPATH names; prints the files that were compiled.
COMPILE = """
import importlib.util, sys
import pytest
from harness import scenario
from harness.cuda.compile import compile_verbose
from harness.ops import Catalogue

spec = importlib.util.spec_from_file_location("kernels", sys.argv[1])
kernels = importlib.util.module_from_spec(spec)
sys.modules["kernels"] = kernels
spec.loader.exec_module(kernels)
catalogue = Catalogue()
selection = scenario.Selection("cuda", only=tuple(sys.argv[2:]))
for job in scenario.plan(scenario.load(scenario.find(["ci"]), catalogue), catalogue, selection).jobs:
    for request in kernels.requested(pytest.MonkeyPatch(), catalogue[job.case.op], [job.case]):
        compile_verbose(request.file, dict(request.macros), "sm_90")
        print(request.file)
"""


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gate_mutants", TOP / "scripts" / "gate_mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gate_mutants"] = module
    spec.loader.exec_module(module)
    return module


SCRIPT = script()
MUTANTS = SCRIPT.mutants()


def test_there_is_a_mutant_of_each_kind() -> None:
    assert {mutant.name for mutant in MUTANTS} >= {
        "block_of_32",
        "dropped_unroll",
        "extra_read",
        "narrow_packs",
        "uncoalesced_mask",
    }
    assert all(mutant.text.endswith(".") and mutant.cases for mutant in MUTANTS)


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_its_kernels_compile(mutant, tmp_path: Path) -> None:
    for name in ("harness", "kernels", "scenarios"):
        shutil.copytree(TOP / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    # No repository around the copy may decide what the paths of the patch mean.
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run(["git", "apply", str(mutant.file)], cwd=tmp_path, env=environment, check=True)
    changed = [name for name in ("harness", "kernels") if subprocess.call(["diff", "-rq", TOP / name, tmp_path / name])]
    assert changed
    command = [sys.executable, "-c", COMPILE, str(TOP / "tests" / "cuda" / "test_kernels.py"), *mutant.cases]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert all(Path(line).is_relative_to(tmp_path) for line in done.stdout.splitlines())


def row(mutant: str, true: float, outcome: str) -> Any:
    return SCRIPT.Row(mutant, f"{mutant}/tuned", true, true - 0.001, true + 0.001, outcome, true, 14, 1, 61.2)


@pytest.mark.parametrize(
    ("true", "outcome", "judged"),
    [
        (-0.05, "regressed", "caught"),
        (-0.05, "inconclusive", "missed"),
        (-0.05, "not decided", "missed"),
        (-0.015, "regressed", "caught"),
        (-0.015, "ok", "below 2%"),
        (0.01, "regressed", "WRONG"),
    ],
)
def test_what_became_of_a_mutant(true: float, outcome: str, judged: str) -> None:
    assert row("extra_read", true, outcome).judged == judged


def test_what_was_found_is_kept_and_told(tmp_path: Path) -> None:
    rows = [row("extra_read", -0.025, "regressed"), row("narrow_packs", -0.12, "regressed"), row("x", -0.001, "ok")]
    SCRIPT.save(rows, tmp_path, "A GPU")
    assert SCRIPT.known(tmp_path / "mutants.csv") == [rows[1], rows[0], rows[2]]
    page = (tmp_path / "mutants.md").read_text()
    assert "A GPU. The gate caught 2 of 2 cases that are slower by 2% or more, and 0 of\n1 others." in page
    [line] = [line for line in page.splitlines() if line.startswith("| `narrow_packs` | `narrow_packs/tuned` |")]
    assert line.endswith(" -12.00% | -12.10% to -11.90% | -12.00% | regressed | 14 | 61 | caught |")
    assert "- `extra_read`: One pack of 20, " in page


def test_a_case_without_a_decision_has_a_row(tmp_path: Path) -> None:
    undecided = SCRIPT.Row("x", "a/b", -0.02, -0.03, -0.01, "not decided", None, 0, 1, 5.0)
    SCRIPT.save([undecided], tmp_path, "A GPU")
    assert SCRIPT.known(tmp_path / "mutants.csv") == [undecided]
