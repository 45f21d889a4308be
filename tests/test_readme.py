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

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *(page for room in ("harness", "kernels") for page in (ROOT / room).rglob("*.md"))]
SMALL, LIMITED = (Path(__file__).parent / "plugins" / name for name in ("small.py", "limited.py"))


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
    # With limits and a cache that take no time, since they have tests of their own, and with fewer elements.
    smaller = (files / "mine.yaml").read_text().replace("2**24", "2**16")
    (files / "mine.yaml").write_text(smaller)
    on_cpu = [*command, "--ops", SMALL, "--ops", LIMITED, "--device", "cpu", "--output", "report"]
    done = subprocess.run(on_cpu, cwd=files, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 ok" in done.stdout
    assert "double/eager/float32/N65536" in (files / "report" / "results.csv").read_text()


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
    assert len(jobs) == 2 * 2 * len(catalogue["prelu"].variants)
    assert {dict(job.case.shape)["W"] for job in jobs} == {7}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^):#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not leads_somewhere(page, *link)] == []


def test_a_link_to_nowhere_would_be_noticed():
    page = ROOT / "README.md"
    assert leads_somewhere(page, "kernels/README.md", "limits")
    assert leads_somewhere(page, "", "two-commands")
    assert not leads_somewhere(page, "kernels/README.md", "no-limits")
    assert not leads_somewhere(page, "kernels/NONE.md", "")


def leads_somewhere(page: Path, target: str, heading: str) -> bool:
    """Whether the file is there, and has a heading that GitHub would give this name."""
    file = page.parent / target if target else page
    if not heading:
        return file.exists()
    titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
