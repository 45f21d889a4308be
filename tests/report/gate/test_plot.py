from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.gate.records import CaseEvidence, Decision, Finding, GateRun, Margin, Pair
from harness.model import Case
from harness.report import canvas, gate
from harness.report.gate.formats import plot
from tests.rare import rare

Evidence = Callable[..., CaseEvidence]
MakeCase = Callable[..., Case]
MakeGate = Callable[..., GateRun]
Apart = Callable[[Any, Path], list[Path]]


def axes_of(run: GateRun, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(canvas, "save", lambda figure, _path: [figure])
    figure: Any
    [figure] = plot.write(run, folder)
    figure.draw_without_rendering()
    return figure.axes[0]


def test_every_pair_is_a_dot_with_the_stages_apart_and_cases_worst_first(
    gate_run: GateRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = axes_of(gate_run, tmp_path, monkeypatch)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [label.split("  ") for label in labels] == [
        ["layer_norm_grad/tuned/float16/M65536-N1024", "regressed"],
        ["softmax/tuned/float16/M65536-N1024", "floor"],
        ["dropout/a|b/float16/N67108864", "inconclusive"],
        ["copy/memcpy/float16/N33554432", "ok (control)"],
        ["prelu/tuned/float16/N2048-C512-H7-W7", "improved"],
    ]
    dots = [tuple(place) for collection in axes.collections for place in collection.get_offsets()]
    assert len(dots) == sum(len(evidence.pairs) for evidence in gate_run.cases)
    slow = [(x, y) for x, y in dots if y < 0.5]
    assert all(-3.4 < x < -3.0 for x, _ in slow)
    assert (sum(y < 0 for _, y in slow), sum(y > 0 for _, y in slow)) == (4, 10)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]


def test_the_margin_is_a_line_with_a_step_where_a_case_has_its_own(
    gate_run: GateRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = axes_of(gate_run, tmp_path, monkeypatch)
    [line] = [line for line in axes.get_lines() if line.get_label() == "margin"]
    assert list(line.get_ydata()) == [-0.5, 0.5, 0.5, 1.5, 1.5, 2.5, 2.5, 3.5, 3.5, 4.5]
    assert list(line.get_xdata()) == pytest.approx([-1] * 4 + [-1.25] * 2 + [-1] * 4)


@pytest.mark.slow  # test_a_long_id_leaves_space_for_the_dots, report/test_plots.py has labels
@pytest.mark.parametrize(
    ("losses", "margin"),
    [
        ([0.0, -0.6, 0.3], 0.2),
        *(rare(*one) for one in (([0.0], 0.01), ([-0.03] * 12, 0.01), ([0.0] * 59 + [-0.4], 0.2))),
    ],
)
def test_no_label_lies_on_another(
    losses: Sequence[float],
    margin: float,
    evidence: Evidence,
    case: MakeCase,
    make_gate: MakeGate,
    apart: Apart,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = [
        replace(
            evidence(case("bias_dropout_residual", shape=(("R", 32768), ("C", i))), loss=loss), margin=Margin(margin)
        )
        for i, loss in enumerate(losses)
    ]
    findings = [Finding("slower", "failure", "slower", case=cases[-1].case)]
    monkeypatch.setattr(canvas, "save", apart)
    assert plot.write(make_gate(cases, findings), tmp_path) == []


def compared(
    of: Case, pairs: Sequence[tuple[float, float]], margin: Margin, bounds: tuple[float, float] | None = None
) -> CaseEvidence:
    """A case with these pairs of times. bounds: of the decision; if None, the smallest and the largest pair."""
    made = tuple(Pair(base, now, "base", "screen") for base, now in pairs)
    low, high = bounds or (min(p.change for p in made), max(p.change for p in made))
    return CaseEvidence(of, "ci", (), (), made, margin, decision=Decision("ok", "screen", low, low, high, len(made)))


@pytest.mark.slow  # the tests above have margins and differences
@pytest.mark.parametrize(
    ("ratio", "count", "margin"),
    [
        (1.0, 4, 0.0),
        (1.0001, 1, 0.0005),
        (0.97, 1, 0.45),
        rare(1e-3, 4, 0.99),
        (4000.0, 1, 0.0),
        rare(1e-3, 4, 0.0005),
    ],
)
def test_any_margin_and_any_difference_can_be_drawn(
    ratio: float,
    margin: float,
    count: int,
    case: MakeCase,
    make_gate: MakeGate,
    apart: Apart,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Identical times make bounds without a width, which is where --margin 45% and 0.05% found no tick."""
    pairs = [(1e-4, 1e-4 / ratio)] * 3
    cases = [compared(case("op", shape=(("N", i),)), pairs, Margin(margin)) for i in range(count)]
    monkeypatch.setattr(canvas, "save", apart)
    assert plot.write(make_gate(cases), tmp_path) == []


@pytest.mark.parametrize(
    ("pair", "others"),
    [
        ((1.0, math.nan), []),
        *(rare((1.0, now), []) for now in (math.inf, 0.0)),
        *(
            rare(pair, [(1.0, 1.0), (1.0, 1.02)])
            for pair in ((0.0, 1.0), (math.nan, 1.0), (1e300, 1e-8), (1e300, 1e-300))
        ),
    ],
)
def test_a_pair_without_a_number_is_told_and_the_others_are_drawn(
    pair: tuple[float, float],
    others: list[tuple[float, float]],
    case: MakeCase,
    make_gate: MakeGate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for bounds in ((math.nan, math.nan), (-math.inf, 1e6), (-0.01, 0.01)):
        found = compared(case("op"), [pair, *others], Margin(0.01), bounds)
        axes = axes_of(make_gate([found]), tmp_path, monkeypatch)
        dots = [x for collection in axes.collections for x, _ in collection.get_offsets()]
        shown = [0.0, 100 / 1.02 - 100][: len(others)]
        assert dots == pytest.approx(shown)
        [label] = [label.get_text() for label in axes.get_yticklabels()]
        assert label.endswith("ok (1 pair without a number)")


def test_one_very_noisy_case_leaves_small_losses_visible(
    case: MakeCase, make_gate: MakeGate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = (None, None, 0.5)
    cases = [
        compared(case("op", shape=(("N", i),)), [(1.0, 1.03)] * 3, Margin(0.01, floor)) for i, floor in enumerate(noise)
    ]
    axes = axes_of(make_gate(cases), tmp_path, monkeypatch)
    left, loss, zero = (axes.transData.transform((x, 0))[0] for x in (axes.get_xlim()[0], -3.0, 0.0))
    assert zero - loss > 0.2 * (zero - left)
    assert axes.get_xlim()[0] < -50


def test_as_many_cases_are_drawn_as_fit_into_a_picture() -> None:
    assert (plot._AROUND + plot._ROW * plot._MOST_ROWS) * canvas._DPI < 2**16


@pytest.mark.slow  # the test above has as many as fit
@pytest.mark.parametrize(
    ("count", "most", "drawn"), [rare(200, plot._MOST_ROWS, 200), (12, plot._MOST_ROWS, 12), (30, 20, 20)]
)
def test_many_cases_make_a_tall_picture_of_the_worst(
    count: int,
    most: int,
    drawn: int,
    case: MakeCase,
    make_gate: MakeGate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = [compared(case("op", shape=(("N", i),)), [(1.0, 1.0 + i / 1e4)] * 3, Margin(0.01)) for i in range(count)]
    monkeypatch.setattr(canvas, "save", lambda figure, _path: [figure])
    monkeypatch.setattr(plot, "_MOST_ROWS", most)
    figure: Any
    [figure] = plot.write(make_gate(cases), tmp_path)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == drawn
    assert labels[0].startswith(f"op/tuned/float16/N{count - 1} ")
    assert (f"the worst {most} of {count} cases" in figure.get_suptitle()) == (drawn < count)


def test_a_long_id_leaves_space_for_the_dots(
    case: MakeCase, make_gate: MakeGate, apart: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [compared(case("a_very_long_name_" * 12), [(1.0, 1.0)] * 3, Margin(0.01))]
    axes = axes_of(make_gate(cases), tmp_path, monkeypatch)
    assert axes.get_window_extent().width > 0.3 * axes.figure.bbox.width


def test_a_picture_of_another_run_does_not_stay(make_gate: MakeGate, tmp_path: Path) -> None:
    (tmp_path / "pairs.png").write_text("old")
    gate.write(make_gate([]), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"gate.json", "gate.md", "junit.xml"}


def test_nothing_is_drawn_of_nothing(make_gate: MakeGate, tmp_path: Path) -> None:
    assert plot.write(make_gate([]), tmp_path) == []
