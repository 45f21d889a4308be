"""What `harness gate calibrate` says of the noise that it found."""

from __future__ import annotations

import pytest

from harness.cli import gate_calibrate
from harness.gate import CaseNoise
from harness.gate.records import Margin
from harness.model import Case


def row(op: str, noise: float | None, asked: float = 0.01, chance: float = 0.001) -> CaseNoise:
    margin, offset = Margin(asked, noise, chance=chance), None if noise is None else noise / 3
    return CaseNoise(Case(op, "tuned", "float32", (("N", 8),)), 5, 0.001, offset, margin, ("ok", "inconclusive"))


def test_a_quiet_machine_gets_no_warning() -> None:
    assert not list(gate_calibrate._warnings([row("a", 0.002), row("b", 0.0199)]))


def test_cases_that_are_too_noisy_are_counted_with_the_noisiest() -> None:
    [told] = gate_calibrate._warnings([row("a", 0.3), row("b", 0.021), row("c", 0.001)])
    assert told.startswith("this machine is too noisy for 2 of 3 cases: with a margin of 1.00% a case can pass only if")
    assert "2.00% or less, and the noise of a/tuned/float32/N8 is 30.00%" in told
    [told] = gate_calibrate._warnings([row("a", 0.3, asked=0.2), row("b", 0.5, asked=0.2)][::-1])
    assert told.startswith("this machine is too noisy for 1 of 2 cases: with a margin of 20.00%")


def test_cases_with_too_few_blocks_are_counted() -> None:
    [told] = gate_calibrate._warnings([row("a", 0.001), row("b", None)])
    assert told == "1 case has fewer than 5 blocks and no measured noise yet; calibrate again, blocks add up"


def test_the_table_has_the_noise_floor_or_says_that_it_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    gate_calibrate._print([row("a", 0.0123), row("b", None)])
    printed = capsys.readouterr().out
    first, second = (line.split() for line in printed.splitlines()[1:3])
    assert first[:5] == ["a/tuned/float32/N8", "5", "0.10%", "0.41%", "1.23%"]
    assert second[:5] == ["b/tuned/float32/N8", "5", "0.10%", "unknown", "unknown"]
    assert "decisions on identical code: 2 ok, 2 inconclusive" in printed


def test_the_last_line_says_how_often_identical_code_fails_in_a_run_of_these_cases() -> None:
    rows = [row("a", 0.006), row("b", 0.012, chance=0.003), row("c", 0.003)]
    told = gate_calibrate._offsets(rows)
    assert "a standard deviation of 0.20% in the median case, 0.40% at most" in told
    assert "In a run of these 3 cases a case fails from a loss of its margin on, 1.20% at most" in told
    assert told.endswith("identical code fails by its offsets in 0.50% of runs")
    assert gate_calibrate._offsets([row("a", None)]) == "offsets, which all pairs of a run share: unknown yet"
