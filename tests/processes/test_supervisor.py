"""Processes of another revision, and processes that are started ahead; without any real process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import source
from harness.devices.cpu import Cpu
from harness.errors import MachineError, UsageError
from harness.limits import Needs
from harness.model import Job, Limits, Measurement
from harness.processes import supervisor
from harness.processes.messages import VERSION, Measured, Ready
from harness.processes.supervisor import Workers
from harness.processes.team import LostError
from tests.processes.fake_team import ROOT, FakeTeam
from tests.rare import rare

OWN = Path(source.__file__).resolve().parents[1]


def test_a_case_of_more_ranks_than_devices_starts_no_process(
    teams: type[FakeTeam], job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cpu, "count", 2)
    with Workers("cpu", root=ROOT) as made:
        for world, refused in ((2, None), (4, "needs 4 devices, this machine has 2")):
            asked = job("fine")
            found = made.measure(replace(asked, case=replace(asked.case, world=world)))
            assert (found.status, found.error) == ("unsupported" if refused else "ok", refused)
    assert [team.size for team in teams.made] == [2]


def test_a_process_begun_ahead_is_the_one_that_measures(teams: type[FakeTeam], job: Callable[..., Job]) -> None:
    with Workers("cpu", root=ROOT) as made:
        made.begin()
        made.begin()
        [ahead] = teams.made
        assert ahead.ready is None
        assert ahead.size == 1
        assert made.measure(job("fine")).status == "ok"
        assert made.measure(job("fine")).status == "ok"
        assert teams.made == [ahead]
        assert ahead.root == ROOT
    assert not ahead.alive


def test_one_that_died_while_it_waited_is_replaced(teams: type[FakeTeam], job: Callable[..., Job]) -> None:
    with Workers("cpu", root=ROOT) as made:
        made.begin()
        teams.made[0].alive = False
        assert made.measure(job("fine")).status == "ok"
    assert len(teams.made) == 2


def test_a_process_that_loads_torch_and_waits_is_the_one_that_measures(
    teams: type[FakeTeam], job: Callable[..., Job]
) -> None:
    with Workers("cpu", root=ROOT) as made:
        made.wait_until_loaded()  # nothing was begun
        made.load()
        made.load()
        made.wait_until_loaded()
        assert made.measure(job("fine")).status == "ok"
        assert [team.waits for team in teams.made] == [True]


def test_one_that_cannot_load_is_replaced_by_one_that_need_not_wait(
    teams: type[FakeTeam], job: Callable[..., Job]
) -> None:
    """Which tells why, if it can't either."""
    teams.starts = [LostError("crashed", "memory ran out"), Ready(VERSION, str(ROOT))]
    with Workers("cpu", root=ROOT) as made:
        made.load()
        made.wait_until_loaded()
        assert made.measure(job("fine")).status == "ok"
    assert [team.waits for team in teams.made] == [True, False]


def test_the_next_process_loads_while_this_one_measures(teams: type[FakeTeam], job: Callable[..., Job]) -> None:
    with Workers("cpu", root=ROOT) as made:
        made.measure(job("fine"))
        made.begin_next(compiler=True)
        made.begin_next()
        first, second = teams.made
        assert (first.compiler, second.compiler) == (False, True)
        made.measure(job("fine"))
        assert (second.ready, first.alive) == (None, True)
        made.restart()
        assert not first.alive
        made.measure(job("fine"))
        assert second.ready is not None
        made.begin_next()
        teams.made[-1].alive = False
        made.restart()
        assert made.measure(job("fine")).status == "ok"
        assert len(teams.made) == 4
        made.begin_next()
    assert not any(team.alive for team in teams.made)


def test_a_process_that_does_not_start_is_tried_once_more(teams: type[FakeTeam], job: Callable[..., Job]) -> None:
    teams.starts = [LostError("crashed", "port taken"), Ready(VERSION, str(ROOT))]
    with Workers("cpu", root=ROOT) as made:
        assert made.measure(job("fine")).status == "ok"
    teams.starts = [LostError("crashed", "no libcuda")] * 2
    with Workers("cpu", root=ROOT) as made, pytest.raises(MachineError, match="doesn't start: no libcuda"):
        made.measure(job("fine"))


def test_a_library_that_cannot_be_imported_is_told_without_frames(
    teams: type[FakeTeam], job: Callable[..., Job]
) -> None:
    frames = (
        'ended with status 1\nTraceback (most recent call last):\n  File "a.py", line 3, in main\n    import torch\n'
    )
    said = "ImportError: libcudart.so.13: no such file\nsee FAQ"
    for last, told in ((said, said), ("KeyError: 3", f"{frames}KeyError: 3")):
        teams.starts = [LostError("crashed", frames + last)] * 2
        with Workers("cpu", root=ROOT) as made, pytest.raises(MachineError) as caught:
            made.measure(job("fine"))
        assert caught.value.message == f"the measuring process doesn't start: {told}"
        assert ("import torch" in caught.value.advice) == last.startswith("ImportError")


def test_what_it_reports_is_raised_as_it_is(teams: type[FakeTeam], job: Callable[..., Job]) -> None:
    teams.starts = [UsageError("mine.py: broken")]
    with Workers("cpu", root=ROOT) as made, pytest.raises(UsageError, match=r"mine\.py: broken"):
        made.measure(job("fine"))


@pytest.mark.parametrize("root", [rare(None), OWN])
def test_the_code_that_runs_is_the_one_that_measures(
    teams: type[FakeTeam], job: Callable[..., Job], root: Path | None
) -> None:
    digest = source.digest()
    changed = f"isn't what it was when the run began (hash 000000000000, at first {digest[:12]})"
    for ready, words in [
        (Ready(VERSION, str(ROOT), digest), f"imported the harness in {ROOT}, not that in {OWN}"),
        (Ready(VERSION, str(OWN), "0" * 64), changed),
        (Ready(VERSION, str(OWN)), "hash unknown"),
    ]:
        teams.starts = [ready]
        with Workers("cpu", root=root) as made, pytest.raises(MachineError) as caught:
            made.measure(job("fine"))
        assert words in caught.value.message
        assert caught.value.advice
    teams.starts = [Ready(VERSION, str(OWN), digest)]
    with Workers("cpu", root=root) as made:
        assert made.measure(job("fine")).status == "ok"


def test_code_that_changes_during_a_run_ends_it(teams: type[FakeTeam], job: Callable[..., Job]) -> None:
    """Also code of another revision, whose hash the parent can't know before."""
    teams.starts = [Ready(VERSION, str(ROOT), "a" * 64), Ready(VERSION, str(ROOT), "b" * 64)]
    with Workers("cpu", root=ROOT) as made:
        assert made.measure(job("fine")).status == "ok"
        made.restart()
        with pytest.raises(MachineError, match=r"hash bbbbbbbbbbbb, at first aaaaaaaaaaaa"):
            made.measure(job("fine"))


def test_code_that_was_edited_before_the_first_process_is_refused_too(
    teams: type[FakeTeam], job: Callable[..., Job]
) -> None:
    """The gate starts new workers for each stage, and tells them the hash that the code had at first."""
    teams.starts = [Ready(VERSION, str(ROOT), "b" * 64)]
    with (
        Workers("cpu", root=ROOT, digest="a" * 64) as made,
        pytest.raises(MachineError, match=r"hash bbbbbbbbbbbb, at first aaaaaaaaaaaa") as caught,
    ):
        made.measure(job("fine"))
    assert "start again" in caught.value.advice
    assert "harness run --resume FOLDER" in caught.value.advice


@pytest.mark.parametrize("stale", [1, 2])
def test_an_answer_to_an_earlier_question_is_not_that_of_this_case(
    teams: type[FakeTeam], job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, stale: int
) -> None:
    """A process that gives one has forked: the case goes to a new one, once."""
    raised = iter([LostError("crashed", "rank 0 answered question 1, not 2", stale=True)] * stale)
    answered = FakeTeam.ask

    def ask(team: FakeTeam, *arguments: Any) -> dict[int, Measured]:
        if error := next(raised, None):
            raise error
        return answered(team, *arguments)

    monkeypatch.setattr(FakeTeam, "ask", ask)
    with Workers("cpu", root=ROOT) as made:
        found = made.measure(job("fine"))
    assert (found.status, len(teams.made)) == (("ok", 2) if stale == 1 else ("crashed", 2))


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        (Ready(), "the harness in /elsewhere speaks a protocol without a number with its measuring processes"),
        (
            Ready(VERSION + 1, "/elsewhere"),
            f"speaks protocol {VERSION + 1} with its measuring processes, this one protocol {VERSION}",
        ),
        (Ready(VERSION, "/usr/lib/python3"), "imported the harness in /usr/lib/python3, not that in /elsewhere"),
    ],
)
def test_other_code_than_asked_for_is_refused(
    teams: type[FakeTeam], job: Callable[..., Job], ready: Ready, words: str
) -> None:
    teams.starts = [ready]
    with Workers("cpu", root=ROOT) as made, pytest.raises(MachineError) as caught:
        made.measure(job("fine"))
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("world", "status", "leaving", "is_new"),
    [
        (1, "ok", False, False),
        (1, "wrong", False, False),
        (1, "crashed", True, True),
        (2, "ok", False, False),
        (2, "unsupported", False, False),
        (2, "wrong", False, True),
    ],
)
def test_the_next_case_goes_to_new_processes_after_a_failure(
    teams: type[FakeTeam],
    job: Callable[..., Job],
    monkeypatch: pytest.MonkeyPatch,
    world: int,
    status: Any,
    leaving: bool,
    is_new: bool,
) -> None:
    """A single process says so itself. The ranks of a team may be at different places."""

    def ask(team: FakeTeam, question: Any, *_: Any) -> dict[int, Measured]:
        answer = Measured(Measurement(question.job.case, status), leaving)
        return {0: answer} | ({1: answer} if team.size == 2 else {})

    monkeypatch.setattr(FakeTeam, "ask", ask)
    asked = job("fine")
    asked = replace(asked, case=replace(asked.case, world=world))
    with Workers("cpu", root=ROOT) as made:
        assert made.measure(asked).status == status
        assert teams.made[0].alive != is_new
        made.measure(asked)
    assert [team.size for team in teams.made] == [world] * (2 if is_new else 1)
    assert not any(team.alive for team in teams.made)


def test_a_team_that_is_lost_is_the_measurement_and_is_not_asked_again(
    teams: type[FakeTeam], job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[tuple[float, bool]] = []

    def ask(team: FakeTeam, question: Any, _kind: Any, limit: float, *_: Any) -> dict[int, Measured]:
        limits.append((limit, question.timed))
        if len(limits) == 1:
            raise LostError("timeout", "took longer than 60 s")
        return {0: Measured(Measurement(question.job.case, "ok"))}

    monkeypatch.setattr(FakeTeam, "ask", ask)
    with Workers("cpu", root=ROOT) as made:
        found = made.measure(job("fine"), process=4)
        assert (found.status, found.error, found.process) == ("timeout", "took longer than 60 s", 4)
        assert made.measure(job("fine"), timed=False).status == "ok"
    assert len(teams.made) == 2
    assert limits == [(60.0, True), (60.0, False)]


@pytest.mark.parametrize(
    ("ask", "limit", "words"),
    [
        (lambda made: made.limits(Needs(), lambda *_: None), 900.0, "the limits can't be measured: killed"),
        (lambda made: made.limits_again(Limits(), lambda *_: None), 900.0, "the limits can't be measured: killed"),
        (lambda made: made.survey(), 60.0, "the scenarios can't be read: killed"),
    ],
)
def test_what_else_is_asked_needs_an_answer(
    teams: type[FakeTeam], monkeypatch: pytest.MonkeyPatch, ask: Callable[[Workers], object], limit: float, words: str
) -> None:
    given: list[float] = []
    answers: list[Any] = [LostError("crashed", "killed"), {0: SimpleNamespace(limits="limits")}]

    def answer(team: FakeTeam, _question: Any, _kind: Any, limit: float, *_: Any) -> Any:
        given.append(limit)
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(FakeTeam, "ask", answer)
    with Workers("cpu", root=ROOT) as made:
        with pytest.raises(MachineError, match=words):
            ask(made)
        assert ask(made)
    assert given == [limit] * 2
    assert [team.size for team in teams.made] == [1, 1]


def begin_and_fail(made: Workers) -> None:
    made.begin(2)
    raise KeyError


def test_an_error_ends_processes_at_once_and_the_end_lets_them_end(
    teams: type[FakeTeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(FakeTeam, "close", lambda _: told.append("close"))
    monkeypatch.setattr(FakeTeam, "kill", lambda _: told.append("kill"))
    with Workers("cpu", root=ROOT) as made:
        made.begin()
    with pytest.raises(KeyError), Workers("cpu", root=ROOT) as made:
        begin_and_fail(made)
    with Workers("cpu", root=ROOT):
        pass
    assert told == ["close", "kill"]
    assert [team.size for team in teams.made] == [1, 2]


@pytest.mark.parametrize(
    ("answers", "status", "error"),
    [
        ({0: ("ok", "", False), 1: ("ok", "", False)}, "ok", None),
        ({0: ("ok", "", False), 1: ("wrong", "y is off", False)}, "wrong", "rank 1: y is off"),
        ({0: ("crashed", "rank 1: died", False), 1: ("crashed", "died", True)}, "crashed", "rank 1: died"),
        ({0: ("crashed", "rank 1: died", False), 1: ("crashed", "rank 1: died", False)}, "crashed", "rank 1: died"),
        ({0: ("crashed", "nobody answers", False), 1: ("crashed", "died", True)}, "crashed", "rank 1: died"),
        ({0: ("wrong", "y is off", False)}, "wrong", "y is off"),
    ],
)
def test_one_measurement_is_made_of_all_ranks(
    job: Callable[..., Job], answers: dict[int, Any], status: str, error: str | None
) -> None:
    case = job("fine").case
    given = {
        rank: Measured(Measurement(case, of[0], error=of[1] or None, process=rank), of[2])
        for rank, of in answers.items()
    }
    found = supervisor._joined(given, len(given))
    assert (found.status, found.error) == (status, error)


@pytest.mark.parametrize(("world", "refused"), [(2, None), (3, "needs 3 devices, torchrun has started 2 processes")])
def test_torchrun_says_how_many_ranks_there_are(
    monkeypatch: pytest.MonkeyPatch, world: int, refused: str | None
) -> None:
    monkeypatch.setattr(supervisor, "leader", lambda: SimpleNamespace(size=2))
    assert supervisor.too_few("cpu", world) == refused
