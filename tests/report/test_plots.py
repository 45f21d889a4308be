from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from PIL import Image

from harness import report
from harness.model import Curve, Limits, Measurement, Run, Work
from harness.report import canvas, charts, frame, plot_parts, plotting, size_charts
from tests.rare import rare
from tests.report.conftest import drawn

Build = Callable[..., Measurement]
Apart = Callable[[Any, Path], list[Path]]
MakeRun = Callable[..., Run]
SWEEP = [(("N", 2**k),) for k in range(18, 23)]
SHAPES = [(("N", 128), ("C", 64 * k), ("H", 112 // k)) for k in (1, 2, 4, 8)]


UNEVEN = (3, 49, 1000, 1021, 1022, 1023, 1025, 50257, 128256)
FLIGHT = [(("N", 2**22), ("T", 32 * t), ("V", v)) for t in (1, 2, 5, 8, 64) for v in (4, 16)]
IN_FLIGHT = Curve("T * V", "bytes in flight", by="V", littles_law=True)


@pytest.fixture
def in_flight(measured: Build, make_run: MakeRun) -> Callable[..., Run]:
    """Bytes read at a latency of 500 ns, until they would be faster than 2 TB/s; of 132 multiprocessors."""

    def make(curve: Curve | None = IN_FLIGHT, variants: tuple[str, ...] = ("loop",)) -> Run:
        cases = []
        for shape, variant in product(FLIGHT, variants):
            sizes = dict(shape)
            work = Work(4 * sizes["N"], 4 * sizes["N"])
            rate = min(132 * sizes["T"] * sizes["V"] / 500e-9, 2e12)
            cases.append(measured(variant, "float32", shape, work=work, samples=(work.read / rate,) * 7))
        return make_run(cases, curve=curve)

    return make


def texts(path: Path) -> list[str]:
    """What a figure says: its texts are texts, not outlines of letters."""
    root = ElementTree.parse(path.with_suffix(".svg")).getroot()
    return ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.fixture(scope="module")
def draw_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Run], list[Path]]:
    return cache(lambda run: report.write(run, tmp_path_factory.mktemp("pictures"), ["plots"]))


@pytest.fixture
def pictures(run: Run, draw_once: Callable[[Run], list[Path]]) -> list[Path]:
    """The pictures of the run, which tests may read and not change."""
    return draw_once(run)


def said(run: Run, folder: Path) -> list[list[str]]:
    """The texts of each figure of the run."""
    figures, _ = plotting.plan(run)
    return [texts(charts.draw(figure, 4e12, folder / f"{number}.svg")[0]) for number, figure in enumerate(figures)]


@pytest.mark.slow  # test_figures_are_half_a_page_wide_and_undated has what could differ
def test_the_same_run_gives_the_same_files_whatever_a_user_s_style(
    run: Run, pictures: list[Path], tmp_path: Path
) -> None:
    frame.frame.cache_clear()
    plotting._plan.cache_clear()
    theirs = {"text.usetex": True, "axes.facecolor": "red", "lines.linewidth": 9.0, "path.sketch": (1, 100, 2)}
    with mpl.rc_context(theirs | {"svg.fonttype": "path", "figure.constrained_layout.w_pad": 1.0}):
        second = report.write(run, tmp_path / "b", ["plots"])
        assert mpl.rcParams["lines.linewidth"] == 9.0
    assert [path.name for path in pictures] == [path.name for path in second]
    assert [path.read_bytes() for path in pictures] == [path.read_bytes() for path in second]


@pytest.mark.slow  # test_only_powers_of_two_are_formulas has such names
@pytest.mark.parametrize(
    ("name", "variants"),
    # Two variants have bars, twelve a ranking.
    [
        ("$2^{27}$ of $_$", 2),
        rare("$$", 12),
        *(rare(name, 2) for name in ("$_$", "a$b", r"\$x^$")),
        rare("$2^{27}$ of $_$", 12),
    ],
)
def test_names_with_dollars_are_no_formulas(
    name: str, variants: int, measured: Build, make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name, *(f"v{number}" for number in range(1, variants))]
    shapes = [(("N", 2**27), (f"C{name}", 3 + number)) for number in range(2)]
    run = make_run([measured(variant, "float32", shape, op=name) for shape in shapes for variant in names])
    files = report.write(run, tmp_path, ["plots"])
    assert "can't be drawn" not in capsys.readouterr().err
    # A formula's letters stand apart, and its exponent comes last.
    said = "".join("".join(line.split()) for file in files for line in texts(file))
    assert "".join(name.replace("$2^{27}$", "2").split()) in said


@pytest.mark.slow  # test_what_a_picture_is_written_as_follows_its_name
def test_scenarios_whose_names_differ_by_a_space_have_pictures_of_their_own(
    measured: Build, make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run([measured("eager", "float32", SHAPES[0])], [measured("eager", "float32", SHAPES[1])])
    scenarios = [replace(one, name=name) for one, name in zip(run.header.scenarios, ("a b", "a_b"), strict=True)]
    named = replace(run, header=replace(run.header, scenarios=tuple(scenarios)))
    paths = report.write(named, tmp_path, ["plots", "markdown"])
    drawn = {path.name for path in paths if path.suffix == ".svg"} - {"ceilings.svg"}
    assert "a_b-float32.svg" in drawn
    assert len(drawn) == 2
    assert all(f"(plots/{name})" in (tmp_path / "report.md").read_text() for name in drawn)
    assert plotting.file_name("a/b", "c d") != plotting.file_name("a_b", "c_d") == "a_b-c_d"


def test_only_powers_of_two_are_formulas() -> None:
    assert canvas.literal("N=$2^{27}$, $_$") == r"N=$2^{27}$, \$_\$"
    assert canvas.literal(r"M, N=$\mathbf{2^{9}}$") == r"M, N=$\mathbf{2^{9}}$"


def test_figures_are_half_a_page_wide_and_undated(pictures: list[Path]) -> None:
    for path in pictures:
        assert path.suffix == ".svg"
        assert ElementTree.parse(path).getroot().get("width") == "252pt"
        assert "dc:date" not in path.read_text()


def test_a_figure_is_small_and_its_text_is_text_of_fonts_that_viewers_have(pictures: list[Path]) -> None:
    for path in pictures:
        assert len(texts(path)) > 5
        drawn = path.read_text(encoding="utf-8")
        assert "'DejaVu Sans', Verdana, sans-serif" in drawn
        assert len(drawn) < 60_000, f"{path.name}: outlines of letters would be most of it"


def test_what_a_picture_is_written_as_follows_its_name(tmp_path: Path) -> None:
    for name in ("a.svg", "a.png"):
        with canvas.canvas(1, "title") as (drawing, _):
            assert canvas.save(drawing, tmp_path / name) == [tmp_path / name]
    assert texts(tmp_path / "a.svg")[-1] == "title"
    assert Image.open(tmp_path / "a.png").width == 3.5 * 200


@pytest.mark.slow  # test_content.py has bars that tell choices apart
def test_bars_name_shapes_variants_ceiling_peak_and_failures(
    measured: Build, make_run: MakeRun, tmp_path: Path
) -> None:
    cases = [measured(variant, "float32", shape) for shape in SHAPES[:2] for variant in ("eager", "tuned")]
    failed = measured("naive", "float32", SHAPES[1], status="out_of_memory")
    report.write(make_run([*cases, failed]), tmp_path, ["plots"])
    shown = texts(tmp_path / "plots" / "prelu-float32")
    assert {"C=64", "H=112", "C=128", "H=56", "N=128"} <= set(shown)
    assert {"eager", "tuned", "naive", "ceiling", "copy peak", "prelu float32"} <= set(shown)
    assert "effective bandwidth (GB/s)" in shown
    assert any("out of memory" in text for text in shown)


def test_one_swept_symbol_gives_lines_over_it(measured: Build, make_run: MakeRun) -> None:
    run = make_run([measured(variant, "float32", shape) for shape in SWEEP for variant in ("eager", "tuned")])
    (figure,), left_out = plotting.plan(run)
    assert (figure.layout, figure.axis, left_out) == ("lines", "N", 0)
    assert sorted(figure.swept.values()) == [2**k for k in range(18, 23)]


def test_variants_stand_in_the_op_s_order_whatever_a_run_measured_first(measured: Build, make_run: MakeRun) -> None:
    first, second = SHAPES[:2]
    run = make_run(
        [measured("tuned", "float32", first)]
        + [measured(variant, "float32", second) for variant in ("naive", "tuned", "eager", "compile")],
        roles=(("naive", "published"), ("eager", "baseline"), ("compile", "baseline"), ("tuned", "ours")),
        baseline="eager",
    )
    (figure,), _ = plotting.plan(run)
    assert figure.series == ("eager", "naive", "compile", "tuned")


def test_three_sizes_or_two_symbols_stay_bars(measured: Build, make_run: MakeRun) -> None:
    for shapes in (SWEEP[:3], SHAPES):
        (figure,), _ = plotting.plan(make_run([measured("eager", "float32", shape) for shape in shapes]))
        assert figure.layout == "bars"


def test_a_curve_stands_over_its_expression_and_tells_a_symbol_apart(in_flight: Callable[..., Run]) -> None:
    (figure,), _ = plotting.plan(in_flight())
    assert (figure.layout, figure.axis, figure.series) == ("curve", "bytes in flight", ("V=4", "V=16"))
    assert sorted(figure.swept.values()) == [128, 256, 512, 640, 1024, 1024, 2560, 4096, 8192, 32768]
    assert figure.title == "prelu float32, N=$2^{22}$"
    assert figure.alt == "prelu float32, N=2^22: effective bandwidth over bytes in flight"


def test_a_curve_of_several_variants_tells_them_apart_too(in_flight: Callable[..., Run]) -> None:
    (both,), _ = plotting.plan(in_flight(variants=("a", "b")))
    assert set(both.series) == {"a, V=4", "a, V=16", "b, V=4", "b, V=16"}
    (plain,), _ = plotting.plan(in_flight(Curve("T * V", "bytes"), ("a", "b")))
    assert plain.series == ("a", "b")


def test_a_curve_s_symbol_need_not_be_one_of_other_scenarios(measured: Build, in_flight: Callable[..., Run]) -> None:
    run = in_flight()
    copies = [measured("eager", "float32", shape, op="copy") for shape in SWEEP]
    ids = tuple(m.case.id for m in copies)
    copy = replace(run.header.scenarios[0], name="copy", op="copy", cases=ids, curve=None)
    header = replace(run.header, scenarios=(*run.header.scenarios, copy))
    figures, _ = plotting.plan(Run(header, (*run.measurements, *copies)))
    assert [figure.layout for figure in figures] == ["curve", "lines"]


def test_a_scenario_may_name_the_metric_of_its_plots(measured: Build, make_run: MakeRun) -> None:
    """Where no case has it, the plots are as usual."""
    exact = [measured(name, "float16", SHAPES[0], facts=(("snr", 69.0),)) for name in ("eager", "tuned")]
    usual = [measured(name, "float16", SHAPES[0]) for name in ("eager", "tuned")]
    for cases, plot, shown in [(exact, "snr", "snr"), (exact, "", "bandwidth"), (usual, "snr", "bandwidth")]:
        figures, _ = plotting.plan(make_run(cases, plot=plot))
        assert [figure.metric.name for figure in figures] == [shown]


def test_little_s_law_has_the_latency_at_the_fewest_bytes(in_flight: Callable[..., Run], tmp_path: Path) -> None:
    [shown] = said(in_flight(), tmp_path)
    assert {"V=4", "V=16", "bytes in flight", "Little's law, 500 ns", "ceiling"} <= set(shown)
    plotting._plan.cache_clear()
    [shown] = said(in_flight(replace(IN_FLIGHT, littles_law=False)), tmp_path)
    assert "ceiling" in shown
    assert not any("Little" in text for text in shown)


@pytest.mark.slow  # the test above has such a figure
def test_little_s_law_is_straight_and_ends_at_the_fastest(
    in_flight: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = drawn(in_flight(), tmp_path, monkeypatch)
    (law,) = [line for line in axes.get_lines() if str(line.get_label()).startswith("Little")]
    # 4e12 bytes a second, read and written, are 2e12 read: 132 multiprocessors have 7576 bytes each under way.
    assert list(law.get_xdata()) == pytest.approx([128, 2e12 * 500e-9 / 132])
    assert list(law.get_ydata()) == pytest.approx([2 * 132 * 128 / 500, 4000])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


@pytest.mark.parametrize(
    ("sizes", "scale", "shown"),
    [
        rare([2, 3, 5, 7], "log", ["2", "3", "5", "7"]),
        ([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64], "log", ["1", "2", "4", "8", "16", "32", "64"]),
        rare(list(range(1, 10)), "log", ["1", "2", "4", "8"]),
        ([0, 1, 2, 8, 32], "linear", ["0", "8", "16", "24", "32"]),
        # A label that would touch the one before is left out.
        ([3, 49, 197, 1023, 30_522, 50_257, 2**18], "log", ["3", "49", "197", "1023", "30.52k", "", "$2^{18}$"]),
        ([1, 2, 4, 8, 12, 14, 16], "log", ["1", "2", "4", "8", "12", "14", "16"]),
    ],
)
def test_the_axis_of_lines(
    sizes: list[int],
    scale: str,
    shown: list[str],
    measured: Build,
    make_run: MakeRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes = [(("N", 2**20), ("F", size)) for size in sizes]
    work = Work(2**22, 2**22)
    axes = drawn(make_run([measured("a", "float32", shape, work=work) for shape in shapes]), tmp_path, monkeypatch)
    assert axes.get_xscale() == scale
    low, high = axes.get_xlim()
    assert [label.get_text() for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high] == shown


def test_the_unit_of_an_axis_is_found_a_few_times_however_many_cases_there_are(
    measured: Build, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a look at each case, so to find it for each case took most of the time of a large report."""
    found: list[plotting.Plot] = []

    def counted(plot: plotting.Plot) -> tuple[str, float]:
        found.append(plot)
        return "bandwidth (GB/s)", 1e9

    for module in (plot_parts, size_charts):
        monkeypatch.setattr(module, "metric_axis", counted)
    counts = []
    for cases in (5, 50):
        sizes = [(("N", 2**20 + 256 * size),) for size in range(cases)]
        run = make_run([measured("a", "float32", shape, work=Work(2**22, 2**22)) for shape in sizes])
        found.clear()
        drawn(run, tmp_path / str(cases), monkeypatch)
        counts.append(len(found))
    assert 0 < counts[1] <= counts[0]


@pytest.mark.parametrize(("slowest", "scale"), [rare(1e-3, "linear"), (1e-5, "log")])
def test_values_that_span_many_decades_have_a_logarithmic_axis(
    slowest: float, scale: str, measured: Build, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [measured("a", "float32", shape, share=slowest if shape == SWEEP[0] else 0.5) for shape in SWEEP]
    axes = drawn(make_run(cases), tmp_path, monkeypatch)
    assert (axes.get_yscale(), axes.get_ylabel().endswith(", logarithmic")) == (scale, scale == "log")
    assert (axes.get_ylim()[0] == 0) == (scale == "linear")


@pytest.mark.slow
def test_more_variants_than_looks_are_ranked_by_name(measured: Build, make_run: MakeRun, tmp_path: Path) -> None:
    names = [f"v{i}" for i in range(60)]
    run = make_run([measured(name, "float32", SHAPES[0], 0.3 + i / 100) for i, name in enumerate(names)])
    figures, _ = plotting.plan(run)
    assert [(figure.layout, len(figure.rows)) for figure in figures] == [("ranking", 30), ("ranking", 30)]
    first, second = said(run, tmp_path)
    assert {"effective bandwidth (GB/s)", *names[30:]} <= set(first)
    assert set(names[:30]) <= set(second)


def test_every_case_is_in_one_page_of_many(measured: Build, make_run: MakeRun) -> None:
    shapes = [(("N", n), ("C", 100 - n)) for n in range(1, 21)]
    run = make_run([measured(f"v{i}", "float32", shape) for shape in shapes for i in range(7)])
    figures, _ = plotting.plan(run)
    assert [figure.title[-8:] for figure in figures] == [f"({i} of 4)" for i in range(1, 5)]
    assert sorted(case for figure in figures for case in figure.rows["case"]) == sorted(
        m.case.id for m in run.measurements
    )


def test_the_number_of_figures_is_bounded_and_each_scenario_keeps_its_first(
    measured: Build, make_run: MakeRun, tmp_path: Path
) -> None:
    scenarios = [
        [measured("eager", dtype, SHAPES[0], op=f"op{i}") for dtype in ("float32", "float16")] for i in range(8)
    ]
    run = make_run(*scenarios)
    figures, left_out = plotting.plan(run)
    assert (len(figures), left_out) == (10, 6)
    assert {figure.scenario for figure in figures} == {f"op{i}" for i in range(8)}
    report.write(run, tmp_path, ["markdown"])
    assert "6 more figures were left out" in (tmp_path / "report.md").read_text()


def test_what_has_no_bytes_is_drawn_by_what_users_count_or_by_its_time(measured: Build, make_run: MakeRun) -> None:
    step = Work(0, 0, items=256, item="images")
    (rates,), _ = plotting.plan(make_run([measured("eager", "float32", SHAPES[0], work=step, samples=(0.5,))]))
    (times,), _ = plotting.plan(make_run([measured("eager", "float32", SHAPES[0], work=Work(0, 0), samples=(0.5,))]))
    assert (rates.metric.name, times.metric.name) == ("items", "time")


def test_where_nothing_was_timed_there_is_no_figure(measured: Build, make_run: MakeRun) -> None:
    assert plotting.plan(make_run([measured("eager", "float32", SHAPES[0], status="crashed")])) == ([], 0)


@pytest.mark.parametrize(
    "layout",
    ["curve", *map(rare, ("variants", "long names", "ranking", "bars", "long title", "lines", "zero", "one"))],
)
def test_no_label_lies_on_another(
    layout: str, measured: Build, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: Apart
) -> None:
    variants = [f"v{i}" for i in range(12 if layout in ("ranking", "long title") else 5)]
    choices: dict[str, list[Any]] = {
        "bars": [(("N", 2**27), ("C", 1), ("H", 1)), *SHAPES],
        "long names": [(("hidden_size", 1024 + i), ("sequence_length", 4096 - i)) for i in range(6)],
        "long title": [(("outer_size", 131072), ("bias_columns", 1023 + i), ("inner_size", 1)) for i in range(3)],
        "lines": [(("N", 7**k),) for k in range(1, 11)],
        "zero": [(("N", 2**20), ("F", offset)) for offset in (0, 1, 2, 3, 31, 32)],
        "curve": FLIGHT,
        "variants": [(("M", 2**27 // n), ("N", n)) for n in (*(2**k for k in range(19)), *UNEVEN)],
        "ranking": SHAPES,
        "one": SHAPES[:1],
    }
    shapes = choices[layout]
    monkeypatch.setattr(charts, "save", apart)
    work = Work(2**22, 2**22)
    run = make_run(
        [measured(variant, "float32", shape, work=work) for shape in shapes for variant in variants],
        curve={"curve": IN_FLIGHT, "variants": Curve("N", "elements a row, N")}.get(layout),
    )
    figures, _ = plotting.plan(run)
    assert figures
    for figure in figures:
        assert charts.draw(figure, 4e12, tmp_path / "x.svg") == []


@pytest.mark.slow  # the test above has labels of curves
def test_no_label_of_the_ceilings_lies_on_another(
    limits: Limits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: Apart
) -> None:
    from harness.report import limit_tables

    monkeypatch.setattr(limit_tables, "save", apart)
    assert limit_tables.draw(limits, tmp_path / "peak.svg") == []


def test_a_picture_names_device_and_day_below_its_title(pictures: list[Path]) -> None:
    for path in pictures:
        assert "A GPU, 2026-01-01" in texts(path)
