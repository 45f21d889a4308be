"""The rule about times that were taken in two ways."""

from __future__ import annotations

from collections.abc import Callable

from harness.gate import Evidence
from harness.gate.records import CaseEvidence
from harness.gate.rules import timer
from harness.model import Measurement


def test_times_of_two_timers_are_not_compared(
    evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement]
) -> None:
    steady, graph = (measured(timer=name) for name in ("steady", "graph"))
    failed = measured(status="crashed", timer="")
    [finding] = timer.judge(Evidence("main", (), (evidence(base=(failed, graph), now=(steady,)),)))
    assert (finding.severity, finding.rule) == ("undecided", "timer")
    assert finding.message.startswith("timed by 'steady' now, by 'graph' in main")
    alike = (evidence(base=(graph,), now=(graph,)), evidence(base=(failed,), now=(graph,)))
    assert not list(timer.judge(Evidence("main", (), alike)))


def test_a_step_that_is_not_timed_is_undecided() -> None:
    [finding] = timer.judge(Evidence("main", (), (), untimed=("mine/v has a step 'decode' now",)))
    assert (finding.severity, finding.message) == ("undecided", "mine/v has a step 'decode' now (main)")
    assert "--accept timer" in finding.advice
