"""Runs on several devices: what they are compared with, their plot, and its ideal line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import report
from harness.model import Curve, Measurement, Run, Work
from harness.report import _draw, _figures, _frame, build
from harness.report.tree import tables

SHAPE = (("B", 256),)
OVER = Curve("world", "GPUs")


@pytest.fixture
def scaled(measured: Callable[..., Measurement], make_run: Callable[..., Run]) -> Run:
    """One device does 100 images in 0.1 s, two replicas as fast; ddp needs 0.125 s, and can't run on one."""

    def case(variant: str, world: int, time: float | None) -> Measurement:
        fields: dict[str, Any] = {"work": Work(items=100 * world, item="images"), "traffic": None}
        fields |= {"samples": (time,) * 7} if time else {"status": "unsupported", "error": "nobody to talk to"}
        return measured(variant, "float16", SHAPE, world=world, **fields)

    cases = [case("replicas", 1, 0.1), case("ddp", 1, None), case("replicas", 2, 0.1), case("ddp", 2, 0.125)]
    return make_run(cases, curve=OVER, baseline="replicas")


def test_a_variant_that_needs_several_devices_is_compared_with_the_baseline_on_one(scaled: Run) -> None:
    found = {(line.case.variant, line.case.world): line.values for line in _frame.lines(scaled)}
    assert found["ddp", 2]["efficiency"] == pytest.approx(0.8)
    assert found["replicas", 2]["efficiency"] == pytest.approx(1.0)
    assert found["replicas", 1]["efficiency"] is None
    assert [found[key]["ideal_items"] for key in (("replicas", 1), ("ddp", 2))] == pytest.approx([1000, 2000])


def test_a_curve_over_devices_has_one_plot_with_the_ideal_line_and_a_table_of_all_figures(
    scaled: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plot,) = [plot for plot in _figures.plan(scaled)[0] if plot.sort == "usual"]
    assert (plot.metric.name, plot.axis, sorted(plot.swept.values())) == ("items", "GPUs", [1, 2])
    seen: dict[str, Any] = {}

    def look(axes: Any, shown: Any) -> None:
        variants(axes, shown)
        seen.update({line.get_label(): line.get_ydata().tolist() for line in axes.get_lines()})
        seen["scale"] = axes.get_xscale()

    variants = _draw._LAYOUTS["variants"]
    monkeypatch.setitem(_draw._LAYOUTS, "variants", look)
    report.write(scaled, tmp_path, ["plots"])
    assert seen["ideal"] == pytest.approx([1, 2])  # thousand images a second
    assert seen["scale"] == "linear"
    heads = {column.head for table in tables(build.page(scaled).blocks) for column in table.columns}
    assert {"efficiency", "efficiency low", "efficiency high"} <= heads
