"""The page of how times are checked: what it has of the register and of runs, and the runs that can be made for it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.model import Measurement, Run
from harness.model.run import Header
from harness.ops import Catalogue, known_cases
from harness.ops.catalogue import LOADED
from tests.exploits import REGISTER
from tests.one_test import one_test

ROOT = Path(__file__).parents[2]
PATCHES = sorted((ROOT / "scripts" / "trust").glob("*.patch"))
LATE = "(found in the timed calls; the first call was right)"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_trust", ROOT / "scripts" / "make_trust.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_trust"] = module
    sys.path.insert(0, str(ROOT / "scripts"))  # what scripts share lies beside them
    spec.loader.exec_module(module)
    return module


SCRIPT: Any = script()


def test_the_page_is_as_its_register_and_its_runs_have_it() -> None:
    text = SCRIPT.PAGE.read_text(encoding="utf-8")
    assert SCRIPT.page(text, REGISTER, SCRIPT.committed_runs()) == text, "run scripts/make_trust.py"


def test_the_readme_has_the_number_of_exploits() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"lists {len(REGISTER['exploits'])} ways to get a time" in readme


def test_the_part_above_stays() -> None:
    first = "# Do the times hold?\n\nA table.\n\n"
    for text in (first, f"{first}{SCRIPT.BEGIN}\n\nEARLIER\n"):
        made = SCRIPT.page(text, REGISTER, {})
        assert made.startswith(f"{first}{SCRIPT.BEGIN}\n\n- **the first call**: ")
        assert "EARLIER" not in made


def test_every_exploit_is_on_the_page_with_its_source_and_how_it_is_caught() -> None:
    made = SCRIPT.written(REGISTER, {})
    for entry in REGISTER["exploits"]:
        [line] = [line for line in made.splitlines() if line.startswith(f"| {entry['does']} |")]
        assert f"| {REGISTER['ways'][entry['caught']]['title']} | {entry.get('ends', 'wrong')} |" in line
        for called in filter(None, entry["from"].values()):
            assert f"({called})" in line
    assert "## Faults that show late" not in made
    assert "## The same times as without the check" not in made


# ---- Runs.


@pytest.fixture(scope="module")
def run() -> Run:
    """A committed run, with the cases of the gate."""
    return known_cases.load(ROOT / "reports" / "h200" / "ci")


def slowed(run: Run, shares: dict[str, float]) -> Run:
    """The run with times of some ops longer by a share."""

    def longer(m: Measurement) -> Measurement:
        times = 1 + shares.get(m.case.op, 0.0)
        return replace(m, samples=tuple(times * one for one in m.samples), phases=(("sample", 2 * times),))

    return replace(run, measurements=tuple(map(longer, run.measurements)))


def later(header: Header, times: float) -> str:
    """The end of a run that takes so many times as long."""
    begin, end = map(datetime.fromisoformat, (header.started, header.finished or ""))
    return (begin + times * (end - begin)).isoformat()


def test_times_stand_side_by_side_with_what_changed(run: Run) -> None:
    before = slowed(run, {})
    slower = slowed(run, {"copy": 0.001, "dropout": 0.003, "softmax": -0.5})
    after = replace(slower, header=replace(run.header, finished=later(run.header, 1.5)))
    changed = {"copy": "+0.10%", "dropout": "+0.30%", "softmax": "-50.00%"}
    made = "\n".join(SCRIPT.side_by_side(before, after))
    cases = {result.case for result in run.results}
    far = sum(case.op in ("dropout", "softmax") for case in cases)
    assert f"{len(cases)} cases by the same code" in made
    assert f"{len(cases) - far} of {len(cases)} times are within 0.2%" in made
    assert "median 0.00%, the furthest 50.00%" in made
    assert "with the starts of processes, " in made
    assert ", +50.0%. Runs: " in made
    for case in cases:
        [line] = [line for line in made.splitlines() if line.startswith(f"| {case.id} |")]
        assert line.split(" | ")[3] == changed.get(case.op, "+0.00%")
        assert line.endswith("| faster |") is (case.op == "softmax")
        assert line.endswith("| no |") or case.op in changed


def test_a_case_without_a_time_is_named(run: Run) -> None:
    lost = run.measurements[0].case
    kept = tuple(
        replace(m, status="wrong", samples=(), call_samples=(), error="y: no") if m.case == lost else m
        for m in run.measurements
    )
    made = "\n".join(SCRIPT.side_by_side(run, replace(run, measurements=kept)))
    assert f"- {lost.id}: no time in one of the runs" in made


def test_faults_are_told_with_where_they_were_found(run: Run) -> None:
    Catalogue()
    first, second, third = SCRIPT.faults()
    errors = {first: f"y: 3 elements are wrong {LATE}", second: "y: all elements are wrong"}
    measured = [
        Measurement(known_cases.named(fault.case, LOADED), "wrong", error=error) for fault, error in errors.items()
    ]
    made = "\n".join(SCRIPT.planted(replace(run, measurements=tuple(measured))))
    assert "1 of 3 were found in the timed calls alone" in made
    for fault in (first, second):
        assert f"| {fault.name} | {fault.text} | {fault.case} | wrong | {errors[fault]} |" in made
    assert f"| {third.name} | {third.text} | {third.case} | not run |  |" in made


# ---- What scripts/trust_runs.sh measures.


@one_test("patch", PATCHES, ids=lambda patch: patch.stem)
def test_each_patch_fits_the_code(patch: Path) -> None:
    done = subprocess.run(
        ["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_there_are_sixty_cases_and_three_faults_and_all_are_known() -> None:
    ids = (ROOT / "scripts" / "trust" / "cases.txt").read_text(encoding="utf-8").split()
    assert len(set(ids)) == 60
    faults = SCRIPT.faults()
    assert {fault.name for fault in faults} == {"captured constant", "missing barrier", "stale shared memory"}
    assert {patch.stem for patch in PATCHES} == {"unchecked", *(fault.name.replace(" ", "_") for fault in faults)}
    ops = Catalogue()
    for id in (*ids, *(fault.case for fault in faults)):
        case = known_cases.named(id, LOADED)
        assert case, id
        ops[case.op].refuse(case)
        assert ops[case.op].variants[case.variant].runs_on("cuda")
