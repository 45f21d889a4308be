"""Runs on several devices: what they are compared with, their plot, and its ideal line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import report
from harness.collection.ops.collectives._collectives import COLLECTIVE
from harness.model import ComputePoint, Curve, Limits, LinkPoint, Measurement, Run, Work
from harness.ops import Catalogue
from harness.report import build, charts, frame, plotting
from harness.report.canvas import legend
from harness.report.tree import tables

Catalogue()  # whose collectives and steps add metrics

SHAPE = (("B", 256),)
FLOPS = (("float16", 10**13),)
"""Operations of a step on each device: at 800 TFLOP/s they take longer than all else at best."""
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
    found = {(line.case.variant, line.case.world): line.values for line in frame.lines(scaled)}
    assert found["ddp", 2]["efficiency"] == pytest.approx(0.8)
    assert found["replicas", 2]["efficiency"] == pytest.approx(1.0)
    assert found["replicas", 1]["efficiency"] is None
    assert [found[key]["ideal_items"] for key in (("replicas", 1), ("ddp", 2))] == pytest.approx([1000, 2000])


def test_a_variant_that_failed_on_one_device_is_compared_with_nothing(scaled: Run) -> None:
    """Its step may differ from the baseline's: it may be the step of another rung."""
    failed = tuple(
        replace(m, status="out_of_memory") if (m.case.variant, m.case.world) == ("ddp", 1) else m
        for m in scaled.measurements
    )
    found = {(line.case.variant, line.case.world): line for line in frame.lines(replace(scaled, measurements=failed))}
    assert found["ddp", 2].values["efficiency"] is None
    assert found["replicas", 2].values["efficiency"] == pytest.approx(1.0)


def test_a_curve_over_devices_has_one_plot_with_the_ideal_line_and_a_table_of_all_figures(
    scaled: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plot,) = [plot for plot in plotting.plan(scaled)[0] if plot.sort == "usual"]
    assert (plot.metric.name, plot.axis, sorted(plot.swept.values())) == ("items", "GPUs", [1, 2])
    seen: dict[str, Any] = {}

    def look(axes: Any, shown: Any) -> None:
        world(axes, shown)
        seen.update({line.get_label(): line.get_ydata().tolist() for line in axes.get_lines()})
        seen["scale"] = axes.get_xscale()

    world = charts._LAYOUTS["world"]
    monkeypatch.setitem(charts._LAYOUTS, "world", look)
    report.write(scaled, tmp_path, ["plots"])
    assert seen["ideal"] == pytest.approx([1, 2])  # thousand images a second
    assert seen["scale"] == "linear"
    without = tuple(m for m in scaled.measurements if (m.case.variant, m.case.world) != ("replicas", 2))
    seen.clear()
    report.write(replace(scaled, measurements=without), tmp_path, ["plots"])
    assert seen["ideal"] == pytest.approx([1, 2]), "the line begins at one device, though no case ran on one and on two"
    heads = {column.head for table in tables(build.page(scaled).blocks) for column in table.columns}
    assert {"efficiency", "efficiency low", "efficiency high"} <= heads


@pytest.fixture
def eight(measured: Callable[..., Measurement], make_run: Callable[..., Run], limits: Limits) -> Run:
    """Two rungs on one to eight devices, each 100 images: the slower one in 0.1 s, the faster in 0.05 s and more."""
    times = {"tf32": dict.fromkeys((1, 2, 4, 8), 0.1), "attention": {1: 0.05, 2: 0.0625, 4: 0.0625, 8: 0.08}}
    cases = [
        measured(
            variant,
            "float16",
            SHAPE,
            world=world,
            work=Work(flops=FLOPS, items=100 * world, item="images"),
            traffic=None,
            samples=(time,) * 7,
        )
        for variant, of_worlds in times.items()
        for world, time in of_worlds.items()
    ]
    point = ComputePoint("float16", 8192, 8192, 8192, 8e14, "torch.mm", "burst")
    made = make_run(cases, curve=OVER, baseline="tf32")
    return replace(made, header=replace(made.header, limits=replace(limits, compute=(point,))))


def test_a_curve_over_devices_shows_items_also_where_compute_is_the_limit(eight: Run) -> None:
    """Operations are counted for one device, so they would stay the same, without an ideal line."""
    assert all(line.subject.bound_by_compute for line in frame.lines(eight))
    (plot,) = [plot for plot in plotting.plan(eight)[0] if plot.sort == "usual"]
    assert (plot.metric.name, sorted(set(plot.swept.values()))) == ("items", [1, 2, 4, 8])


@pytest.mark.slow  # a test above has the ideal line
def test_the_ideal_line_is_that_of_the_fastest_variant_on_one_device(
    eight: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def look(axes: Any, shown: Any) -> None:
        world(axes, shown)
        seen.update({line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()})
        seen["ticks"] = axes.get_xticks().tolist()
        seen["marks"] = [segment.tolist() for marks in axes.collections for segment in marks.get_segments()]

    world = charts._LAYOUTS["world"]
    monkeypatch.setitem(charts._LAYOUTS, "world", look)
    report.write(eight, tmp_path, ["plots"])
    assert seen["ideal"] == [pytest.approx([world, 2 * world]) for world in (1, 2, 4, 8)]
    beside = {name: dict(zip((1, 2, 4, 8), seen[name], strict=True)) for name in ("tf32", "attention")}
    assert [beside[name][8][1] for name in beside] == pytest.approx([8, 10])
    for devices, (start, end) in zip((1, 2, 4, 8), seen["marks"], strict=True):
        assert start[1] == end[1] == 2 * devices
        assert start[0] < beside["tf32"][devices][0] < devices < beside["attention"][devices][0] < end[0]
    assert seen["ticks"] == [1, 2, 4, 8]
    found = {(line.case.variant, line.case.world): line.values["efficiency"] for line in frame.lines(eight)}
    assert found["attention", 8] == pytest.approx(0.625)
    assert found["tf32", 8] == pytest.approx(1.0)


@pytest.mark.slow  # collection/test_many_ranks.py has bandwidths
def test_bus_bandwidth_is_held_against_the_link_of_its_world_and_not_against_memory(
    measured: Callable[..., Measurement],
    make_run: Callable[..., Run],
    limits: Limits,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1 MB and 64 MB through links that give 400 GB/s to four devices and 300 GB/s to eight."""
    cases = [
        measured(
            "nccl",
            "float32",
            (("N", n),),
            op="all_reduce",
            world=world,
            work=Work(4 * n, 4 * n, sent=2 * (world - 1) * 4 * n // world),
            facts=((COLLECTIVE, 4 * n),),
            samples=(n / 2**24 * 5e-4,) * 7,
        )
        for n in (2**18, 2**24)
        for world in (4, 8)
    ]
    made = make_run(cases, curve=Curve("4 * N", "bytes"), baseline="nccl")
    links = tuple(LinkPoint(world, 2**30, 2**30 / rate, "a ring") for world, rate in ((4, 4e11), (8, 3e11)))
    made = replace(made, header=replace(made.header, limits=replace(limits, links=links)))
    plots = [plot for plot in plotting.plan(made)[0] if plot.sort == "usual"]
    assert [plot.metric.name for plot in plots] == ["bus_bandwidth"] * 2
    seen: list[dict[str, Any]] = []

    def look(drawing: Any, axes: Any) -> None:
        seen.append({line.get_label(): line.get_ydata() for line in axes.get_lines()})
        legend(drawing, axes)

    monkeypatch.setattr(charts, "legend", look)
    report.write(made, tmp_path, ["plots"])
    of_links = [lines for lines in seen if "link" in lines]
    assert [lines["link"].tolist() for lines in of_links] == [pytest.approx([400] * 2), pytest.approx([300] * 2)]
    assert not any("copy peak" in lines for lines in of_links)
