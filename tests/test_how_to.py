"""The how-to pages of the docs: their commands exist, and their op can be measured."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from harness.ops import Catalogue
from harness.scenario import Selection, load, plan
from tests.one_test import one_test
from tests.test_readme import complaint

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def commands(page: Path) -> list[list[str]]:
    """The commands of the harness on a page, in blocks of shell and in backquotes."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for line in "".join(blocks).splitlines() if line.startswith("harness ")]
    quoted = re.findall(r"`(harness [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return [shlex.split(command, comments=True)[1:] for command in (*lines, *quoted)]


def test_there_are_pages() -> None:
    assert {"gate.md", "judge.md", "models.md", "own-ops.md"} <= {page.name for page in PAGES}


@one_test("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists_with_its_options(page: Path) -> None:
    assert commands(page)
    assert [(words, wrong) for words in commands(page) if (wrong := complaint(words))] == []


def test_the_op_of_the_page_is_one_and_its_scenario_has_cases(tmp_path: Path) -> None:
    page = (DOCS / "own-ops.md").read_text(encoding="utf-8")
    (code,), (scenario,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "yaml"))
    (tmp_path / "mine.py").write_text(code)
    (tmp_path / "mine.yaml").write_text(scenario)
    ops = Catalogue((tmp_path / "mine.py",))
    op = ops["twice"]
    assert list(op.variants) == ["eager", "compile", "compile_autotune"]
    op.refuse_unchecked()
    cases = [job.case.id for job in plan(load([tmp_path / "mine.yaml"], ops), ops, Selection("cuda")).jobs]
    assert cases[0] == "twice/eager/float32/N1048576"
    assert len(cases) == 6
