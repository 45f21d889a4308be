"""Device time and call time side by side: where a report shows them, in its tables and in its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import report
from harness.metrics import METRICS
from harness.model import Measurement, Run
from harness.report import charts, columns, frame, plotting
from harness.report.text import as_text
from tests.rare import rare

Build = Callable[..., Measurement]
MakeRun = Callable[..., Run]
Apart = Callable[[Any, Path], list[Path]]
VARIANTS = ("eager", "loop", "tuned")
DEVICE, CALL = "device time (graph)", "call time (no graph)"


@pytest.fixture
def timed(measured: Build) -> Callable[..., Measurement]:
    """A case of a list of tensors, with its device time and the time of a call in microseconds."""

    def make(variant: str, time: float, call: float, tensors: str = "a", **fields: Any) -> Measurement:
        samples = {"samples": (time * 1e-6,) * 7, "call_samples": (call * 1e-6,)}
        choices = (("tensors", tensors),)
        return measured(variant, fields.pop("dtype", "float32"), (), op="adamw", choices=choices, **samples | fields)

    return make


def cells(run: Run) -> dict[str, tuple[str, ...]]:
    """The main table of the run's only scenario."""
    ((_, lines),) = frame.by_scenario(run)
    return {column.head: column.cells for column in as_text(columns.table(lines)).columns}


def figures(run: Run) -> list[plotting.Plot]:
    return [plot for plot in plotting.plan(run)[0] if plot.layout == "calls"]


@pytest.mark.parametrize(
    ("calls", "tags", "shown"),
    [
        ((1, 2, 20), (), True),  # two of three cases wait for the host
        ((1, 1.19, 20), (), False),  # one does
        ((1, 2), (), False),  # half of them do, which isn't most
        ((1, 1, 1), ("list", "fusion"), True),
        ((1, 1, 1), ("lists",), False),
    ],
)
def test_call_times_are_shown_for_lists_and_where_most_cases_wait(
    calls: Sequence[float], tags: tuple[str, ...], shown: bool, timed: Build, make_run: MakeRun
) -> None:
    cases = [timed(variant, 10, 10 * call) for variant, call in zip(VARIANTS, calls, strict=False)]
    run = make_run(cases, tags=tags)
    assert ("call (us)" in cells(run), bool(figures(run))) == (shown, shown)


def test_the_call_time_stands_beside_the_device_time_in_one_unit(timed: Build, make_run: MakeRun) -> None:
    failed = timed("late", 1, 1, status="crashed", samples=(), call_samples=())
    found = cells(make_run([timed("loop", 2000, 4500), timed("tuned", 12.5, 14), failed], tags=("list",)))
    heads = list(found)
    assert heads[heads.index("time (us)") + 1] == "call (us)"
    assert found["time (us)"] == ("2000", "12.50", "crashed")
    assert found["call (us)"] == ("4500", "14.00", "")


def test_the_page_explains_the_call_time_only_where_it_shows_it(
    timed: Build, make_run: MakeRun, tmp_path: Path
) -> None:
    def page(tags: tuple[str, ...]) -> str:
        (path,) = report.write(make_run([timed("loop", 10, 11)], tags=tags), tmp_path, ["markdown"])
        return path.read_text()

    term = f"- **call**: {METRICS['call_time'].hint}."
    assert [term in page(tags) for tags in (("list",), ())] == [True, False]


def test_a_list_without_call_times_shows_none(timed: Build, make_run: MakeRun) -> None:
    run = make_run([timed(name, 10, 10, call_samples=()) for name in VARIANTS], tags=("list",))
    assert ("call (us)" in cells(run), figures(run)) == (False, [])


def test_one_variant_alone_has_no_figure_of_its_calls(timed: Build, make_run: MakeRun) -> None:
    run = make_run([timed("loop", 10, 50, tensors=name) for name in "abc"])
    assert ("call (us)" in cells(run), figures(run)) == (True, [])


def test_each_dtype_has_a_figure_and_many_cases_several_pages(timed: Build, make_run: MakeRun) -> None:
    lists = [f"list{i}" for i in range(9)]
    cases = [timed(v, 10, 50, tensors=n, dtype=d) for d in ("float32", "float16") for n in lists for v in VARIANTS]
    found = figures(make_run(cases))
    assert [(plot.name, len(plot.rows)) for plot in found] == [
        ("adamw-float32-calls-1", 12), ("adamw-float32-calls-2", 15),
        ("adamw-float16-calls-1", 12), ("adamw-float16-calls-2", 15),
    ]  # fmt: skip
    assert found[0].alt == "adamw float32: device time and call time (1 of 2), by variant and shape"


@pytest.mark.slow  # test_plots.py has how many figures there are
def test_figures_of_calls_take_no_place_of_others(measured: Build, make_run: MakeRun) -> None:
    scenarios = [[measured(v, "float32", (), op=f"op{i}", call_samples=(1.0,)) for v in VARIANTS] for i in range(12)]
    found, left_out = plotting.plan(make_run(*scenarios))
    layouts = [plot.layout for plot in found]
    assert (layouts.count("bars"), layouts.count("calls"), left_out) == (10, 10, 4)


def dots(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, list[tuple[float, float]]]]:
    """The axes of the run's only figure of calls, and for each time the row and the value of every dot."""
    monkeypatch.setattr(charts, "save", lambda drawing, _path: [drawing])
    (plot,) = figures(run)
    drawing: Any
    (drawing,) = charts.draw(plot, None, folder / "x.svg")
    axes = drawing.axes[0]
    found: dict[str, list[tuple[float, float]]] = {DEVICE: [], CALL: []}
    for line in axes.get_lines():
        found[line.get_label()] += zip(line.get_ydata(), line.get_xdata(), strict=True)
    assert not axes.patches  # bars have no length on a logarithmic axis
    return axes, found


def test_both_times_of_a_case_are_dots_of_one_row(
    timed: Build, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {("loop", "a"): (400, 2000), ("tuned", "a"): (5, 13), ("loop", "b"): (300, 1500), ("tuned", "b"): (8, 9)}
    run = make_run([timed(v, *pair, tensors=name) for (v, name), pair in times.items()])
    axes, found = dots(run, tmp_path, monkeypatch)
    # Each list has a row for its name, then one a variant.
    assert [text.get_text() for text in axes.get_yticklabels()] == ["", "loop", "tuned", "", "loop", "tuned"]
    assert found == {
        DEVICE: [pytest.approx(dot) for dot in ((0.8, 400), (1.8, 5), (3.8, 300), (4.8, 8))],
        CALL: [pytest.approx(dot) for dot in ((1.2, 2000), (2.2, 13), (4.2, 1500), (5.2, 9))],
    }
    assert {text.get_text() for text in axes.texts} == {
        "a", "b", "400", "2000", "5.00", "13.0", "300", "1500", "8.00", "9.00"
    }  # fmt: skip
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "time of a call (us), logarithmic")
    low, high = axes.get_xlim()
    assert low < 5
    assert high > 2000


def test_a_case_without_a_time_says_why_in_its_row(
    timed: Build, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = timed("compile", 1, 1, status="out_of_memory", samples=(), call_samples=())
    axes, _ = dots(make_run([timed("loop", 10, 50), failed]), tmp_path, monkeypatch)
    (said,) = [text for text in axes.texts if text.get_text() == " out of memory"]
    assert said.get_position()[1] == 1


@pytest.mark.slow  # test_plots.py has labels of curves, the tests above both times
@pytest.mark.parametrize("spread", [rare(1), 30, rare(10_000)])
def test_no_label_of_calls_lies_on_another(
    spread: int, timed: Build, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: Apart
) -> None:
    monkeypatch.setattr(charts, "save", apart)
    lists = ("bert_base", "resnet50", "swin_t", "ernie_like")
    variants = ("eager", "eager_foreach", "eager_loop", "compile", "fused", "tuned")
    cases = [
        timed(v, 100 * spread ** (i / 5), 101 * spread ** (i / 5), tensors=n)
        for n in lists
        for i, v in enumerate(variants)
    ]
    (plot,) = figures(make_run(cases, tags=("list",)))
    assert charts.draw(plot, None, tmp_path / "x.svg") == []
