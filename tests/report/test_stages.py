"""The figure of a pipeline's stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.model import Curve, Work
from harness.ops import Catalogue
from harness.report import charts, plotting, stages

Catalogue()  # whose pipelines add the metrics of their stages
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


def stages_of(run):
    return [plot for plot in plotting.plan(run)[0] if plot.layout == "stages"]


def test_a_pipeline_has_a_figure_of_its_stages(run_of):
    [plot] = stages_of(run_of())
    assert plot.name.endswith("-stages")
    assert list(plot.rows["variant"]) == ["two_buffers", "cached"]
    first, second = (stages._rates(case) for _, case in plot.rows.iterrows())
    assert first == pytest.approx({"read": 20e3, "prepare": 4e3, "copy": 3e5, "train": 6e3, "whole": 256 / 0.066})
    assert list(second) == ["prepare", "train", "whole"]


def test_other_ops_and_curves_have_none(run_of, run):
    assert stages_of(run) == []
    assert stages_of(run_of(curve=Curve("B", "images"))) == []


def test_what_limits_is_marked_and_texts_stay_apart(run_of, apart, monkeypatch):
    drawn = []
    monkeypatch.setattr(charts, "save", lambda drawing, path: drawn.append(drawing) or apart(drawing, path))
    [plot] = stages_of(run_of())
    charts.draw(plot, None, Path("plot.svg"))
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
