from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.gate.records import CaseEvidence, Finding, GateRun, Margin
from harness.model import Case
from harness.report import _canvas
from harness.report.gate.formats import plot

Evidence = Callable[..., CaseEvidence]
MakeCase = Callable[..., Case]
MakeGate = Callable[..., GateRun]
Apart = Callable[[Any, Path], list[Path]]


def axes_of(run: GateRun, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(_canvas, "save", lambda figure, _path: [figure])
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


@pytest.mark.parametrize("losses", [[0.0], [0.0, -0.6, 0.3], [-0.03] * 12, [0.0] * 59 + [-0.4]], ids=len)
@pytest.mark.parametrize("margin", [0.01, 0.2])
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
    monkeypatch.setattr(_canvas, "save", apart)
    assert plot.write(make_gate(cases, findings), tmp_path) == []


def test_nothing_is_drawn_of_nothing(make_gate: MakeGate, tmp_path: Path) -> None:
    assert plot.write(make_gate([]), tmp_path) == []
