"""What processes are asked, and what becomes of their answers; without any real process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.devices.cpu import Cpu
from harness.limits import Needs
from harness.model import Job, Limits, Measurement
from harness.processes import supervisor
from harness.processes.messages import Exchange, Exchanged, Measured
from harness.processes.supervisor import Workers
from harness.processes.team import LostError
from tests.processes.fake_team import ROOT, FakeTeam


@pytest.mark.parametrize(("count", "world", "refused"), [(0, 1, False), (0, 2, True), (1, 2, True), (2, 2, False)])
def test_a_single_process_says_itself_what_its_device_lacks(
    monkeypatch: pytest.MonkeyPatch, count: int, world: int, refused: bool
) -> None:
    monkeypatch.setattr(Cpu, "count", count)
    assert (supervisor.too_few("cpu", world) is not None) == refused


@pytest.mark.parametrize(
    ("statuses", "is_asked"),
    [(("ok",), True), (("wrong",), False), (("ok", "ok"), True), (("ok", "wrong"), False), (("wrong", "ok"), False)],
)
def test_only_an_answer_without_a_fault_is_to_be_confirmed(
    teams: type[FakeTeam],
    job: Callable[..., Job],
    monkeypatch: pytest.MonkeyPatch,
    statuses: tuple[Any, ...],
    is_asked: bool,
) -> None:
    """Any rank that doesn't stand by its answer makes a crash of the case, and ends the processes."""
    asked = job("fine")
    asked = replace(asked, case=replace(asked.case, world=len(statuses)))
    answers = {rank: Measured(Measurement(asked.case, status)) for rank, status in enumerate(statuses)}
    limits: list[float] = []

    def confirm(_team: FakeTeam, limit: float) -> None:
        limits.append(limit)
        raise LostError("timeout", "nobody says yes")

    monkeypatch.setattr(FakeTeam, "ask", lambda *_: answers)
    monkeypatch.setattr(FakeTeam, "confirm", confirm)
    with Workers("cpu", root=ROOT) as made:
        found = made.measure(asked)
        assert limits == [asked.timing.timeout] * is_asked
        if is_asked:
            words = "the answer isn't believed, since the case may have written it itself: nobody says yes"
            assert (found.status, found.error, found.process) == ("crashed", words, 0)
        else:
            assert found.status == "wrong"
        made.measure(asked)
    assert len(teams.made) == (2 if is_asked or len(statuses) > 1 else 1)


def test_limits_that_were_measured_earlier_will_do_unless_new_ones_are_asked_for(
    teams: type[FakeTeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def ask(_team: FakeTeam, question: Any, *_: Any) -> dict[int, Any]:
        asked.append(question.fresh)
        return {0: SimpleNamespace(limits=Limits())}

    monkeypatch.setattr(FakeTeam, "ask", ask)
    with Workers("cpu", root=ROOT) as made:
        made.limits(Needs(), lambda *_: None)
        made.limits(Needs(), lambda *_: None, fresh=True)
    assert asked == [False, True]


def test_processes_of_another_number_end_before_a_case_gets_its_own(
    teams: type[FakeTeam], job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a process that waits for its turn: it is one, and two are needed."""
    monkeypatch.setattr(Cpu, "count", 2)
    one = job("fine")
    two = replace(one, case=replace(one.case, world=2))
    with Workers("cpu", root=ROOT) as made:
        made.measure(one)
        made.measure(two)
        assert [(team.size, team.alive) for team in teams.made] == [(1, False), (2, True)]
    teams.made.clear()
    with Workers("cpu", root=ROOT) as made:
        made.measure(one)
        made.begin_next()
        made.measure(two)
        assert [team.size for team in teams.made] == [1, 1, 2]
        assert [team.alive for team in teams.made] == [False, False, True]


def test_outputs_are_exchanged_with_the_processes_of_the_case_whose_death_is_a_reason(
    teams: type[FakeTeam], job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, float]] = []
    answers: list[Any] = [{0: Exchanged("y is off", "")}, {0: Exchanged("", "no room")}, LostError("crashed", "killed")]

    def ask(_team: FakeTeam, question: Any, _kind: Any, limit: float) -> Any:
        asked.append((question, limit))
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(FakeTeam, "ask", ask)
    given = job("fine")
    with Workers("cpu", root=ROOT) as made:
        found = [made.exchange("judge", given, Path("/folder")) for _ in range(3)]
        assert found == [("y is off", ""), ("", "no room"), ("", "killed")]
        answers.append({0: Exchanged("", "")})
        assert made.exchange("judge", given, Path("/folder")) == ("", "")
        several = replace(given, case=replace(given.case, world=2))
        monkeypatch.setattr(Cpu, "count", 2)
        answers += [{1: Exchanged("rank 1: y is off", "no room"), 0: Exchanged("", "")}]
        assert made.exchange("judge", several, Path("/folder")) == ("rank 1: y is off", "no room")
        answers += [{1: Exchanged("second", "second"), 0: Exchanged("first", "first")}]
        assert made.exchange("judge", several, Path("/folder")) == ("first", "first")
    assert [team.size for team in teams.made] == [1, 1, 2]
    assert asked[:4] == [(Exchange("judge", given, "/folder"), given.timing.timeout)] * 4
