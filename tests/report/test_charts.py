"""Pictures of bars: a ceiling for each bar where bars have different ones, and room for all texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.model import Measurement, Run
from harness.report import charts, plotting

Build = Callable[..., Measurement]
MakeRun = Callable[..., Run]
SHAPES = [(("N", 128), ("C", 64 * k), ("H", 112 // k)) for k in (1, 2)]


@pytest.fixture
def drawing_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[plotting.Plot], Any]:
    """The figure of a plot, as it is before it is saved."""
    monkeypatch.setattr(charts, "save", lambda drawing, _path: [drawing])

    def draw(plot: plotting.Plot) -> Any:
        drawing: Any
        (drawing,) = charts.draw(plot, None, Path("x.svg"))
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


def test_a_long_legend_leaves_room_for_the_name_of_the_axis(
    measured: Build, make_run: MakeRun, drawing_of: Callable[[plotting.Plot], Any]
) -> None:
    names = ["eager", *(f"a_variant_with_a_name_{place}" for place in range(7))]
    (plot,), _ = plotting.plan(make_run([measured(name, "float32", SHAPES[0]) for name in names]))
    drawing = drawing_of(replace(plot, axis="a long list of choices, " * 3))
    label, title = drawing.axes[0].yaxis.label.get_window_extent(), drawing._suptitle.get_window_extent()
    assert label.y1 < title.y0
    assert drawing.axes[0].get_window_extent().height > label.height
