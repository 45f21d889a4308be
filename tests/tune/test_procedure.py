"""What a search says before it times anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.model import Case
from harness.tune import ToTune, listed, procedure

TUNABLE = Path(__file__).parents[1] / "plugins" / "tunable.py"
CASE = Case("chunked", "tuned", "float32", (("M", 64), ("N", 16)), device="cpu")
WANTED = ToTune("chunked", "tuned", (CASE,), "cpu", (TUNABLE,))


def test_every_25_compiled_plans_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(_op: object, found: Any, _: object, step: Callable[[Case, int, int], None]) -> Any:
        for done in range(1, 61):
            step(CASE, done, 60)
        return found

    told: list[str] = []
    monkeypatch.setattr(procedure, "compiled", compiled)
    listed(WANTED, SimpleNamespace(note=told.append))
    assert told == [f"compiling {CASE.id} (1 of 1), plan {number} of 60" for number in (1, 26, 51)]


def test_a_size_without_a_plan_has_the_reason_of_the_variant_or_else_of_its_rule() -> None:
    reasons = {"none": None, "silent": lambda _: None, "tuned": lambda case: f"not for N={case.symbols['N']}"}
    variants = {name: SimpleNamespace(unsupported=reason) for name, reason in reasons.items()}
    found = [procedure._obstacle(SimpleNamespace(variants=variants), name, CASE) for name in variants]
    assert found[2] == "not for N=16"
    assert all("its rule gives none" in text for text in found[:2])
