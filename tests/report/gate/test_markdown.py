from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.gate.records import Finding, GateRun, UsedCode
from harness.report.formats.markdown import prose
from harness.report.gate.formats import markdown


def test_page(gate_run: GateRun, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    [path] = markdown.write(gate_run, tmp_path)
    assert path.name == "gate.md"
    golden("gate.md", path.read_text(encoding="utf-8"))


def test_the_summary_is_the_page_without_the_figure_after_what_is_there(gate_run: GateRun, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# Before\n")
    markdown.append(gate_run, summary)
    assert summary.read_text(encoding="utf-8") == "# Before\n" + markdown.page(gate_run)
    assert "![" not in markdown.page(gate_run)


def test_a_summary_that_github_would_drop_is_cut_at_a_line(gate_run: GateRun, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("é" * 1000)
    notes = tuple(Finding("missing", "note", f"é {i} " + "x" * 1000) for i in range(2000))
    markdown.append(replace(gate_run, findings=notes), summary)
    assert markdown.LIMIT - 1500 < summary.stat().st_size <= markdown.LIMIT
    *_, last, _, cut = summary.read_text(encoding="utf-8").splitlines()
    assert last.endswith("xxx")
    assert cut.startswith("The rest was cut")


def test_a_summary_that_is_full_stays_as_it_is(gate_run: GateRun, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_bytes(b"x" * markdown.LIMIT)
    markdown.append(gate_run, summary)
    assert summary.stat().st_size == markdown.LIMIT


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("layer_norm lost 3%", "layer_norm lost 3%"),
        ("_a_ *b* [c](d) `e` <f> | ~g~", "\\_a\\_ \\*b\\* \\[c\\](d) \\`e\\` &lt;f> \\| \\~g\\~"),
        ("two\nlines &amp;", "two lines &amp;amp;"),
    ],
)
def test_prose_is_not_taken_for_markdown(text: str, escaped: str) -> None:
    assert prose(text) == escaped


def test_changed_files_that_a_side_used_are_named(gate_run: GateRun) -> None:
    """A reader sees what a failure may come from, also where no digest differs, as where a link has another target."""
    files = tuple(f"part{i:02}.py" for i in range(12))
    page = markdown.page(replace(gate_run, used=UsedCode(changed=files)))
    assert f"| changed, and used | {', '.join(files[:9])}, and 3 more" in " ".join(page.split())
    assert "changed, and used" not in markdown.page(replace(gate_run, used=UsedCode(unused=files)))


def test_a_page_of_the_same_code_tells_nothing_of_pairs(make_gate: Callable[..., GateRun]) -> None:
    files = (("mine.py", "d" * 64),)
    page = markdown.page(make_gate([], used=UsedCode(files, files, complete=True)))
    assert "Both sides used the same files, each its own, so there was nothing to compare." in page
    assert not [word for word in ("pairs", "seed", "**change**", "0 cases") if word in page.lower()]
    assert "\nExit code 0: both sides use the same code, so nothing was measured.\n" in page


def test_a_run_of_one_case_is_told_so(gate_run: GateRun) -> None:
    decided = [found for found in gate_run.cases if found.decision and not found.control]
    assert " of runs of this case. " in markdown.page(replace(gate_run, cases=tuple(decided[:1])))
    assert " of runs of these 2 cases. " in markdown.page(replace(gate_run, cases=tuple(decided[:2])))
