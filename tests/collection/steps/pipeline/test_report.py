"""The figure of a pipeline's stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.collection.steps.pipeline import _report
from harness.model import Curve, Work
from harness.report import sections
from harness.report.frame import by_scenario

WORK = Work(items=256, item="images")
SHAPE = (("B", 256),)
RATES = {"read_rate": 20e3, "prepare_rate": 4e3, "copy_rate": 3e5, "train_rate": 6e3}
FACTS = tuple((RATES | {"expected_rate": 4e3, "limiting": 1.0}).items())
DECODED = (("prepare_rate", 3e4), ("train_rate", 6e3), ("expected_rate", 6e3), ("limiting", 3.0))


@pytest.fixture
def run_of(measured, make_run):
    def make(**fields):
        cases = [
            measured(name, "float16", SHAPE, op="image_pipeline", work=WORK, samples=(seconds,) * 7, facts=facts)
            for name, seconds, facts in (("two_buffers", 0.066, FACTS), ("cached", 0.043, DECODED))
        ]
        cases.append(measured("gpu_decode", "float16", SHAPE, op="image_pipeline", status="unsupported"))
        return make_run(cases, **fields)

    return make


def lines_of(run):
    ((_, lines),) = by_scenario(run)
    return lines


def stages_of(run):
    return [figure for _, lines in by_scenario(run) for figure in sections.figures(lines)]


def test_a_pipeline_has_a_figure_of_its_stages(run_of):
    [figure] = stages_of(run_of())
    assert figure.path == "plots/image_pipeline-float16-stages.svg"
    assert figure.alt.startswith("image_pipeline float16: stages alone, and the whole, B256")
    first, second = (_report.rates(line) for line in lines_of(run_of())[:2])
    assert first == pytest.approx({"read": 20e3, "prepare": 4e3, "copy": 3e5, "train": 6e3, "whole": 256 / 0.066})
    assert list(second) == ["prepare", "train", "whole"]


def test_settings_have_a_figure_each(run_of):
    one = run_of()
    [first, second, unsupported] = one.measurements
    other = replace(second, case=replace(second.case, shape=(("B", 512),)))
    scenario = replace(one.header.scenarios[0], cases=(first.case.id, other.case.id))
    run = replace(one, header=replace(one.header, scenarios=(scenario,)), measurements=(first, other, unsupported))
    assert [figure.path.rpartition("-float16-")[2] for figure in stages_of(run)] == ["stages-1.svg", "stages-2.svg"]
    assert [figure.alt.count(f"({number} of 2)") for number, figure in enumerate(stages_of(run), 1)] == [1, 1]


def test_other_ops_and_curves_have_none(run_of, run):
    assert stages_of(run) == []
    assert stages_of(run_of(curve=Curve("B", "images"))) == []


def test_what_limits_is_marked_and_texts_stay_apart(run_of, apart, monkeypatch):
    drawn = []
    monkeypatch.setattr(_report, "save", lambda drawing, path: drawn.append(drawing) or apart(drawing, path))
    [figure] = stages_of(run_of())
    figure.draw(Path("plot.svg"))
    axes = drawn[0].axes[0]
    dots = [line for line in axes.get_lines() if not str(line.get_label()).startswith("expected")]
    slowest = [line.get_xdata()[0] for line in dots if line.get_label() == "the slowest stage, which limits"]
    assert slowest == [4e3, 6e3]
    assert len(dots) == 8
    assert not axes.patches  # bars have no length on a logarithmic axis


def test_a_case_that_is_no_pipeline_is_left_out(run_of):
    found = run_of()
    plain = replace(found, measurements=tuple(replace(m, facts=()) for m in found.measurements))
    assert stages_of(plain) == []
