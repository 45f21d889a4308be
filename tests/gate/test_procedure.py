"""Screen and confirm: what is measured again, and how often."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.gate import deciding
from harness.gate.case_lists import Cases
from harness.gate.deciding import SCREEN_PAIRS
from harness.gate.looks import CONFIRM_PAIRS
from harness.gate.noise_store import Noise
from harness.gate.offsets import ASSUMED, Block
from harness.gate.pairing import Jobs
from harness.gate.procedure import Procedure
from harness.gate.records import CaseEvidence, Margin, Pair, Side, Stage
from harness.model import Case, Job, Measurement
from tests.rare import rare

NOISE = 0.0005


class FakePairs:
    """Pairs that lose a given share each, with a little noise, or have given changes one after the other.

    `stages` tells what was measured.
    """

    def __init__(self, losses: dict[str, Any]) -> None:
        self.losses = losses
        self.draw = random.Random(1)
        self.stages: list[tuple[Stage, list[str]]] = []
        self.pairs: dict[str, list[Pair]] = defaultdict(list)
        self.measurements: dict[Side, dict[str, list[Measurement]]] = {s: defaultdict(list) for s in ("base", "now")}

    def measure(self, stage: Stage, count: int, jobs: Jobs) -> None:
        self.stages.append((stage, [job.case.op for job in jobs["now"]]))
        for job in jobs["now"]:
            for _ in range(count):
                self._pair(job, stage)

    def _pair(self, job: Job, stage: Stage) -> None:
        loss = self.losses[job.case.op]
        loss = loss if isinstance(loss, float) else loss[stage]
        if isinstance(loss, list):
            now = math.exp(-loss[sum(pair.stage == stage for pair in self.pairs[job.case.id])])
        else:
            now = math.exp(-math.log1p(-loss) + self.draw.gauss(0, NOISE))
        self.pairs[job.case.id].append(Pair(1.0, now, "base", stage))
        self.measurements["now"][job.case.id].append(Measurement(job.case, "ok", samples=(now,), timer="graph"))

    def changes(self, keys: Sequence[str], stage: Stage) -> dict[str, list[float]]:
        return {key: [pair.change for pair in self.pairs[key] if pair.stage == stage] for key in keys}


class Quiet(Noise):
    """A machine whose offsets are known to be tiny: the margin is what was asked for."""

    def margin(self, case: str, timer: str, asked: float, family: int = 1, waived: float = 0.0) -> Margin:
        return Margin(asked, 0.0, waived=waived)


class Watch:
    """An observer that keeps what was settled."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, int]] = []

    def settled(self, pairs: int, decisions: Any, going: Sequence[str]) -> None:
        self.told.append((pairs, len(decisions), len(going)))


def carry_out(losses: dict[str, Any], noise: Noise | None = None) -> tuple[dict[str, CaseEvidence], FakePairs, Watch]:
    ops = {"copy": "memcpy"}
    jobs = tuple(Job(Case(op, ops.get(op, "tuned"), "float32", (("N", 8),))) for op in losses)
    pairs, watch = FakePairs(losses), Watch()
    known = noise or Quiet(Path("none"), "f00d", {})
    procedure = Procedure(pairs, Cases((), {"base": jobs, "now": jobs}), 0.01, known, watch)
    return {e.case.op: e for e in procedure.carry_out()}, pairs, watch


def test_clear_cases_take_the_screen_alone() -> None:
    found, pairs, watch = carry_out({"a": 0.0, "b": -0.05, "copy": 0.0})
    assert pairs.stages == [("screen", ["a", "b", "copy"])]
    assert {op: e.decision.outcome for op, e in found.items()} == {"a": "ok", "b": "improved", "copy": "ok"}
    assert watch.told == [(SCREEN_PAIRS, 3, 0)]
    assert found["copy"].control


def test_cases_that_one_side_alone_has_are_measured() -> None:
    """They have no base to be compared with, and get no decision."""
    job = Job(Case("new", "tuned", "float32", (("N", 8),)))
    pairs = FakePairs({"new": 0.0})
    cases = Cases((), {"base": (), "now": (job,)})
    [found] = Procedure(pairs, cases, 0.01, Quiet(Path("none"), "f00d", {}), Watch()).carry_out()
    assert pairs.stages == [("screen", ["new"])]
    assert (found.case, found.decision, len(found.now), found.base) == (job.case, None, SCREEN_PAIRS, ())
    pairs = FakePairs({})
    nothing = Procedure(pairs, Cases((), {"base": (), "now": ()}), 0.01, Quiet(Path("none"), "f00d", {}), Watch())
    assert nothing.carry_out() == ()
    assert pairs.stages == []


def test_suspects_are_measured_anew_beside_the_controls() -> None:
    found, pairs, watch = carry_out({"a": 0.0, "slow": 0.05, "copy": 0.0})
    assert pairs.stages == [("screen", ["a", "slow", "copy"]), ("confirm", ["slow", "copy"])]
    slow = found["slow"].decision
    assert (slow.outcome, slow.stage, slow.pairs) == ("regressed", "confirm", CONFIRM_PAIRS)
    assert found["a"].decision.stage == "screen"
    assert found["copy"].decision.outcome == "ok"
    assert watch.told == [(SCREEN_PAIRS, 2, 1), (CONFIRM_PAIRS, 1, 0)]


def test_the_screen_does_not_count_in_the_confirmation() -> None:
    found, pairs, _ = carry_out({"unlucky": {"screen": 0.2, "confirm": 0.0}})
    assert [stage for stage, _ in pairs.stages] == ["screen", "confirm"]
    assert found["unlucky"].decision.outcome == "ok"
    assert found["unlucky"].decision.estimate == pytest.approx(0, abs=0.001)


def test_what_stays_at_the_margin_is_looked_at_twice_and_undecided() -> None:
    found, pairs, watch = carry_out({"edge": {"screen": 0.02, "confirm": 0.0101}})
    assert [stage for stage, _ in pairs.stages] == ["screen", "confirm", "confirm"]
    edge = found["edge"].decision
    assert (edge.outcome, edge.pairs) == ("inconclusive", 2 * CONFIRM_PAIRS)
    assert edge.pairs_to_tell
    assert watch.told[-1] == (2 * CONFIRM_PAIRS, 1, 0)


def test_a_control_alone_is_not_worth_a_confirmation() -> None:
    found, pairs, _ = carry_out({"a": 0.0, "copy": 0.03})
    assert len(pairs.stages) == 1
    assert found["copy"].decision.outcome == "inconclusive"


def test_a_loss_below_the_noise_floor_passes() -> None:
    blocks = [Block(mean) for mean in (0.005, -0.006, 0.005, 0.006, -0.005)]
    noise = Noise(Path("none"), "f00d", {("noisy/tuned/float32/N8", "graph"): blocks})
    found, pairs, _ = carry_out({"noisy": 0.014}, noise)
    assert found["noisy"].decision.outcome == "ok"
    assert found["noisy"].margin.value == pytest.approx(0.0164, rel=0.01)
    assert len(pairs.stages) == 1


def test_offsets_are_allowed_for_all_cases_that_can_fail_so_not_for_controls() -> None:
    found, _, _ = carry_out({"a": 0.0, "b": 0.0, "copy": 0.0}, Noise(Path("none"), "f00d", {}))
    assert {one.margin.failing for one in found.values()} == {-math.expm1(-ASSUMED.allowed(2))}


@pytest.mark.parametrize("bad", [1, 3])
def test_one_bad_block_does_not_let_twice_as_slow_pass_nor_do_many(bad: int) -> None:
    blocks = [Block(0.8)] * bad + [Block(0.001)] * (5 - bad)
    noise = Noise(Path("none"), "f00d", {("slow/tuned/float32/N8", "graph"): blocks})
    found, pairs, _ = carry_out({"slow": 0.5, "well": 0.0}, noise)
    assert found["slow"].decision.outcome == ("regressed" if bad == 1 else "inconclusive")
    assert found["slow"].too_noisy == (bad == 3)
    assert found["well"].decision.outcome == "ok"
    # More pairs can't make a case pass that is too noisy.
    assert len(pairs.stages) == (2 if bad == 1 else 1)


def drawn(draw: random.Random, names: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """Changes of cases around the margin: of some so clear that a look finds them, of others never."""
    found = {}
    for name in names:
        loss, spread = draw.choice((0.0, 0.01, 0.015, 0.02, 0.03, 0.05)), draw.choice((0.001, 0.005, 0.01))
        counts = {"screen": SCREEN_PAIRS, "confirm": 2 * CONFIRM_PAIRS}
        found[name] = {stage: [draw.gauss(-loss, spread) for _ in range(count)] for stage, count in counts.items()}
    return found


@pytest.mark.parametrize("controls", [rare([]), ["copy"]])
def test_pairs_that_are_measured_decide_what_the_same_pairs_decide_at_once(controls: list[str]) -> None:
    """Holm's family has the suspects, less those that a look before has found, and no controls."""
    draw, outcomes = random.Random(7), Counter[tuple[str, str, int]]()
    for _ in range(60):
        changes = drawn(draw, [f"op{number}" for number in range(draw.randrange(1, 9))])
        found, pairs, _ = carry_out(changes | dict.fromkeys(controls, 0.03))
        evidence = {found[name].case.id: found[name] for name in changes}
        margins = {key: one.margin for key, one in evidence.items()}
        at_once = deciding.decided(pairs.changes([*margins], "screen"), pairs.changes([*margins], "confirm"), margins)
        assert {key: one.decision for key, one in evidence.items()} == at_once
        for decision in at_once.values():
            outcomes[decision.outcome, decision.stage, decision.pairs] += 1
    looks = [("regressed", CONFIRM_PAIRS), ("regressed", 2 * CONFIRM_PAIRS), ("inconclusive", 2 * CONFIRM_PAIRS)]
    assert all(outcomes[outcome, "confirm", pairs] > 3 for outcome, pairs in looks)


def test_who_is_found_regressed_leaves_the_others_more_of_the_level() -> None:
    late = [*alternating(-0.01, 0.004, 10), *alternating(-0.022, 0.004, 10)]  # p = 0.002 after both looks
    slow, never = alternating(-0.05, 0.001, 20), alternating(-0.01, 0.02, 20)
    for others, outcome in ((slow, "regressed"), (never, "inconclusive")):
        losses = {f"op{number}": {"screen": 0.05, "confirm": others} for number in range(9)}
        found, _, _ = carry_out(losses | {"late": {"screen": 0.05, "confirm": late}})
        assert (found["late"].decision.outcome, found["late"].decision.pairs) == (outcome, 2 * CONFIRM_PAIRS)


def test_a_control_is_judged_among_the_controls_and_keeps_a_loss_that_a_look_found() -> None:
    """Its own family is the controls that haven't been found yet, however many suspects there are."""
    late = [*alternating(-0.01, 0.004, 10), *alternating(-0.022, 0.004, 10)]
    never = {f"op{number}": {"screen": 0.05, "confirm": alternating(-0.01, 0.02, 20)} for number in range(9)}
    found, pairs, _ = carry_out(never | {"copy": {"screen": 0.05, "confirm": late}})
    assert (found["copy"].decision.outcome, found["copy"].decision.pairs) == ("regressed", 2 * CONFIRM_PAIRS)
    early = [*alternating(-0.05, 0.001, 10), *alternating(0.05, 0.001, 10)]
    found, pairs, _ = carry_out(never | {"copy": {"screen": 0.05, "confirm": early}})
    assert (found["copy"].decision.outcome, found["copy"].decision.pairs) == ("regressed", CONFIRM_PAIRS)
    assert pairs.stages[2] == ("confirm", [*never, "copy"])


def alternating(mean: float, spread: float, count: int) -> list[float]:
    return [mean + spread * (-1) ** number for number in range(count)]
