"""The mutants still fit the kernels that they slow down, and what is written about them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import cli
from harness.cli import gate
from tests.one_test import one_test
from tests.rare import rare

TOP = Path(__file__).parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gate_mutants", TOP / "scripts" / "gate_mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gate_mutants"] = module
    spec.loader.exec_module(module)
    return module


SCRIPT = script()
MUTANTS = SCRIPT.mutants()
PRELU = "prelu/tuned/float32/*"
ASKED = dict.fromkeys((PRELU, *(case for mutant in MUTANTS for case in mutant.cases)))
"""The cases of all tests here, for one process: each takes a while to begin."""


def test_there_is_a_mutant_of_each_kind() -> None:
    assert {mutant.name for mutant in MUTANTS} >= {
        "block_of_32",
        "dropped_unroll",
        "extra_read",
        "narrow_packs",
        "uncoalesced_mask",
    }
    assert all(mutant.text.endswith(".") and mutant.cases for mutant in MUTANTS)


def test_the_words_of_a_group_gate_its_cases_of_the_scenario_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the real command line takes them; `harness gate ci` is another command."""
    requests: list[Any] = []
    monkeypatch.setattr(gate, "_paired", requests.append)

    def finish(_made: Any, folder: Path) -> int:
        requests.append(folder)
        return 0

    monkeypatch.setattr(gate, "_finish", finish)
    noise, folder = tmp_path / "noise.json", tmp_path / "out"
    done = CliRunner().invoke(cli.app, SCRIPT.words(MUTANTS, noise, folder))
    assert done.exit_code == 0, done.output
    request, written = requests
    assert (request.base, [file.name for file in request.files]) == ("HEAD", ["ci.yaml"])
    assert (request.selection.only, request.seed, request.noise) == (SCRIPT.cases(MUTANTS), 1, noise)
    assert written == folder


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"stopped": {"exit": 2, "message": "no such option"}, "cases": []}', "no such option"),
        (None, "No such file"),
    ],
)
def test_a_gate_that_stopped_is_told_by_its_exit_and_its_reason(
    record: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        if record:
            (tmp_path / "gate.json").write_text(record)
        return subprocess.CompletedProcess((), 2)

    monkeypatch.setattr(SCRIPT.subprocess, "run", stops)
    with pytest.raises(SystemExit, match=f"the gate of {MUTANTS[0].name} ended with exit 2: .*{reason}"):
        SCRIPT.gated(MUTANTS[:1], tmp_path, tmp_path / "noise.json", tmp_path)


@pytest.fixture(scope="session")
def launched(pytestconfig: pytest.Config) -> Callable[..., dict[str, list[list[Any]]]]:
    """launched(tree, globs...): what the cases launch with the harness and the kernels of a tree; see launched.py."""
    folder = pytestconfig.cache.mkdir("kernels")

    @cache
    def of(tree: Path, *globs: str) -> dict[str, list[list[Any]]]:
        command = [sys.executable, str(Path(__file__).parent / "launched.py"), str(folder), *globs]
        environment = os.environ | {"PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, list[list[Any]]] = json.loads(done.stdout)
        return found

    return of


def no_effect(before: list[list[Any]], after: list[list[Any]], files: set[str]) -> str:
    """Why a change of these files can't make a case slower; empty if it may."""
    codes = [[code for *_, code in launches] for launches in (before, after)]
    if any(file.startswith("kernels/") for file in files):
        return "its kernels' machine code is the same" if codes[0] == codes[1] else ""
    return "it launches the same" if before == after else ""


@pytest.fixture(scope="session")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what mutants change."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("harness", "kernels", "scenarios"):
        shutil.copytree(TOP / name, folder / name)
    return folder


@pytest.fixture
def tree(copied: Path, tmp_path: Path) -> Path:
    """Links to the files of the copy. Git puts a new file in place of a link, and so must a test."""
    return Path(shutil.copytree(copied, tmp_path / "tree", copy_function=os.link))


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
@pytest.mark.parametrize(
    "mutant", [(rare if number else pytest.param)(one, id=one.name) for number, one in enumerate(MUTANTS)]
)
def test_a_mutant_changes_what_its_cases_run(mutant, launched, tree: Path) -> None:
    # No repository around the copy may decide what the paths of the patch mean.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent)}
    subprocess.run(["git", "apply", str(mutant.file)], cwd=tree, env=environment, check=True)
    files = set(re.findall(r"^\+\+\+ b/(.+)$", mutant.file.read_text(), re.MULTILINE))
    before = launched(TOP, *ASKED)
    found = launched(tree, *mutant.cases)
    assert found
    assert {case: why for case, after in found.items() if (why := no_effect(before[case], after, files))} == {}


@pytest.mark.slow
def test_a_change_that_the_compiler_drops_is_none(launched, tree: Path) -> None:
    kernel = tree / "kernels" / "activation" / "prelu.cu"
    text, place = kernel.read_text(), "      process(pack[k], alpha, head + i * Pack<T>::SIZE, rows);\n"
    assert text.count(place) == 1
    load = "__ldg(reinterpret_cast<const unsigned*>(x + (packs - 1 - i) * Pack<T>::SIZE))"
    kernel.unlink()
    dropped = f'      asm volatile("" ::"r"({load}));\n'  # in PTX it uses nothing, and ptxas has the last word
    kernel.write_text("// So that no line has its old number.\n" + text.replace(place, dropped + place))
    ((case, after),) = launched(tree, PRELU).items()
    before = launched(TOP, *ASKED)[case]
    assert no_effect(before, after, {"kernels/activation/prelu.cu"}) == "its kernels' machine code is the same"
    assert no_effect(before, after, {"harness/collection/ops/activation/prelu.py"}) == "it launches the same"


def row(mutant: str, true: float, outcome: str) -> Any:
    return SCRIPT.Row(mutant, f"{mutant}/tuned", true, true - 0.001, true + 0.001, outcome, true, 14, 1, 61.2)


@one_test(
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
    assert "A GPU. The gate caught 2 of 2 cases that are slower by 2% or more, and 0 of\n1 that lose less." in page
    [line] = [line for line in page.splitlines() if line.startswith("| `narrow_packs` | `narrow_packs/tuned` |")]
    assert line.endswith(" -12.00% | -12.10% to -11.90% | -12.00% | regressed | 14 | 61 | caught |")
    assert "- `extra_read`: One pack of 20, " in page


def test_a_case_without_a_decision_has_a_row(tmp_path: Path) -> None:
    undecided = SCRIPT.Row("x", "a/b", -0.02, -0.03, -0.01, "not decided", None, 0, 1, 5.0)
    SCRIPT.save([undecided], tmp_path, "A GPU")
    assert SCRIPT.known(tmp_path / "mutants.csv") == [undecided]
