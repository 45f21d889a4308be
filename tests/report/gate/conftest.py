"""Gate runs with round numbers: one of everything, and any number of cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.gate.records import CaseEvidence, Decision, Finding, GateRun, Margin, Outcome, Pair, Revision, change
from harness.model import Case, Machine, Measurement

EvidenceOf = Callable[..., CaseEvidence]
BASE = 100e-6


@pytest.fixture
def evidence() -> EvidenceOf:
    """A case whose pairs lie around `loss` (a share; negative is slower), 0.1% apart; none without an outcome."""

    def make(
        case: Case, outcome: Outcome | None = "ok", loss: float = 0.0, screen: int = 4, confirm: int = 0, **fields: Any
    ) -> CaseEvidence:
        def pair(index: int, stage: Any) -> Pair:
            now = BASE / (1 + loss + 0.001 * (index % 3 - 1))
            return Pair(BASE, now, "base" if index % 2 else "now", stage)

        pairs = [*(pair(i, "screen") for i in range(screen)), *(pair(i, "confirm") for i in range(confirm))]
        known: dict[str, Any] = {"scenario": f"ci.{case.op}", "margin": Margin(0.01)}
        if outcome:
            stage: Any = "confirm" if confirm else "screen"
            estimate, p = change(loss), 0.001 if confirm else None
            known["decision"] = Decision(outcome, stage, estimate, estimate - 0.001, estimate + 0.001, len(pairs), p)
            timed = Measurement(case, "ok", samples=(BASE,), phases=(("check", 0.25), ("sample", 0.5)))
            known |= {"base": (timed,) * len(pairs), "now": (timed,) * len(pairs), "pairs": tuple(pairs)}
        else:
            known |= {"base": (), "now": (), "pairs": ()}
        return CaseEvidence(case, **(known | fields))

    return make


@pytest.fixture
def case() -> Callable[..., Case]:
    def make(
        op: str,
        variant: str = "tuned",
        shape: Sequence[tuple[str, int]] = (("N", 2**26),),
        choices: Sequence[tuple[str, float]] = (),
    ) -> Case:
        return Case(op, variant, "float16", tuple(shape), tuple(choices))

    return make


@pytest.fixture
def make_gate(gpu: Machine) -> Callable[..., GateRun]:
    def make(cases: Sequence[CaseEvidence], findings: Sequence[Finding] = (), **fields: Any) -> GateRun:
        known: dict[str, Any] = {
            "mode": "paired",
            "base": Revision("origin/main", "0123456789abcdef0123", False, "b" * 64),
            "now": Revision("working tree", "fedcba9876543210fedc", True, "a" * 64),
            "machine": gpu,
            "scenarios": (),
            "seed": 17,
            "alpha": 0.01,
            "started": "2026-01-01T10:00:00+00:00",
            "seconds": 142.5,
            "command": ("harness", "gate", "--base", "origin/main", "ci"),
        }
        return GateRun(cases=tuple(cases), findings=tuple(findings), **(known | fields))

    return make


@pytest.fixture
def gate_run(evidence: EvidenceOf, case: Callable[..., Case], make_gate: Callable[..., GateRun]) -> GateRun:
    """One of everything: slower, inconclusive, below a floor, missing, new, improved, a wide margin, odd texts."""
    rows, layer = (("M", 65536), ("N", 1024)), (("N", 2048), ("C", 512), ("H", 7), ("W", 7))
    slow, odd, low = case("layer_norm_grad", shape=rows), case("dropout", "a|b"), case("softmax", shape=rows)
    gone, new = (
        case("bias_dropout_residual", shape=(("R", 32768), ("C", 1024)), choices=(("p", 0.1),)),
        case("relu_mask"),
    )
    undecided = replace(evidence(odd, "inconclusive", -0.011, confirm=20), margin=Margin(0.01, 0.0125))
    cases = [
        evidence(case("copy", "memcpy", (("N", 2**25),)), control=True),
        evidence(case("prelu", shape=layer), "improved", 0.034),
        evidence(low, "ok", 0.0004),
        undecided,
        evidence(slow, "regressed", -0.032, confirm=10),
        evidence(gone, None),
        evidence(new, None),
    ]
    findings = [
        Finding("missing", "note", "is new: the base doesn't have it", case=new),
        Finding("slower", "undecided", "20 pairs don't tell", "let it measure 31 pairs", case=odd),
        Finding("slower", "failure", "3.20% slower than origin/main, the margin is 1.00%", "see pairs.png", case=slow),
        Finding("missing", "failure", "crashed: <k> [x](y)\n::error::| 100%", "use compute-sanitizer", case=gone),
        Finding("floor", "failure", "of_ceiling is 88.1%, its floor is 90.0%", case=low),
        Finding("environment", "note", "3 of 42 processes ran with lowered clocks"),
    ]  # fmt: skip
    return make_gate(cases, findings)
