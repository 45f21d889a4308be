"""What older versions stored that isn't so."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from harness import report
from harness.model import Measurement, Run, Warning
from harness.report import terminal

Build = Callable[..., Measurement]


def older(measured: Build, make_run: Callable[..., Run]) -> Run:
    """A run of three cases whose intervals are 0.08% wide, with warnings as 0.1.0 wrote them."""

    def noisy(asked: str) -> Warning:
        message = f"the median's 95% interval is still 0.1% wide after 0.15 s (asked for {asked})"
        return Warning("noisy", message, "free the machine of other work, or raise --max-time")

    def case(variant: str, *warnings: Warning) -> Measurement:
        return measured(variant, "float32", (("N", 64),), warnings=warnings, stopped="time")

    throttled = Warning("throttled", "the device lowered its clocks: power", "let it cool")
    return make_run([case("eager", noisy("0.5%"), throttled), case("a", noisy("0.1%")), case("b", noisy("0.05%"))])


def test_a_noisy_warning_that_the_samples_contradict_is_not_shown(
    measured: Build, make_run: Callable[..., Run], tmp_path: Path
) -> None:
    run = older(measured, make_run)
    console = Console(file=(drawn := io.StringIO()), width=200)
    terminal.render(run, console)
    report.write(run, tmp_path, ["csv", "markdown"])
    shown: dict[str, Any] = {"terminal": drawn.getvalue(), "page": (tmp_path / "report.md").read_text()}
    for text in shown.values():
        assert "noisy in prelu/b/float32/N64: the median's" in text.replace("**", "").replace("`", ""), text
        assert "asked for 0.5%" not in text
        assert "the device lowered its clocks" in text
    rows = (tmp_path / "results.csv").read_text().splitlines()[1:]
    assert ["noisy" in row for row in rows] == [False, False, True]
    assert "throttled" in rows[0]


def test_what_is_stored_stays_as_it_is(measured: Build, make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = older(measured, make_run)
    report.write(run, tmp_path, ["csv"])
    assert [warning.code for warning in run.measurements[0].warnings] == ["noisy", "throttled"]
