"""Curves of variants: the figure, the tables over it, and where variants stop."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from harness import report
from harness.model import Curve, Measurement, Run, Work
from harness.report import charts, frame, looks, plotting, sweeps, terminal
from harness.report.text import as_text
from harness.report.tree import Table
from tests.one_test import one_test

Build = Callable[..., Measurement]
MakeRun = Callable[..., Run]
SIZES = (1, 4, 49, 1024, 65536)


def refusal(variant: str, dtype: str, n: int) -> dict[str, Any]:
    """Why a variant has no result; `shared` stops earlier in float32."""
    if variant == "shared" and n * (4 if dtype == "float32" else 2) > 200_000:
        return {"status": "unsupported", "error": f"a row of {n} needs {4 * n} bytes of shared memory"}
    if variant == "registers" and n > 1024:
        return {"status": "unsupported", "error": "rows longer than 1024"}
    if variant == "registers" and n % 4:
        return {"status": "unsupported", "error": f"{n} isn't a multiple of 4"}
    return {"status": "wrong", "error": "y: 3 elements are off"} if (variant, n) == ("late", 1) else {}


@pytest.fixture
def swept(measured: Build, make_run: MakeRun) -> Callable[..., Run]:
    """Rows of N elements, of which `shared`, `registers` and `late` can't do all."""

    def make(
        variants: Sequence[str] = ("eager", "shared", "registers", "late", "tuned"),
        shapes: Sequence[tuple[tuple[str, int], ...]] = tuple((("M", 2**18 // n), ("N", n)) for n in SIZES),
        dtypes: Sequence[str] = ("float32", "float16"),
        **fields: Any,
    ) -> Run:
        cases = [
            measured(v, d, s, 0.9 if v == "tuned" else 0.4, op="softmax", **refusal(v, d, dict(s)["N"]))
            for d in dtypes
            for s in shapes
            for v in variants
        ]
        return make_run(cases, **{"curve": Curve("N", "elements a row"), **fields})

    return make


def sweep(run: Run) -> sweeps.Sweep:
    ((scenario, lines),) = frame.by_scenario(run)
    found = sweeps.of(scenario.curve, lines)
    assert found is not None
    return found


def texts(table: Table) -> dict[str, tuple[str, ...]]:
    """What each column says, by its head; the best of a row in angle brackets."""
    return {
        column.head: tuple(f"<{cell}>" if row in column.of.best else cell for row, cell in enumerate(column.cells))
        for column in as_text(table).columns
    }


def test_a_table_a_dtype_has_sizes_against_variants(swept: Callable[..., Run]) -> None:
    first, second = sweep(swept()).tables
    assert [as_text(first).caption, as_text(second).caption] == [
        "float32: share of the ceiling; - where a variant has none",
        "float16: share of the ceiling; - where a variant has none",
    ]
    assert texts(second) == {
        "N": ("1", "4", "49", "1024", "65536"),
        "eager": ("40.0%",) * 5,
        "shared": ("40.0%",) * 5,
        "registers": ("-", "40.0%", "-", "40.0%", "-"),
        "late": ("wrong", "40.0%", "40.0%", "40.0%", "40.0%"),
        "tuned": ("<90.0%>",) * 5,
    }
    assert texts(first)["shared"][-1] == "-"


def test_sizes_stand_in_order_whatever_order_they_were_measured_in(swept: Callable[..., Run]) -> None:
    shapes = [(("M", 2), ("N", n)) for n in (64, 8, 256)]
    (table,) = sweep(swept(["eager"], shapes, ["float32"])).tables
    assert as_text(table).caption == "float32: share of the ceiling"
    assert table.columns[0].cells == ("8", "64", "256")


def test_shapes_that_share_a_place_are_told_apart(swept: Callable[..., Run]) -> None:
    run = swept(["eager"], [(("M", m), ("N", n)) for m in (1, 8) for n in (64, 128)], ["float32"])
    (table,) = sweep(run).tables
    assert (table.columns[0].head, table.columns[0].cells) == ("shape", ("M1-N64", "M8-N64", "M1-N128", "M8-N128"))
    (figure,), _ = plotting.plan(run)
    assert figure.layout == "curve"


def test_a_case_that_was_not_reached_leaves_its_cell_empty(swept: Callable[..., Run]) -> None:
    run = swept(["eager", "tuned"], dtypes=["float32"])
    (table,) = sweep(replace(run, measurements=run.measurements[:-1])).tables
    assert [cells[-1] for cells in texts(table).values()] == ["65536", "<40.0%>", ""]
    assert "-" not in table.caption


@pytest.mark.parametrize(
    ("moved", "caption", "cells"),
    [
        (2**26, "float32: effective bandwidth in GB/s", ("1600", "<3600>")),
        (0, "float32: time in us", ("83.89", "<37.28>")),
    ],
)
def test_without_ceilings_or_bytes_the_next_best_quantity_is_shown(
    measured: Build, make_run: MakeRun, moved: int, caption: str, cells: tuple[str, str]
) -> None:
    cases = [
        replace(measured(variant, "float32", (("N", 2**24),), share), work=Work(moved, moved))
        for variant, share in (("eager", 0.4), ("tuned", 0.9))
    ]
    run = make_run(cases, curve=Curve("N", "elements"))
    (table,) = sweep(replace(run, header=replace(run.header, limits=None))).tables
    assert as_text(table).caption == caption
    assert tuple(found[0] for found in texts(table).values())[1:] == cells


def test_a_stop_is_told_once_a_reason_with_its_dtypes(swept: Callable[..., Run]) -> None:
    found = [(s.variant, s.kinds, s.ran, s.without, s.reason) for s in sweep(swept()).stops]
    both = ["float32", "float16"]
    assert sorted(found) == sorted(
        [
            (
                "shared",
                ["float32"],
                "1 to 1024",
                "65536",
                "unsupported: a row of 65536 needs 262144 bytes of shared memory",
            ),
            ("registers", both, "4, 1024", "1, 49", "unsupported: 1 isn't a multiple of 4"),
            ("registers", both, "4, 1024", "65536", "unsupported: rows longer than 1024"),
            ("late", both, "4 to 65536", "1", "wrong: y: 3 elements are off"),
        ]
    )


def test_a_variant_that_never_ran_stops_nowhere_else(swept: Callable[..., Run]) -> None:
    (stop,) = sweep(swept(["eager", "shared"], [(("M", 1), ("N", n)) for n in (65536, 131072)], ["float32"])).stops
    assert (stop.ran, stop.without) == ("nowhere", "65536 to 131072")


@one_test(
    ("chosen", "text"),
    [
        ([], "nowhere"),
        ([8], "8"),
        ([1, 2, 3, 8], "1 to 3, 8"),
        ([1, 3, 5], "1, 3, 5"),
        ([1, 3, 5, 7, 8], "5 of 8, from 1 to 8"),
    ],
)
def test_spans(chosen: list[int], text: str) -> None:
    assert sweeps.spans(chosen, range(1, 9)) == text


def test_other_curves_have_no_tables_over_them(swept: Callable[..., Run]) -> None:
    for curve in (None, Curve("N", "elements", by="M"), Curve("N", "bytes", littles_law=True)):
        run = swept(curve=curve)
        ((scenario, lines),) = frame.by_scenario(run)
        assert sweeps.of(scenario.curve, lines) is None


def lines(run: Run, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The drawing and the axes of the run's only figure."""
    monkeypatch.setattr(charts, "save", lambda drawing, _path: [drawing])
    (figure,), _ = plotting.plan(run)
    drawing: Any
    (drawing,) = charts.draw(figure, 4e12, Path("x.png"))
    drawing.draw_without_rendering()
    return drawing, drawing.axes[0]


def test_the_figure_has_a_line_a_variant_that_breaks_and_ends(
    swept: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, axes = lines(swept(dtypes=["float32"]), monkeypatch)
    drawn = {str(line.get_label()): line for line in axes.get_lines()}
    assert {name for name in drawn if not name.startswith("_")} == {
        "eager",
        "shared, up to 1024",
        "registers, from 4 up to 1024",
        "late, from 4",
        "tuned",
        "ceiling",
        "hollow: size above the plot",
        "copy peak",
    }
    broken = drawn["registers, from 4 up to 1024"]
    assert list(broken.get_xdata()) == [size for size in SIZES if size != 49]
    assert [value > 0 for value in broken.get_ydata()] == [False, True, True, False]
    walls = [(line.get_color(), list(line.get_xdata())) for line in axes.get_lines() if line.get_marker() == "|"]
    ends = {color: places for color, places in walls if places}
    assert ends == {
        drawn["shared, up to 1024"].get_color(): [1024],
        broken.get_color(): [4, 1024],
        drawn["late, from 4"].get_color(): [4],
    }
    assert list(drawn["ceiling"].get_ydata()) == pytest.approx([4000] * 5)


@pytest.mark.slow  # the test above has the figure
def test_the_figure_is_as_wide_as_the_page_and_its_name_tells_what_it_is_over(
    swept: Callable[..., Run], tmp_path: Path
) -> None:
    paths = report.write(swept(dtypes=["float32"]), tmp_path, ["plots"])
    (drawn,) = [path for path in paths if path.name == "softmax-float32.svg"]
    assert ElementTree.parse(drawn).getroot().get("width") == f"{7 * 72}pt"
    (figure,), _ = plotting.plan(swept(dtypes=["float32"]))
    assert figure.alt == "softmax float32: effective bandwidth over elements a row"


def test_a_variant_without_any_result_is_still_named(
    swept: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [(("M", 1), ("N", n)) for n in (65536, 131072, 262144, 524288)]
    _, axes = lines(swept(["eager", "shared"], shapes, ["float32"]), monkeypatch)
    assert "shared: no result" in {line.get_label() for line in axes.get_lines()}


@pytest.mark.slow  # the tests above have the figure
def test_nine_variants_share_a_figure_and_look_different(
    swept: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["eager", "compile", "tuned", *(f"v{i}" for i in range(6))]
    (figure,), _ = plotting.plan(swept(names, dtypes=["float32"]))
    found = looks.looks({name: figure.roles[name] for name in names})
    assert len({look.color for look in found.values()}) == 9
    others = [look.line["linewidth"] for name, look in found.items() if name != "tuned"]
    assert all(found["tuned"].line["linewidth"] > width for width in others)
    drawing, _ = lines(swept(names, dtypes=["float32"]), monkeypatch)
    (legend,) = drawing.legends
    boxes = [text.get_window_extent() for text in legend.get_texts()]
    assert len(boxes) == 12
    assert all(0 <= box.x0 < box.x1 <= drawing.bbox.x1 for box in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.usefixtures("unloaded")
def test_page(swept: Callable[..., Run], tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    (path,) = report.write(swept(title="Softmax over rows of any length"), tmp_path, ["markdown"])
    golden("sweep.md", path.read_text())


@pytest.mark.parametrize("width", [40, 80])
def test_on_a_terminal(swept: Callable[..., Run], width: int, golden: Callable[[str, str], None]) -> None:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    terminal.render(swept(), console)
    assert isinstance(console.file, io.StringIO)
    text = "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())
    assert max(map(len, text.splitlines())) <= width
    golden(f"sweep-{width}.txt", text)


def test_a_table_shows_the_metric_that_the_scenario_asks_for(swept: Callable[..., Run]) -> None:
    run = swept(["eager"], dtypes=["float32"])
    [(scenario, lines)] = frame.by_scenario(run)
    assert scenario.curve is not None
    found = {asked: sweeps.of(scenario.curve, lines, asked) for asked in ("", "time", "snr")}
    captions = {asked: sweep and as_text(sweep.tables[0]).caption for asked, sweep in found.items()}
    assert captions == {"": "float32: share of the ceiling", "time": "float32: time in us", "snr": captions[""]}
