from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from harness.differences import compare_all
from harness.model import Claim, Expectation, KernelFacts, Limits, Machine, Measurement, Run, Work
from harness.ops import Catalogue
from harness.report import comparison, terminal
from harness.report.tree import Column, Page, Table, text_column

SHAPE = (("N", 64), ("C", 128))


def drawn(draw: Callable[..., None], *what: Any, width: int = 80, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, **options)
    draw(*what, console)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize("width", [80, 120])
def test_results(run: Run, width: int, golden: Callable[[str, str], None]) -> None:
    text = drawn(terminal.render, run, width=width)
    assert max(map(len, text.splitlines())) <= width
    golden(f"terminal-{width}.txt", text)


@pytest.mark.parametrize("width", [80, 120])
def test_differences(run: Run, width: int, golden: Callable[[str, str], None]) -> None:
    def slower(measurement: Measurement, factor: float) -> Measurement:
        return replace(measurement, samples=tuple(sample * factor for sample in measurement.samples))

    factors = (1.0, 1.1, 0.9, 1.0005, 1.0, 1.0, 1.0)
    changed = [slower(m, factor) for m, factor in zip(run.measurements, factors, strict=False)]
    after = replace(run, measurements=(*changed, *run.measurements[8:]))
    made = compare_all("before", {"before": run, "after": after})
    text = drawn(terminal.show, comparison.page(made), width=width)
    assert max(map(len, text.splitlines())) <= width
    golden(f"compare-{width}.txt", text)


def test_ceilings(gpu: Machine, limits: Limits, golden: Callable[[str, str], None]) -> None:
    golden("peak.txt", drawn(terminal.render_limits, gpu, limits))


def test_eighty_columns_keep_what_matters_most(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    shape = (("N", 128), ("C", 512), ("H", 112), ("W", 112))
    cases = [measured("eager", "float16", shape), measured("compile", "float16", shape, status="out_of_memory")]
    text = drawn(terminal.render, make_run(cases))
    for word in ("N128-C512-H112-W112", "float16", "eager", "GB/s", "ceiling", "50.0%", "1.00x", "out_of_memory"):
        assert word in text


def test_a_narrow_console_tells_of_local_memory_before_registers(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    kernels = (KernelFacts("local_array_runtime_index", 26, 64, 0),)
    case = measured("runtime_index", "float32", (("G", 2**24), ("K", 3)), kernels=kernels)
    run = make_run([measured("eager", "float32", case.case.shape), case], baseline="eager")
    text = drawn(terminal.render, run, width=62)
    (row,) = [line for line in text.splitlines() if "runtime_index" in line]
    assert row.split()[-1] == "64"
    assert "62 columns are too few for: noise, registers; COLUMNS=" in text


def test_what_every_row_has_stands_in_the_title(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    cases = [
        measured("eager", "float16", SHAPE, choices=(("layout", layout), ("p", 0.1)), world=2)
        for layout in ("nchw", "nhwc")
    ]
    hot = [replace(case, case=replace(case.case, cache="hot")) for case in cases]
    lines = drawn(terminal.render, make_run(hot, title="Layouts")).splitlines()
    assert lines[1] == "Layouts: N64-C128, p=0.1, world=2, hot, float16"
    assert [line.split()[:2] for line in lines if "layout=" in line] == [
        ["layout=nchw", "eager"],
        ["layout=nhwc", "eager"],
    ]


@pytest.mark.parametrize(
    "about",
    [
        {"plot": "of_expected"},
        {"claims": (Claim("R1", "eager", "of_expected", 1.0, "A100"),)},
        {"expect": (Expectation("eager", "of_expected", 1.0),)},
    ],
)
def test_what_a_scenario_is_about_is_shown_before_details(
    about: dict[str, Any], measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    assert Catalogue()  # an op adds the metric
    work = Work(2**20, 2**20, items=64, item="images")
    facts = (("expected_rate", 1e9), ("first of the details", 0.25), ("second of the details", 0.5))
    case = measured("eager", "float16", SHAPE, work=work, facts=facts)
    hidden = drawn(terminal.render, make_run([case]), width=52).partition("too few for: ")[2]
    assert "of expected" in hidden.partition("peak:")[0]
    text = drawn(terminal.render, make_run([case], **about), width=52)
    assert "of expected" not in " ".join(text.partition("too few for: ")[2].partition("peak:")[0].split())
    assert "details" in text


def test_a_long_head_takes_a_few_lines(measured: Callable[..., Measurement], make_run: Callable[..., Run]) -> None:
    case = measured("eager", "float32", SHAPE, facts=(("share of the queue that is filled", 0.25),))
    lines = [line.strip() for line in drawn(terminal.render, make_run([case]), width=120).splitlines()]
    (last,) = [number for number, line in enumerate(lines) if line.endswith("filled")]
    assert [line.rpartition("  ")[2] for line in lines[last - 3 : last]] == ["share of", "the queue", "that is"]


def test_forty_columns_fold_instead_of_losing_letters(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    text = drawn(terminal.render, make_run([measured("eager", "float32", SHAPE)]), width=40)
    assert max(map(len, text.splitlines())) <= 40
    assert "1.00x" in text


def test_a_console_too_narrow_for_ids_in_a_table_has_each_row_below_its_id(run: Run) -> None:
    text = drawn(terminal.show, comparison.page(compare_all("before", {"before": run, "after": run})), width=40)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 40
    first = run.measurements[0].case.id
    at = next(number for number, line in enumerate(lines) if not line.startswith(" ") and first.startswith(line))
    rest = " ".join(line.strip() for line in lines[at:])
    assert rest.replace(" ", "").startswith(first)
    assert "ratio 1.000x" in rest.partition("verdict ~")[0]


def test_what_a_row_stands_for_colours_it_without_a_table_too() -> None:
    wide = (Column(str(number), ("100.0%",)) for number in range(6))
    made = Table((text_column("case", ["softmax/tuned/float16/M64-N128"], code=True), *wide), kinds=("failure",))
    text = drawn(terminal.show, Page("", (made,)), width=40, force_terminal=True, color_system="standard")
    assert "\x1b[31msoftmax/tuned/float16/M64-N128\x1b[0m" in text


def test_colour_adds_nothing_that_the_text_does_not_say(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = drawn(terminal.render, run, force_terminal=True, color_system="standard")
    assert "\x1b[31m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in drawn(terminal.render, run, force_terminal=True, color_system="standard")


def test_names_and_errors_are_not_taken_for_markup(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    failed = measured("[red]x", "float32", SHAPE, status="wrong", error="[bold] at [/] 3")
    text = drawn(terminal.render, make_run([failed]))
    assert "wrong prelu/[red]x/float32/N64-C128: [bold] at [/] 3" in text


def test_many_failures_are_counted_after_the_first(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    failed = [measured("eager", "float32", (("N", n),), status="timeout", error="60 s") for n in range(1, 14)]
    text = drawn(terminal.render, make_run(failed))
    assert text.count("timeout prelu/") == 10
    assert "and 3 more without a time, see the tables" in text
    assert text.endswith("A GPU: 13 timeout\n")


def test_a_run_without_results_says_so(run: Run) -> None:
    empty = Run(replace(run.header, scenarios=()), ())
    assert drawn(terminal.render, empty).endswith("A GPU: no case was measured\n")


def test_nothing_to_compare(run: Run) -> None:
    empty = Run(replace(run.header, scenarios=()), ())
    made = compare_all("a", {"a": empty, "b": empty})
    assert drawn(terminal.show, comparison.page(made)).strip() == "no case in either run"
