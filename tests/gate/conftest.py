"""Evidence with round numbers, and what two sides used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.gate import submodules
from harness.gate.records import CaseEvidence, Decision, Margin, Outcome, Pair, UsedCode, change
from harness.gate.used_code import Probed, compared
from harness.model import Case, Measurement, Traffic, Work
from tests.gate.used_places import Places

N = 2**20


@pytest.fixture
def case() -> Callable[..., Case]:
    def make(variant: str = "tuned", op: str = "prelu", n: int = N) -> Case:
        return Case(op, variant, "float32", (("N", n),))

    return make


@pytest.fixture
def measured(case: Callable[..., Case]) -> Callable[..., Measurement]:
    """A measurement of 8 MiB in `seconds`; with a status other than ok it has no time."""

    def make(seconds: float = 1e-3, of: Case | None = None, **fields: object) -> Measurement:
        samples = (seconds,) if fields.get("status", "ok") == "ok" else ()
        known = {"samples": samples, "timer": "graph", "work": Work(4 * N, 4 * N), "traffic": Traffic(4 * N, 4 * N)}
        return Measurement(of or case(), **{"status": "ok", **known, **fields})

    return make


@pytest.fixture
def evidence(case: Callable[..., Case], measured: Callable[..., Measurement]) -> Callable[..., CaseEvidence]:
    """A case of four pairs that lost `loss`, a share, and was decided so; whatever else is given as it is."""

    def make(
        outcome: Outcome | None = "ok", loss: float = 0.0, of: Case | None = None, **fields: object
    ) -> CaseEvidence:
        found = change(-loss)
        decision = Decision(outcome, "screen", found, found - 0.01, found + 0.01, 4) if outcome else None
        known = {
            "case": of or case(),
            "scenario": "prelu",
            "base": (measured(of=of),) * 4,
            "now": (measured(of=of),) * 4,
            "pairs": (Pair(1e-3, 1e-3, "base", "screen"),) * 4,
            "margin": Margin(0.01),
            "decision": decision,
        }
        return CaseEvidence(**{**known, **fields})

    return make


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@pytest.fixture
def comparison(places: Places, monkeypatch: pytest.MonkeyPatch) -> Callable[..., UsedCode]:
    """The files that both sides used. changed: names of files that differ; ignored: names of files that git ignores."""

    def make(
        base: Probed,
        now: Probed,
        changed: tuple[str, ...] = (),
        scenarios: set[Path] | None = None,
        ignored: tuple[str, ...] = (),
        repository: Any = None,
    ) -> UsedCode:
        def listed(top: Path) -> list[str]:
            return [n for file in top.rglob("*") if file.is_file() and (n := str(file.relative_to(top))) not in ignored]

        monkeypatch.setattr(submodules, "listed", listed)
        monkeypatch.setattr(submodules, "changed", lambda top, revision: {"b" * 40: changed}[revision])
        monkeypatch.setattr(submodules, "at", lambda top, revision: {"sub": "c" * 40})
        return compared(repository or places.repository, places.codes, {"base": base, "now": now}, scenarios or set())

    return make
