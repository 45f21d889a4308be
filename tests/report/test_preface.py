"""What stands before the tables of a report: warnings of cases, each with what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.model import Measurement, Run, Warning
from harness.report import preface


def test_the_hint_on_noise_is_of_the_worst_case(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    def noisy(variant: str, spread: float) -> Measurement:
        own = measured(variant, "float32", (("N", 64),))
        samples = tuple(1e-6 * (1 + spread * (n % 5)) for n in range(20))
        return replace(own, samples=samples, warnings=(Warning("noisy", f"{variant} varies", "sample for longer"),))

    notes = preface.warnings(make_run([noisy("eager", 0.01), noisy("compile", 0.2), noisy("tuned", 0.05)]))
    assert [(note.text, note.label) for note in notes] == [("compile varies", "noisy in 3 cases, such as")]
