"""Rooflines: where each point, dash and roof lies, what they are called, and which runs have one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import report
from harness.model import ComputePoint, Limits, Measurement, Run, StreamPoint, Work
from harness.model.limits import State
from harness.report import charts, plotting, roofline_plot
from harness.report.roofline_plot import Roof, Roofs
from tests.rare import rare

Build = Callable[..., Measurement]
Apart = Callable[[Any, Path], list[Path]]
BIG, SMALL = (("M", 1024), ("N", 64)), (("M", 128), ("N", 64))
HEAVY = Work(10**8, 10**8, (("float16", 10**12),))
"""5000 operations a byte: at 800 TFLOP/s they take 1.25 ms at best."""
LIGHT = Work(10**9, 10**9, (("float16", 2 * 10**10),))
"""10 operations a byte: at 4 TB/s they take 0.5 ms at best, which are 40 TFLOP/s."""


def product(kind: str, rate: float, state: State = "burst") -> ComputePoint:
    return ComputePoint(kind, 8192, 8192, 8192, rate, "torch.mm", state)


@pytest.fixture
def computing(limits: Limits) -> Limits:
    """Streams at 4 TB/s (4.8 TB/s for reads alone), 800 TFLOP/s in float16, 640 settled; 50 in float32."""
    points = (product("float16", 8e14), product("float16", 6.4e14, "settled"), product("float32", 5e13))
    return replace(limits, compute=points)


@pytest.fixture
def made(measured: Build, make_run: Callable[..., Run], computing: Limits) -> Callable[..., Run]:
    """A run of one scenario on a machine with these limits."""

    def make(*cases: Measurement, limits: Limits | None = computing, **fields: Any) -> Run:
        run = make_run(cases, **fields)
        return replace(run, header=replace(run.header, limits=limits))

    return make


@pytest.fixture
def gemm(measured: Build) -> Callable[..., Measurement]:
    """A case that takes so many milliseconds."""

    def make(variant: str, work: Work, milliseconds: float, shape: Any = BIG, **fields: Any) -> Measurement:
        dtype = fields.pop("dtype", "float16")
        samples = (milliseconds / 1e3,) * 7
        return measured(variant, dtype, shape, op="gemm", work=work, samples=samples, **fields)

    return make


@pytest.fixture
def four(made: Callable[..., Run], gemm: Build) -> Run:
    """Two shapes with 10 and 5000 operations a byte, by two variants."""
    roles = (("eager", "baseline"), ("tuned", "ours"))
    light = [gemm("eager", LIGHT, 2), gemm("tuned", LIGHT, 0.625)]
    heavy = [gemm("eager", HEAVY, 4, SMALL), gemm("tuned", HEAVY, 1.6, SMALL)]
    return made(*light, *heavy, roles=roles)


def rooflines(run: Run) -> list[plotting.Plot]:
    return [plot for plot in plotting.plan(run)[0] if plot.layout == "roofline"]


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], tuple[Any, dict[str, list[Any]]]]:
    """The axes of the run's only roofline, and the places on each of its lines by label."""

    def draw(run: Run) -> tuple[Any, dict[str, list[Any]]]:
        monkeypatch.setattr(charts, "save", lambda drawing, _path: [drawing])
        (plot,) = rooflines(run)
        drawing: Any
        (drawing,) = charts.draw(plot, 4e12, tmp_path / "x.svg")
        axes = drawing.axes[0]
        found = {str(line.get_label()): list(zip(*line.get_data(), strict=True)) for line in axes.get_lines()}
        return axes, found

    return draw


Lines = Callable[[Run], tuple[Any, dict[str, list[Any]]]]


def test_points_lie_at_the_operations_a_byte_and_a_second_of_their_cases(four: Run, lines: Lines) -> None:
    axes, found = lines(four)
    # 2e10 operations in 2 ms are 10 TFLOP/s, in 0.625 ms 32; 1e12 in 4 ms 250, in 1.6 ms 625.
    assert found["eager"] == [pytest.approx(place) for place in ((10, 10), (5000, 250))]
    assert found["tuned"] == [pytest.approx(place) for place in ((10, 32), (5000, 625))]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("operations a byte", "operations a second (TFLOP/s)")


def test_a_dash_is_the_ceiling_of_the_case(four: Run, lines: Lines) -> None:
    _, found = lines(four)
    assert found["ceiling of a case"] == [pytest.approx(place) for place in ((10, 40), (5000, 800))]


def test_roofs_are_the_memory_s_slope_and_the_peaks_of_the_types_used(four: Run, lines: Lines) -> None:
    axes, found = lines(four)
    low, high = axes.get_xlim()
    assert (low, high) == pytest.approx((5, 10_000))  # twice as far as the outermost points
    # 4 TB/s reach 800 TFLOP/s at 200 operations a byte, and 640 at 160.
    assert found["memory (sloped): 4000 GB/s"] == [pytest.approx(place) for place in ((5, 20), (200, 800))]
    assert found["float16, burst: 800.0 TFLOP/s"] == [pytest.approx(place) for place in ((200, 800), (high, 800))]
    assert found["float16, settled: 640.0 TFLOP/s"] == [pytest.approx(place) for place in ((160, 640), (high, 640))]
    assert not any("float32" in label for label in found)


def test_the_memory_s_roof_is_of_the_mix_of_the_cases(made: Callable[..., Run], gemm: Build, lines: Lines) -> None:
    reading = Work(2 * 10**9, 0, (("float16", 10**11),))
    _, found = lines(made(gemm("tuned", reading, 1)))
    assert "memory (sloped): 4800 GB/s" in found


def test_what_the_cache_keeps_counts_for_no_roof() -> None:
    streams = (StreamPoint(500, 500, 1e-9, "kernel"), StreamPoint(5000, 5000, 5e-9, "kernel"))
    limits = Limits(streams, compute=(product("float16", 8e14),), cache_bytes=400)
    work = Work(900, 500, (("float16", 10),), again=400)
    # 1000 bytes in a nanosecond. The 1400 that the op counts would be faster, as larger streams are here.
    assert roofline_plot.roofs([work], limits) == Roofs(pytest.approx(1e12), (Roof("float16", "burst", 8e14),))


def test_each_type_of_operations_has_its_roof(made: Callable[..., Run], gemm: Build, lines: Lines) -> None:
    both = Work(10**9, 10**9, (("float16", 10**11), ("float32", 10**10)))
    axes, found = lines(made(gemm("tuned", both, 1)))
    assert found["tuned"] == [pytest.approx((55, 110))]
    assert found["float32, burst: 50.00 TFLOP/s"][0] == pytest.approx((12.5, 50))
    looks = {str(line.get_label()): (line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
    roofs = [look for label, look in looks.items() if "TFLOP/s" in label]
    assert len(set(roofs)) == 3, "they can't be told apart"


def test_steady_cases_have_the_settled_peak_for_a_ceiling(made: Callable[..., Run], gemm: Build, lines: Lines) -> None:
    _, found = lines(made(gemm("tuned", HEAVY, 2, timer="steady")))
    assert found["ceiling of a case"] == [pytest.approx((5000, 640))]


def test_without_streams_there_are_level_roofs_only(
    made: Callable[..., Run], gemm: Build, lines: Lines, computing: Limits
) -> None:
    axes, found = lines(made(gemm("tuned", HEAVY, 2), limits=Limits(compute=computing.compute)))
    assert not any("memory" in label for label in found)
    assert found["float16, burst: 800.0 TFLOP/s"][0][0] == pytest.approx(axes.get_xlim()[0])


def test_only_a_run_with_operations_and_a_peak_of_theirs_has_a_roofline(
    made: Callable[..., Run], gemm: Build, limits: Limits
) -> None:
    moving = Work(10**9, 10**9)
    other = Work(10**9, 10**9, (("float64", 10**11),))
    assert rooflines(made(gemm("tuned", moving, 1))) == []
    assert rooflines(made(gemm("tuned", other, 1))) == []
    assert rooflines(made(gemm("tuned", HEAVY, 1), limits=limits)) == []
    assert rooflines(made(gemm("tuned", HEAVY, 1), limits=None)) == []
    assert rooflines(made(gemm("tuned", HEAVY, 1, status="crashed", error="no"))) == []
    assert len(rooflines(made(gemm("tuned", HEAVY, 1)))) == 1


def test_each_dtype_has_a_roofline_of_the_cases_that_have_a_time(made: Callable[..., Run], gemm: Build) -> None:
    single = replace(LIGHT, flops=(("float32", 2 * 10**10),))
    failed = gemm("tuned", single, 1, dtype="float32", status="out_of_memory")
    first, second = rooflines(made(gemm("eager", LIGHT, 1), gemm("eager", single, 1, dtype="float32"), failed))
    assert (first.name, second.name) == ("gemm-float16-roofline", "gemm-float32-roofline")
    assert [len(plot.rows) for plot in (first, second)] == [1, 1]
    assert second.roofs == Roofs(pytest.approx(4e12), (Roof("float32", "burst", 5e13),))
    assert second.alt == "gemm float32: roofline, M=1024, N=64, over operations a byte"


def test_a_roof_is_of_a_type_in_which_a_variant_does_its_operations(made: Callable[..., Run], gemm: Build) -> None:
    own = gemm("eager", LIGHT, 1, arithmetic=(("float32", LIGHT.operations),))
    (both,) = rooflines(made(own, gemm("tuned", LIGHT, 1)))
    assert {roof.kind for roof in both.roofs.compute} == {"float32", "float16"}


@pytest.mark.slow  # the tests above have what the figure shows
def test_the_page_shows_and_explains_the_roofline(four: Run, run: Run, tmp_path: Path) -> None:
    paths = {path.name: path for path in report.write(four, tmp_path, ["markdown", "plots"])}
    page = paths["report.md"].read_text()
    assert "gemm-float16-roofline.svg" in paths
    assert "![gemm float16: roofline, N=64, over operations a byte](plots/gemm-float16-roofline.svg)" in page
    assert f"- **roofline**: {roofline_plot.HINT}." in page
    (other,) = report.write(run, tmp_path / "other", ["markdown"])
    assert "roofline" not in other.read_text()


def test_settings_are_named_above_their_points(four: Run, lines: Lines) -> None:
    axes, _ = lines(four)
    assert [(text.get_text(), text.xy[0]) for text in axes.texts] == [
        ("M=1024", pytest.approx(10)), ("M=128", pytest.approx(5000)),
    ]  # fmt: skip


def test_names_keep_their_order_and_a_distance_and_one_place_has_one_name() -> None:
    import pandas as pd

    labels = {"a": "T=49\nnone", "b": "T=49\nshift", "c": "T=64\nnone", "d": "T=64\nshift"}
    rows = pd.DataFrame({"intensity": (40, 40.2, 80, 80), "setting": list(labels)})
    found = roofline_plot.names(rows, labels, 1, 1000)
    assert [name.text for name in found] == ["T=49, none", "T=49, shift", "T=64, none, and 1 more"]
    assert [name.place for name in found] == [40, 40.2, 80]
    first, second, third = (name.part for name in found)
    assert first + 0.015 < second < third
    assert third == pytest.approx(math.log(80) / math.log(1000))


@pytest.mark.slow  # test_names_keep_their_order_and_a_distance_and_one_place_has_one_name
@pytest.mark.parametrize(("variants", "nearest"), [rare(14, 1.01), (2, 1.3), rare(14, 20.0)])
def test_no_label_of_a_roofline_lies_on_another(
    variants: int,
    nearest: float,
    made: Callable[..., Run],
    gemm: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    apart: Apart,
) -> None:
    monkeypatch.setattr(charts, "save", apart)
    shapes = [(("rows", 401_408 + i), ("inner", 128 * (i + 1)), ("columns", 384 * (i + 1))) for i in range(5)]
    cases = [
        gemm(f"variant{v}", Work(10**8, 10**8, (("float16", int(10**10 * nearest**i)),)), 1 + v, shape)
        for i, shape in enumerate(shapes)
        for v in range(variants)
    ]
    (plot,) = rooflines(made(*cases))
    assert charts.draw(plot, 4e12, tmp_path / "x.svg") == []


def test_operations_on_integers_aren_t_called_floating_point(
    made: Callable[..., Run], gemm: Build, lines: Lines, computing: Limits
) -> None:
    limits = replace(computing, compute=(product("int8", 1.7e15), *computing.compute))
    axes, found = lines(made(gemm("tuned", Work(10**9, 10**9, (("int8", 10**11),)), 1), limits=limits))
    assert "int8, burst: 1700 TOP/s" in found
    assert axes.get_ylabel() == "operations a second (TOP/s)"
