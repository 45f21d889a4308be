"""Sizes along the axis of a picture: what isn't measured has no line, what lies between two sizes stands apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.model import Measurement, Run
from tests.report.conftest import drawn

Build = Callable[..., Measurement]
MakeRun = Callable[..., Run]
SWEEP = [(("N", 2**k),) for k in range(18, 23)]


def test_no_line_goes_through_sizes_that_were_not_measured(
    measured: Build, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = [measured("tuned", "float32", shape) for shape in SWEEP if shape != SWEEP[2]]
    axes = drawn(make_run([measured("eager", "float32", shape) for shape in SWEEP] + gap), tmp_path, monkeypatch)
    found = {str(line.get_label()): list(line.get_ydata()) for line in axes.get_lines()}
    assert [value > 0 for value in found["eager"]] == [True] * 5
    assert [value > 0 for value in found["tuned"]] == [True, True, False, True, True]


@pytest.mark.slow  # the other test here has such sizes
def test_sizes_between_powers_of_two_stand_apart_from_the_line(
    measured: Build, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [16, 64, 1021, 1022, 1023, 1024, 4096, 2**15, 2**17]
    cases = [measured("eager", "float32", (("N", size),)) for size in sizes]
    axes = drawn(make_run(cases), tmp_path, monkeypatch)
    (through,) = [line for line in axes.get_lines() if line.get_label() == "eager"]
    (apart_,) = [line for line in axes.get_lines() if line.get_markerfacecolor() == "white" and line.get_xdata().size]
    assert list(through.get_xdata()) == [16, 64, 1024, 4096, 2**15, 2**17]
    assert apart_.get_linestyle() == "None"
    places = [*apart_.get_xdata(), 1024]
    assert places == sorted(places)
    assert all(after / before > 1.05 for before, after in itertools.pairwise(places))
    labels = [label.get_text() for label in axes.get_xticklabels(minor=True)]
    assert labels == ["1021", "1022", "1023"]
