"""The 95% intervals in pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.model import Curve, Measurement, Run
from tests.report.conftest import drawn
from tests.report.test_plots import SHAPES, SWEEP

Build = Callable[..., Measurement]
MakeRun = Callable[..., Run]


def test_an_interval_wider_than_its_mark_has_an_error_bar(
    measured: Build, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = tuple(4e-6 * (1 + (i - 5) * 0.05) for i in range(11))
    cases = [measured("eager", "float32", SHAPES[0], samples=wide), measured("tuned", "float32", SHAPES[0])]
    axes = drawn(make_run(cases), tmp_path, monkeypatch)
    (bar,) = [found for found in axes.containers if found.get_label() == "95% interval"]
    ((low, high),) = [sorted(end for _, end in part) for part in bar[2][0].get_segments()]
    # The second and the tenth of 11 samples bound the median.
    moved = 2 * 4 * 128 * 64 * 112 / 1e9
    assert (low, high) == pytest.approx((moved / 4.8e-6, moved / 3.2e-6))


def test_the_axis_holds_the_whole_interval_of_the_highest_point(
    measured: Build, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = tuple(4e-6 * (1 + (i - 5) * 0.1) for i in range(11))
    cases = [measured("eager", "float32", shape, samples=wide) for shape in SWEEP]
    axes = drawn(make_run(cases, curve=Curve("N", "elements")), tmp_path, monkeypatch)
    assert axes.get_yscale() == "linear"
    bars = [found for found in axes.containers if found.get_label() in ("95% interval", "_nolegend_")]
    highest = max(end for bar in bars for _, end in bar[2][0].get_segments()[0])
    assert highest < axes.get_ylim()[1] < 1.1 * highest


def test_a_number_stands_beyond_the_error_bar_of_its_row(
    measured: Build, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = tuple(4e-6 * (1 + (i - 5) * 0.05) for i in range(11))
    cases = [measured(f"v{i}", "float32", SHAPES[0], 0.3 + i / 100) for i in range(10)]
    axes = drawn(make_run([*cases, measured("noisy", "float32", SHAPES[0], samples=wide)]), tmp_path, monkeypatch)
    places = {label.get_text(): place for place, label in enumerate(axes.get_yticklabels())}
    ends = {round(text.xy[1]): text.xy[0] for text in axes.texts}
    widths = [bar.get_width() for bar in axes.patches]
    # The least of the times in the interval is 3.2 us, the median 4 us.
    assert ends[places["noisy"]] == pytest.approx(widths[places["noisy"]] * 4 / 3.2)
    assert ends[places["v9"]] == pytest.approx(widths[places["v9"]])
