"""Pictures of bars: a ceiling for each bar where bars have different ones, and room for all texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.metrics import METRICS
from harness.model import Measurement, Run
from harness.report import charts, plotting

Build = Callable[..., Measurement]
MakeRun = Callable[..., Run]
SHAPES = [(("N", 128), ("C", 64 * k), ("H", 112 // k)) for k in (1, 2)]


@pytest.fixture
def drawing_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The figure of a plot, as it is before it is saved."""
    monkeypatch.setattr(charts, "save", lambda drawing, _path: [drawing])

    def draw(plot: plotting.Plot, peak: float | None = None) -> Any:
        drawing: Any
        (drawing,) = charts.draw(plot, peak, Path("x.svg"))
        drawing.draw_without_rendering()
        return drawing

    return draw


def ceilings_of(axes: Any) -> list[tuple[float, float, float]]:
    """Where ceilings begin and end, and how high they are."""
    lines = [segment for lines in axes.collections for segment in lines.get_segments()]
    return [(round(start[0], 3), round(end[0], 3), round(start[1])) for start, end in lines]


def test_bars_with_the_same_ceiling_have_one_line(
    measured: Build, make_run: MakeRun, drawing_of: Callable[[plotting.Plot], Any]
) -> None:
    (plot,), _ = plotting.plan(make_run([measured(name, "float32", SHAPES[0]) for name in ("eager", "tuned")]))
    plot.rows[plot.metric.limit] = [3e12, 3.01e12]  # which no picture tells apart
    assert ceilings_of(drawing_of(plot).axes[0]) == [(-0.41, 0.41, 3010)]


def test_bars_of_a_metric_without_a_limit_have_no_ceiling(
    measured: Build, make_run: MakeRun, drawing_of: Callable[[plotting.Plot], Any]
) -> None:
    (plot,), _ = plotting.plan(make_run([measured(name, "float32", SHAPES[0]) for name in ("eager", "tuned")]))
    assert ceilings_of(drawing_of(replace(plot, metric=METRICS["time"])).axes[0]) == []


def test_a_bar_with_another_ceiling_has_a_line_of_its_own(
    measured: Build, make_run: MakeRun, drawing_of: Callable[[plotting.Plot], Any]
) -> None:
    names = ("eager", "compile", "tuned")
    run = make_run([measured(name, "float32", shape) for shape in SHAPES for name in names])
    (plot,), _ = plotting.plan(run)
    assert list(plot.rows["series"]) == [*names, *names]
    plot.rows[plot.metric.limit] = [3e12, 6e12, float("nan"), 2e12, 2e12, 2e12]
    drawn = ceilings_of(drawing_of(plot).axes[0])
    assert drawn == [(-0.41, -0.137, 3000), (-0.137, 0.137, 6000), (0.59, 1.41, 2000)]


@pytest.mark.parametrize("bars", [2, 9])
def test_ceilings_far_above_all_bars_arent_shown(
    bars: int, measured: Build, make_run: MakeRun, drawing_of: Callable[..., Any]
) -> None:
    """A small model reaches a thousandth of the peak: with the ceiling, all its bars would be of no height."""
    (plot,), _ = plotting.plan(make_run([measured(f"v{n}", "float32", SHAPES[0]) for n in range(bars)]))
    longest = plot.rows[plot.metric.name].max()
    for times, shown in ((40, True), (60, False)):
        plot.rows[plot.metric.limit] = longest * times
        axes = drawing_of(plot, peak=longest * times).axes[0]
        assert len([*axes.lines, *axes.collections]) == (2 if shown else 0), "the ceiling, and the peak of a copy"
        name = axes.get_ylabel() if bars == 2 else axes.get_xlabel()
        assert name.endswith("\nceiling: far above") is not shown
        reach = axes.get_ylim()[1] if bars == 2 else axes.get_xlim()[1]
        assert bool(reach * 1e9 > 2 * longest) is shown


def test_a_ceiling_that_is_near_is_shown_beside_one_that_is_far(
    measured: Build, make_run: MakeRun, drawing_of: Callable[..., Any]
) -> None:
    names = ("eager", "compile", "tuned")
    (plot,), _ = plotting.plan(make_run([measured(name, "float32", SHAPES[0]) for name in names]))
    longest = plot.rows[plot.metric.name].max()
    plot.rows[plot.metric.limit] = [2 * longest, 100 * longest, float("nan")]
    axes = drawing_of(plot).axes[0]
    assert ceilings_of(axes) == [(-0.41, -0.137, round(2 * longest / 1e9))]
    assert axes.get_ylabel().endswith("\nceiling: far above")


@pytest.mark.parametrize("differ", [False, True])
def test_a_ranking_has_one_ceiling_or_one_for_each_bar(
    differ: bool, measured: Build, make_run: MakeRun, drawing_of: Callable[[plotting.Plot], Any]
) -> None:
    names = [f"v{place}" for place in range(9)]
    (plot,), _ = plotting.plan(make_run([measured(name, "float32", SHAPES[0]) for name in names]))
    assert plot.layout == "ranking"
    plot.rows[plot.metric.limit] = [6e12 if differ and name == "v4" else 3e12 for name in plot.rows["series"]]
    axes = drawing_of(plot).axes[0]
    segments = [segment for lines in axes.collections for segment in lines.get_segments()]
    of_bars = [(round(start[0]), start[1], end[1]) for start, end in segments]
    place = list(plot.rows["series"]).index("v4")
    assert of_bars == ([(6000 if row == place else 3000, row - 0.5, row + 0.5) for row in range(9)] if differ else [])
    assert (3000 in [line.get_xdata()[0] for line in axes.lines]) is not differ


def test_a_number_hides_no_ceiling_of_its_bar(
    measured: Build, make_run: MakeRun, drawing_of: Callable[[plotting.Plot], Any]
) -> None:
    (plot,), _ = plotting.plan(make_run([measured(f"v{place}", "float32", SHAPES[0]) for place in range(9)]))
    values = plot.rows[plot.metric.name]
    near, far = values * 1.05, values * 5
    plot.rows[plot.metric.limit] = [*near[:1], *far[1:]]
    numbers = [text.xy[0] * 1e9 for text in drawing_of(plot).axes[0].texts]
    assert numbers == pytest.approx([*near[:1], *values[1:]])


def test_a_picture_grows_with_its_legend_once_the_legend_is_long(
    measured: Build, make_run: MakeRun, drawing_of: Callable[[plotting.Plot], Any]
) -> None:
    def height(*names: str) -> float:
        (plot,), _ = plotting.plan(make_run([measured(name, "float32", SHAPES[0]) for name in names]))
        return float(drawing_of(plot).get_figheight())

    usual = height("eager", "tuned")
    assert height(*"abcdefgh") == usual
    # Two of these names are a row. With the ceiling they take five rows, and the axis takes one: one more than fit.
    assert height(*(f"a_variant_with_a_name_{place}" for place in range(8))) == pytest.approx(usual + 0.14)


def test_a_long_legend_leaves_room_for_the_name_of_the_axis(
    measured: Build, make_run: MakeRun, drawing_of: Callable[[plotting.Plot], Any]
) -> None:
    names = ["eager", *(f"a_variant_with_a_name_{place}" for place in range(7))]
    (plot,), _ = plotting.plan(make_run([measured(name, "float32", SHAPES[0]) for name in names]))
    drawing = drawing_of(replace(plot, axis="a long list of choices, " * 3))
    label, title = drawing.axes[0].yaxis.label.get_window_extent(), drawing._suptitle.get_window_extent()
    assert label.y1 < title.y0
    assert drawing.axes[0].get_window_extent().height > label.height
