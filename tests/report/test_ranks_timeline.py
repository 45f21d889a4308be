"""The page of several ranks' timelines."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from harness.profile import torch as tool
from harness.profile.torch import RanksProfile
from harness.report import ranks_timeline, terminal
from harness.report.formats import markdown
from tests.profile.made_ranks import alike, write


@pytest.fixture
def late(tmp_path: Path) -> RanksProfile:
    """Rank 2 works 200 us longer than the others in each of four turns of a step."""
    usual = alike()
    return tool.of_ranks(write(tmp_path, lambda rank, turn: usual(rank, turn) + 200 * (rank == 2), ahead=[0, 70, 0, 0]))


def rows(text: str, head: str) -> list[list[str]]:
    """The rows of the table whose head has this word."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("|") and head in line)
    cut = [line for line in lines[first + 2 : first + 40] if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in cut]


def test_the_page_says_first_who_is_late_and_what_to_do(late: RanksProfile) -> None:
    text = markdown.render(ranks_timeline.page(late))
    assert text.startswith("# Timelines of 4 ranks")
    assert text.index("Rank 2 holds the other ranks up") < text.index("nvidia-smi") < text.index("## By rank")
    assert rows(text, "straggler")[0][0] == "rank 2"
    assert "Rank 2 alone" in text


def test_shares_of_a_rank_add_up(late: RanksProfile) -> None:
    found = rows(markdown.render(ranks_timeline.page(late)), "computing")
    assert [row[0] for row in found[:4]] == ["0", "1", "2", "3"]
    for row in found[:4]:
        assert sum(float(cell.removesuffix("%")) for cell in row[-4:]) == pytest.approx(100, abs=0.3)


def test_clocks_and_waits_are_shown_by_rank(late: RanksProfile) -> None:
    text = markdown.render(ranks_timeline.page(late))
    found = rows(text, "clock")
    assert found[0][1] == "0 s"
    assert 66 < float(found[1][1].removesuffix(" us")) < 74
    assert "24 collectives in which every rank waits for all" in text


def test_many_ranks_are_summed(tmp_path: Path) -> None:
    usual = alike()
    work = lambda rank, turn: usual(rank, turn) + 300 * (rank == 17)  # noqa: E731
    text = markdown.render(ranks_timeline.page(tool.of_ranks(write(tmp_path, work, ranks=20, steps=4))))
    computing = next(row for row in rows(text, "most in rank")[1:] if row[0] == "computing")
    assert computing[-1] == "17"
    assert "Rank 17 holds" in text


def test_what_isnt_known_is_said(tmp_path: Path) -> None:
    text = markdown.render(ranks_timeline.page(tool.of_ranks(write(tmp_path, alike(), ranks=2, steps=1))))
    assert "Can't tell which rank is late" in text
    assert "Nothing is known of waiting" in text
    assert "until the last" not in text


def test_a_page_fits_a_terminal_of_80_columns(late: RanksProfile) -> None:
    written = io.StringIO()
    terminal.show(ranks_timeline.page(late), Console(file=written, width=80))
    assert max(map(len, written.getvalue().splitlines())) <= 80
