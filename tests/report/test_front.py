"""What a page says first: eight answers, and the comparisons in which ours is behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness import source
from harness.model import Measurement, Run
from harness.ops import Catalogue
from harness.ops.sheet import Op
from harness.report import build, front
from harness.report.formats.markdown import render

Build = Callable[..., Measurement]
MakeRun = Callable[..., Run]
ROLES = (("eager", "baseline"), ("compile", "baseline"), ("tuned", "ours"))
REPORTS = Path(__file__).parents[2] / "reports" / "h200"
FIRST = 40
"""Lines of a page in which a reader finds all answers."""
LABELS = ("Behind", "Faster", "Ceiling", "Trust", "Fastest", "Source", "Why", "Changed")


@pytest.fixture
def lost(measured: Build, make_run: MakeRun) -> Callable[[int], Run]:
    """A run in which ours is behind so many times, and ahead once."""

    def make(count: int) -> Run:
        shares = {"eager": 0.5, "compile": 0.8, "tuned": 0.4}
        behind = [measured(v, "float32", (("N", 2**20 + n),), s) for n in range(count) for v, s in shares.items()]
        ahead = [measured(v, "float32", (("N", 2**24),), s) for v, s in (shares | {"tuned": 0.9}).items()]
        return make_run([*behind, *ahead], roles=ROLES, baseline="eager")

    return make


def first_lines(run: Run) -> list[str]:
    return render(build.page(run)).splitlines()[:FIRST]


@pytest.mark.parametrize("count", [0, 2, 60])
def test_all_answers_stand_in_the_first_lines(count: int, lost: Callable[[int], Run]) -> None:
    assert Catalogue()
    lines = first_lines(lost(count))
    for label in LABELS:
        assert sum(line.startswith(f"- **{label}**") for line in lines) == 1, label
    text = "\n".join(lines)
    assert f"in {count} of {count + 1} comparison" in text
    assert "`git show 0123abc:kernels/activation/prelu.cu`" in text
    assert f"- **Fastest**: {'compile in ' + str(count) if count > 1 else 'tuned in 1'} of {count + 1} comp" in text
    assert f"harness explain 'prelu/tuned/float32/N{2**20 if count else 2**24}' --run ." in text


def test_a_run_without_a_result_says_so(lost: Callable[[int], Run]) -> None:
    assert "- **Trust**: No case has a result. No warnings" in first_lines(replace(lost(1), measurements=()))


def test_no_more_losses_than_a_screen_holds_stand_before_the_folded_ones(lost: Callable[[int], Run]) -> None:
    page = render(build.page(lost(10)))
    shown, folded = page.partition("<details><summary>Behind in 2 more</summary>")[::2]
    assert shown.count("| tuned | compile |") == 8
    assert folded.partition("</details>")[0].count("| tuned | compile |") == 2


def test_the_page_goes_from_the_summary_over_figures_and_tables_to_details(run: Run) -> None:
    page = render(build.page(run))
    heads = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    assert heads == [
        "Summary", "Each op", "Figures", "PReLU from naive to tuned", "copy", "Fastest variants", "Warnings",
        "What the machine can do", "Variants and rows", "How to read the tables", "Machine and command",
    ]  # fmt: skip
    contents = next(line for line in page.splitlines() if line.startswith("**Contents**"))
    assert [part.partition("]")[0] for part in contents.split("[")[1:]] == heads[1:]
    assert "(#prelu-from-naive-to-tuned)" in contents


def test_variants_are_explained_with_their_rows() -> None:
    assert Catalogue()["prelu"].variants["packed"].rows == ("R2", "R3")
    legend = front._legend("prelu", {"packed": "published", "mine": "ours"})
    cells = [column.cells for column in legend.columns]
    assert cells[:3] == [("packed", "mine"), ("published", "ours"), ("R2, R3", "")]
    assert cells[3] == (Catalogue()["prelu"].variants["packed"].summary, "")


def test_a_page_is_made_where_the_file_of_an_op_is_gone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, whose op was in a file that lives no longer than the measuring."""
    monkeypatch.setattr(front, "LOADED", {"prelu": Op("prelu", "", symbols={}, file=tmp_path / "gone.py")})
    assert front.kernel("prelu") == ""
    assert "## Variants and rows" in render(build.page(run))


def test_a_user_s_op_has_none_of_the_kernels_that_it_imports_for_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from harness.collection import nn\n", encoding="utf-8")
    monkeypatch.setattr(front, "LOADED", {"mine": Op("mine", "", symbols={}, file=file)})
    assert source.to_read(file)[1:], "there are kernels to choose from"
    assert front.kernel("mine") == ""


def test_a_long_table_is_folded(lost: Callable[[int], Run]) -> None:
    assert "<details><summary>All 6 cases</summary>" not in render(build.page(lost(1)))
    assert "<details><summary>All 63 cases</summary>" in render(build.page(lost(20)))


def test_a_run_without_ours_says_so_and_one_without_times_has_no_answers_of_times(
    measured: Build, make_run: MakeRun
) -> None:
    alone = make_run([measured("eager", "float32", (("N", 64),))], roles=ROLES)
    assert "No variant of ours was compared with a rival." in "\n".join(first_lines(alone))
    failed = make_run([measured("tuned", "float32", (("N", 64),), status="crashed", error="no")], roles=ROLES)
    assert "- **Fastest**" not in "\n".join(first_lines(failed))


def test_a_console_begins_with_the_answer(lost: Callable[[int], Run]) -> None:
    first = build.screen(lost(1)).blocks[0]
    assert "is behind the fastest rival by more than 1% in 1 of 2 comparisons" in str(first)


def test_source_is_named_with_the_commit_and_what_it_lacks(lost: Callable[[int], Run]) -> None:
    assert Catalogue()
    run = lost(0)
    clean = replace(run, header=replace(run.header, git_dirty=False))
    assert "but for uncommitted changes" in "\n".join(first_lines(run))
    assert "but for uncommitted changes" not in "\n".join(first_lines(clean))
    none = replace(run, header=replace(run.header, git_revision=""))
    assert "**Source**" not in "\n".join(first_lines(none))


@pytest.mark.parametrize("name", ["norms", "softmax", "counters"])
def test_committed_reports_answer_in_their_first_lines(name: str) -> None:
    lines = (REPORTS / name / "report.md").read_text(encoding="utf-8").splitlines()[:FIRST]
    assert [label for label in LABELS if not any(line.startswith(f"- **{label}**") for line in lines)] == []
