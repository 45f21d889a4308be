"""Kernels with one planted fault each, measured and counted on this machine: explain names the fault."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import store
from harness.explain import Known, explain, known

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(shutil.which("ncu") is None, reason="Nsight Compute isn't on the PATH"),
]
PLANTED = Path(__file__).parent / "planted"
FAULTS = {
    "planted_paths/divergent": "divergence",
    "planted_paths/barriers": "barriers",
    "planted_paths/doubles": "double",
    "planted_buckets/atomics": "atomics",
}
SOUND = ("planted_paths/closed", "planted_buckets/own_counts")


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Known]:
    folder = tmp_path_factory.mktemp("planted") / "run"
    ops = [f"--ops={PLANTED / name}.py" for name in ("planted_paths", "planted_buckets")]
    harness = [sys.executable, "-P", "-m", "harness"]
    subprocess.run([*harness, "run", PLANTED / "planted.yaml", *ops, "--output", folder], check=True)
    subprocess.run([*harness, "profile", "ncu", "--run", folder, *ops], check=True)
    run = store.load(folder)
    return {f"{result.case.op}/{result.case.variant}": known(run, result.case.id) for result in run.results}


@pytest.mark.parametrize("case", FAULTS)
def test_the_first_verdict_is_the_planted_fault(counted: dict[str, Known], case: str) -> None:
    reasons = [reason for reason in explain(counted[case]) if not reason.aside]
    print(case, *(f"{reason.rule}: {reason.verdict}" for reason in reasons), sep="\n  ")
    assert [reason.rule for reason in reasons][:1] == [FAULTS[case]], counted[case].kernels


@pytest.mark.parametrize("case", SOUND)
def test_what_does_the_same_without_the_fault_has_none_of_them(counted: dict[str, Known], case: str) -> None:
    assert not {reason.rule for reason in explain(counted[case])} & set(FAULTS.values())
