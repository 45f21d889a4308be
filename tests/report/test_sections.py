"""What an op brings along for its reports: blocks beside its table, and what a mistake of its pages costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import report
from harness.model import Attachment, Curve, Measurement, Run
from harness.ops import Op
from harness.ops.catalogue import LOADED
from harness.report import build, sections
from harness.report.formats import markdown
from harness.report.tree import Figure, Note, Section

Offer = Callable[..., None]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """offer(sections=..., ...): lets the op of the runs here have such pages."""

    def make(op: str = "hop", **pages: object) -> None:
        monkeypatch.setitem(LOADED, op, Op(op, "", symbols={}, pages=lambda: SimpleNamespace(**pages)))
        sections._pages.cache_clear()

    yield make
    sections._pages.cache_clear()


@pytest.fixture
def hops(measured: Callable[..., Measurement], make_run: Callable[..., Run]) -> Callable[..., Run]:
    """A run of two variants, of which a tool found two figures."""

    def make(**fields: object) -> Run:
        cases = [measured(name, "float32", (("N", 2**14),), op="hop") for name in ("eager", "twice")]
        found = Attachment(cases[1].case.id, "mine", (("hops", 2.0), ("skips", 3.0)))
        return make_run(cases, attachments=(found,), **fields)

    return make


def written(path: Path) -> list[Path]:
    path.write_text("drawn")
    return [path]


def test_blocks_stand_where_they_belong(offer: Offer, hops: Callable[..., Run], tmp_path: Path) -> None:
    inside = sections.figure("inside", written, "hop", "in a section")
    offer(
        figures=lambda lines: [sections.figure(f"{len(lines)} cases", written, "hop", "all")],
        sections=lambda lines: [Section("Hops", (inside, Note("a note")))],
        verdicts=lambda lines: [Note("hops well", "strong")],
        ELSEWHERE=("mine.hops",),
    )
    run = hops()
    page = markdown.render(build.page(run))
    table, plot, figure, own, note = (
        page.index(text)
        for text in ("| shape", "](plots/hop-float32.svg)", "![2 cases](plots/hop-all.svg)", "### Hops", "a note")
    )
    assert plot < figure < table < own < note
    assert "mine.skips" in page
    assert "mine.hops" not in page
    assert "hops well" in str(build.screen(run))
    assert "hops well" in str(build.screen_of_verdicts(run))
    assert "hops well" in str(build.screen(hops(curve=Curve("N", "elements"))))
    drawn = {path.name for path in report.write(run, tmp_path, ["plots"])}
    assert {"hop-all.svg", "hop-in_a_section.svg"} <= drawn
    assert (tmp_path / "plots" / "hop-all.svg").read_text() == "drawn"


def test_an_op_that_isnt_loaded_or_has_no_pages_has_only_a_table(offer: Offer, hops: Callable[..., Run]) -> None:
    offer("another", sections=lambda lines: [Section("Hops", ())])
    assert "Hops" not in markdown.render(build.page(hops()))
    assert build.screen_of_verdicts(hops()).blocks == ()


def test_an_error_of_pages_costs_only_what_they_would_have_said(offer: Offer, hops: Callable[..., Run]) -> None:
    offer(sections=lambda lines: [1 / 0], verdicts=lambda lines: [Note("hops well")])
    page = markdown.render(build.page(hops()))
    assert "the sections of op 'hop' can't be made: ZeroDivisionError: division by zero" in page
    assert "| variant" in page
    assert "hops well" in str(build.screen(hops()))


def test_a_picture_that_cant_be_drawn_costs_only_itself(
    offer: Offer, hops: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(path: Path) -> list[Path]:
        raise ValueError(path.name)

    offer(figures=lambda lines: [sections.figure("a", fails, "hop", "a"), Figure("plots/other.svg", "drawn elsewhere")])
    assert [path.name for path in report.write(hops(), tmp_path, ["plots"])] == ["hop-float32.svg", "ceilings.svg"]
    assert "warning: plots/hop-a.svg can't be drawn" in capsys.readouterr().err


def test_pages_that_offer_nothing_and_pages_that_arent_there_are_told(
    offer: Offer, hops: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(section=lambda lines: [])
    page = markdown.render(build.page(hops()))
    assert re.search("the sections of op 'hop' .* have no figures, no sections and no verdicts", page)
    monkeypatch.setitem(LOADED, "hop", Op("hop", "", symbols={}, pages="no.such.module"))
    page = markdown.render(build.page(hops()))
    assert "the sections of op 'hop' can't be made: ModuleNotFoundError: No module named 'no'" in page
    assert "mine.hops" in page
