"""An undecided gate goes on from its pairs: at the next look, with the same margins, and only with the same code."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from harness import store
from harness.errors import UsageError
from harness.gate import deciding, looks, resuming
from harness.gate.case_lists import Cases
from harness.gate.noise_store import Noise
from harness.gate.pairing import PairMeasurer, order
from harness.gate.procedure import Procedure
from harness.gate.records import GateRun, Margin, Pair, Revision, Side, Stage, UsedCode, Waiver
from harness.gate.worktree import Checkout
from harness.model import Case, Job, Machine, Measurement
from harness.report.gate import stopped

BASE, NOW = Revision("main", "b" * 40, False, "1" * 64), Revision("the working tree", "f" * 40, True, "2" * 64)
USED = UsedCode((("a.py", "1"),), (("a.py", "2"),), complete=True)


def job(op: str) -> Job:
    return Job(Case(op, "memcpy" if op == "copy" else "tuned", "float32", (("N", 8),)))


class Measured(PairMeasurer):
    """Pairs whose changes lie `spread` around a case's own loss, one above, one below. `counts`: of each stage."""

    def __init__(self, losses: dict[str, float], spread: float = 0.004) -> None:
        super().__init__("cpu", {}, random.Random(1), 0, None)
        self.losses, self.spread = losses, spread
        self.counts: list[tuple[Stage, int, list[str]]] = []

    def measure(self, stage: Stage, count: int, jobs: Any) -> None:
        self.counts.append((stage, count, [each.case.op for each in jobs["now"]]))
        for _ in self._turns(count):
            pass
        for each in jobs["now"]:
            for _ in range(count):
                self._measured(each.case, stage)

    def _measured(self, case: Case, stage: Stage) -> None:
        known = self.pairs[case.id]
        now = 1 + self.losses[case.op] + self.spread * (-1) ** len(known)
        process = self._begun - 1
        known.append(Pair(1.0, now, "base", stage))
        for side, seconds in (("base", 1.0), ("now", now)):
            made = Measurement(case, "ok", samples=(seconds,), timer="graph", process=process)
            self.measurements[side][case.id].append(made)


class Quiet(Noise):
    def margin(self, case: str, timer: str, asked: float, family: int = 1, waived: float = 0.0) -> Margin:
        return Margin(asked, 0.0)


class Silent:
    def settled(self, *_: object) -> None: ...


def procedure(pairs: Measured, most: int) -> Procedure:
    jobs = tuple(map(job, pairs.losses))
    noise = Quiet(Path("none"), "f00d", {})
    return Procedure(pairs, Cases((), {"base": jobs, "now": jobs}), 0.01, noise, Silent(), most)


@pytest.fixture
def earlier(machine: Machine) -> Callable[..., GateRun]:
    """A gate of cases with these losses, after two looks."""

    def make(losses: dict[str, float], **fields: Any) -> GateRun:
        made = procedure(Measured(losses), 2)
        found = made.carry_out()
        known: dict[str, Any] = {"mode": "paired", "base": BASE, "now": NOW, "machine": machine, "scenarios": ()}
        known |= {"cases": found, "findings": (), "seed": 1, "alpha": 0.01, "started": "2026-11-25T10:00:00+00:00"}
        return GateRun(**{**known, "seconds": 1.0, "looks": made.made, "used": USED, **fields})

    return make


LOSSES = {"edge": 0.0125, "well": 0.0, "copy": 0.0}


def test_only_undecided_cases_go_on_beside_the_controls_to_the_next_look(earlier: Callable[..., GateRun]) -> None:
    before = earlier(LOSSES)
    assert {f.case.op: f.decision.outcome for f in before.cases} == {"edge": "inconclusive", "well": "ok", "copy": "ok"}
    pairs = Measured(LOSSES)
    after = {found.case.op: found for found in procedure(pairs, 4).go_on(before)}
    assert pairs.counts == [("confirm", 20, ["edge", "copy"]), ("confirm", 40, ["edge", "copy"])][: len(pairs.counts)]
    edge = after["edge"]
    assert edge.decision.outcome == "regressed"
    assert edge.decision.pairs == looks.pairs_at(2 + len(pairs.counts))
    # The pairs that were there count, and so do their measurements.
    old = before.cases[0]
    assert edge.pairs[: len(old.pairs)] == old.pairs
    assert edge.now[: len(old.now)] == old.now
    assert len(edge.now) == 3 + edge.decision.pairs
    assert after["well"] == before.cases[1]


def test_what_may_be_lost_stays_as_it_was_before_the_pairs_were_seen(earlier: Callable[..., GateRun]) -> None:
    before = earlier(LOSSES)
    wide = replace(before, cases=tuple(replace(found, margin=Margin(0.01, 0.0, 0.014)) for found in before.cases))
    after = procedure(Measured(LOSSES), 4).go_on(wide)
    assert [found.margin for found in after] == [found.margin for found in wide.cases]
    assert after[0].decision.outcome == "ok"


def test_going_on_decides_what_all_looks_at_once_decide(earlier: Callable[..., GateRun]) -> None:
    """Whether somebody has looked at the pairs in between changes nothing: looks and levels are fixed."""
    for loss in (0.0108, 0.0125, 0.009, 0.0095):
        losses = {"edge": loss, "other": 0.0104}
        at_once = procedure(Measured(losses), 4).carry_out()
        went_on = procedure(Measured(losses), 4).go_on(earlier(losses))
        assert [found.decision for found in went_on] == [found.decision for found in at_once]


def test_holms_family_stays_the_cases_that_came_into_the_confirmation(
    earlier: Callable[..., GateRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {"slow": 0.05, "edge": 0.0104, "other": 0.0096, "well": 0.0}
    before = earlier(losses)
    asked: list[int] = []
    looked = deciding.looked

    def watched(changes: Any, margins: Any, look: int, suspects: int) -> Any:
        asked.append(suspects)
        return looked(changes, margins, look, suspects)

    monkeypatch.setattr(deciding, "looked", watched)
    procedure(Measured(losses), 3).go_on(before)
    # 'slow' was found regressed and leaves its share of the level to the other two; 'well' never came in.
    assert asked[0] == 2


def test_processes_and_orders_go_on_too(earlier: Callable[..., GateRun]) -> None:
    before = earlier(LOSSES)
    pairs = Measured(LOSSES)
    pairs.take_up(before.cases)
    measured = 3 + looks.pairs_at(2)
    turns = list(pairs._turns(4))
    assert [turn.pair for turn in turns[::2]] == [measured + number for number in range(4)]
    firsts: list[Side] = list(islice(order(random.Random(1)), measured, measured + 4))
    assert [turn.first for turn in turns[::2]] == firsts


@pytest.mark.parametrize("losses", [{"well": 0.0}, {"slow": 0.05}])
def test_a_gate_that_has_decided_does_not_go_on(earlier: Callable[..., GateRun], losses: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="no case of this run is undecided that more pairs could decide"):
        procedure(Measured(losses), 3).go_on(earlier(losses))


def test_no_more_pairs_than_there_are_is_refused(earlier: Callable[..., GateRun]) -> None:
    with pytest.raises(UsageError, match="--pairs 20: this run has 20 pairs to confirm") as caught:
        procedure(Measured(LOSSES), 2).go_on(earlier(LOSSES))
    assert caught.value.advice == "ask for more: --pairs 40"


def test_after_the_last_look_that_there_is_none_follows(earlier: Callable[..., GateRun]) -> None:
    for most in (looks.MOST_LOOKS, looks.MOST_LOOKS + 1):
        with pytest.raises(UsageError, match="no case of this run"):
            procedure(Measured(LOSSES), most).go_on(earlier(LOSSES, looks=looks.MOST_LOOKS))


# --- what may go on ---


def test_a_folder_with_a_gate_is_read_and_nothing_else(earlier: Callable[..., GateRun], tmp_path: Path) -> None:
    before = earlier(LOSSES)
    store.write(before, tmp_path / "gate.json")
    assert resuming.load(tmp_path, 0.01, ()) == before
    with pytest.raises(UsageError, match="measured with --margin"):
        resuming.load(tmp_path, 0.02, ())
    with pytest.raises(UsageError, match="the waivers aren't as they were"):
        resuming.load(tmp_path, 0.01, (Waiver(("*",), 0.5, "r", "o", "2027-01-01", "w:1"),))
    # Whether a waiver is new is no part of the file, which is read before the base is asked.
    waiver = Waiver(("*",), 0.5, "r", "o", "2027-01-01", "w:1")
    store.write(replace(before, waivers=(replace(waiver, new=True),)), tmp_path / "gate.json")
    assert resuming.load(tmp_path, 0.01, (waiver,)).waivers[0].new
    for run in (replace(before, mode="stored"), replace(before, cases=())):
        store.write(run, tmp_path / "gate.json")
        with pytest.raises(UsageError, match="no pairs were measured there"):
            resuming.load(tmp_path, 0.01, ())
    stopped.write(stopped.Stopped.by(UsageError("no such op"), ()), tmp_path)
    with pytest.raises(UsageError, match="this gate stopped: no such op"):
        resuming.load(tmp_path, 0.01, ())
    for text in ("[1]", "{", '{"stopped": 4}', '{"stopped": {"exit": 2}}', "{}"):
        (tmp_path / "gate.json").write_text(text)
        for folder in (tmp_path, tmp_path / "none"):
            with pytest.raises(UsageError, match="holds no gate run") as caught:
                resuming.load(folder, 0.01, ())
            assert "name a folder with the gate.json of a gate" in caught.value.advice
            assert folder == tmp_path or caught.value.message.endswith("holds no gate run: No such file or directory")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"now": replace(NOW, digest="3" * 64)}, "the code has changed"),
        ({"used": replace(USED, now=(("a.py", "3"),))}, "the code has changed"),
        ({"used": replace(USED, base=(("b.py", "1"),))}, "the base used other files"),
        ({"base": replace(BASE, revision="c" * 40)}, "the base was bbbbbbbbbbbb, and is cccccccccccc now"),
        ({"fingerprint": "beef"}, "the machine or its software is another one"),
        ({"driver": "999"}, "the machine or its software is another one"),
        ({"ops": ("edge", "well")}, "the scenarios or their cases are others"),
    ],
)
def test_other_code_cases_and_machines_cannot_go_on(
    earlier: Callable[..., GateRun], machine: Machine, change: dict[str, Any], words: str
) -> None:
    jobs = tuple(map(job, change.get("ops", LOSSES)))
    codes: dict[Side, Checkout] = {
        "base": Checkout(change.get("base", BASE), None, ()), "now": Checkout(change.get("now", NOW), None, ()),
    }  # fmt: skip
    today = replace(machine, **{key: change[key] for key in ("fingerprint", "driver") if key in change})
    cases = Cases((), {"base": jobs, "now": jobs})
    asked = (earlier(LOSSES), codes, today, cases, change.get("used", USED))
    if not words:
        resuming.check(*asked)
        return
    with pytest.raises(UsageError, match=words) as caught:
        resuming.check(*asked)
    assert caught.value.advice == "measure the code as it is now: the same command without --resume"
