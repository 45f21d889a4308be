"""The instrument without the collection: it is built, lists nothing, and measures, reports, explains and gates an op.

One run serves all tests. Its op brings a metric, a figure, a section and a verdict.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLUGINS = ROOT / "tests" / "plugins"
OPS = [f"--ops={PLUGINS / name}.py" for name in ("paged", "small")]
SCENARIO = """
title: Hops
op: hop
shapes: [{N: 2**14}]
expect: {eager: {hop_rate: 1.0}}
claims: [{row: R1, variant: twice, metric: hop_rate, value: 1000000.0, hardware: A processor, text: fast}]
"""
pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Installed:
    """An installation, in a folder of its own. ran: what the command that measured the op wrote on its console."""

    home: Path
    ran: str = ""

    def harness(self, *arguments: str, code: int = 0) -> str:
        """What a command writes to its standard output."""
        done = subprocess.run(
            [sys.executable, "-m", "harness", *arguments],
            cwd=self.home / "work",
            env=os.environ | {"PYTHONPATH": str(self.home / "site"), "PYTHONSAFEPATH": "1", "COLUMNS": "160"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


whole = pytest.mark.slow
"""test_layers.py has that the instrument imports nothing of the collection, and the first test what a wheel has."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the tree without the collection, its kernels and its scenarios."""
    folder = tmp_path_factory.mktemp("alone")
    tree = folder / "tree"
    left_out = shutil.ignore_patterns("collection", "nn.py", "__pycache__")
    shutil.copytree(ROOT / "harness", tree / "harness", ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def alone(wheel: Path) -> Installed:
    """The wheel as it is installed, and a run of the plug-in's op."""
    installed = Installed(wheel.parent)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.parent / "site")
    (wheel.parent / "work").mkdir()
    (wheel.parent / "work" / "hop.yaml").write_text(SCENARIO)
    few = ["--device=cpu", "--precision=0.5", "--max-time=0.02", "--output=run"]
    return Installed(wheel.parent, installed.harness("run", "hop.yaml", *OPS, *few))


def test_the_wheel_has_the_instrument_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert "harness/cuda/stream.cu" in names, "what a memory can do is measured without the collection's kernels"
    assert "harness/ops/sheet.py" in names
    assert [name for name in names if name.startswith(("harness/collection", "harness/nn", "harness/_data"))] == []


@whole
def test_no_op_scenario_or_tool_of_the_collection_is_listed(alone: Installed) -> None:
    lines = alone.harness("list").splitlines()
    assert [line.partition(" (")[0] for line in lines if line.strip()][:2] == ["0 ops", "0 scenarios"]
    assert any(line.startswith("  csv, ") for line in lines)
    assert "losses" not in alone.harness("profile", "--help")


@whole
def test_a_report_has_the_op_s_own_metric_figure_and_section(alone: Installed) -> None:
    run = alone.home / "work" / "run"
    page = (run / "report.md").read_text()
    assert " hops/s " in page
    assert "- **hops/s**: hops, over the time." in page
    assert "![hops of each variant](plots/hop-hops.svg)" in page
    assert "### Hops\n\n| way   | times |" in page
    assert "- **times**: moves of a number." in page
    assert "| R1  | twice: hops a second |" in page
    assert (run / "plots" / "hop-hops.svg").read_text().startswith("<?xml")
    rows = {row["variant"]: row for row in csv.DictReader((run / "results.csv").open(newline=""))}
    assert {variant: row["hops"] for variant, row in rows.items()} == {"eager": "1", "twice": "2"}
    rates = {variant: float(row["hop_rate"]) * float(row["time"]) for variant, row in rows.items()}
    assert rates == pytest.approx({"eager": 1, "twice": 2})
    assert float(rows["eager"]["of_ceiling"]) > 0


@whole
def test_a_console_has_the_metric_and_the_verdict(alone: Installed) -> None:
    assert "hops/s" in alone.ran
    assert "twice hops most" in alone.ran
    assert "R1 claims 1000000 or more (twice: hops a second, A processor): here" in alone.ran


@whole
def test_a_report_is_written_again_and_without_the_op_as_well(alone: Installed) -> None:
    work = alone.home / "work"
    shutil.copytree(work / "run", work / "again")
    shutil.rmtree(work / "again" / "plots")
    written = alone.harness("report", "again", "--format=markdown,csv", OPS[0])
    assert written.split() == ["again/report.md", "again/results.csv"]
    assert "### Hops\n\n| way" in (work / "again" / "report.md").read_text()
    alone.harness("report", "again", "--format=markdown")
    page = (work / "again" / "report.md").read_text()
    assert "### Hops\n\n| way" not in page
    assert " hops " in page, "a fact stays, though its op isn't there"
    assert "there is no metric named 'hop_rate'" in page


@whole
def test_a_case_is_explained(alone: Installed) -> None:
    text = alone.harness("explain", "hop/twice/float32/N16384", "--run=run")
    assert "hop/twice/float32/N16384" in text
    assert "of the ceiling" in text
    assert "other variants: eager" in text


@whole
def test_stored_runs_are_gated_by_the_floors_of_the_op_s_metric(alone: Installed) -> None:
    """The second run is the first one's results, said to have begun later."""
    work = alone.home / "work"
    shutil.copytree(work / "run", work / "later")
    header = json.loads((work / "later" / "run.json").read_text())
    header["started"] = "2099-01-01T00:00:00+00:00"
    (work / "later" / "run.json").write_text(json.dumps(header))
    passed = alone.harness("gate", "run", "later", OPS[0], "--margin=60%", "--accept=uncompared", "--output=passed")
    assert "passed" in passed
    header["scenarios"][0]["expect"][0]["value"] = 1e12
    (work / "later" / "run.json").write_text(json.dumps(header))
    failed = alone.harness("gate", "run", "later", OPS[0], "--advisory", "--output=failed")
    assert "hops a second" in failed
    assert "below the floor" in failed
