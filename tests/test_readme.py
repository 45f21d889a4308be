"""The README's own op and scenario, taken from the page and run as a newcomer would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cuda.compile import compile_verbose
from harness.ops import Catalogue
from harness.scenario import Selection, load, plan

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
SMALL = Path(__file__).parent / "plugins" / "small.py"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with the files that the section on adding an op shows."""
    found = re.findall(r"`(mine\.\w+)`[^\n]*\n\n```\w+\n(.*?)```", README, re.DOTALL)
    assert [name for name, _ in found] == ["mine.py", "mine.cu", "mine.yaml"]
    for name, text in found:
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_op_of_the_readme_runs(files):
    command = [sys.executable, "-m", "harness", "run", "mine.yaml", "--ops", "mine.py", "--max-time", "0.05"]
    # On a CPU that looks small: its ceilings have tests of their own.
    on_cpu = [*command, "--ops", SMALL, "--device", "cpu", "--output", "report"]
    done = subprocess.run(on_cpu, cwd=files, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 ok" in done.stdout
    assert "double/eager/float32/N16777216" in (files / "report" / "results.csv").read_text()


def test_the_kernel_of_the_readme_compiles(files):
    code, log = compile_verbose(files / "mine.cu", {}, "sm_90")
    assert code
    assert "0 bytes spill stores" in log


@pytest.mark.gpu
def test_the_op_of_the_readme_runs_on_a_gpu(files):
    command = [sys.executable, "-m", "harness", "run", "mine.yaml", "--ops", "mine.py", "--max-time", "0.2"]
    done = subprocess.run(command, cwd=files, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 ok" in done.stdout


def test_the_scenario_of_the_readme_is_valid(tmp_path):
    (text,) = re.findall(r"## A scenario\n\n```yaml\n(.*?)```", README, re.DOTALL)
    file = tmp_path / "shown.yaml"
    file.write_text(text)
    catalogue = Catalogue()
    jobs = plan(load([file], catalogue), catalogue, Selection(device="cuda")).jobs
    assert len(jobs) == 2 * 2 * 5
    assert {dict(job.case.shape)["W"] for job in jobs} == {7}


def test_every_file_that_the_readme_links_to_is_there():
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    missing = [target for target in targets if not (Path(__file__).parent.parent / target).exists()]
    assert not missing
