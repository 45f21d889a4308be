"""Several processes that measure one case, as their parent sees them: played by processes without torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import MachineError
from harness.model import Job, Measurement
from harness.processes import team
from harness.processes.supervisor import Workers

Revision = Callable[..., Path]

BODY = """
if variant == "fine" or (variant == "wrong" and RANK != 1):
    measured("ok", error=str(os.getpid()))
elif variant == "wrong":
    measured("wrong", "y[0] is 1")
elif variant == "alone" and RANK == 1:
    measured("wrong", "y[0] is 1")
elif variant == "together":
    measured("wrong", "rank 1: y[0] is 1")
elif variant == "raises" and RANK == 1:
    measured("crashed", "ValueError: no such table", leaving=True)
    sys.exit(1)
elif variant == "echoed" and RANK == 0:
    measured("crashed", "rank 1: ValueError: no such table, says rank 0")
elif variant == "echoed":
    time.sleep(0.05)
    measured("crashed", "ValueError: no such table", leaving=True)
elif variant == "greedy" and RANK == 1:
    measured("out_of_memory", "needs 32 PiB")
elif variant == "dies" and RANK == 1:
    sys.stderr.write("assertion failed\\n")
    os.abort()
elif variant == "late":
    measured("ok", number=question["number"] - (RANK == 1))
else:
    time.sleep(600)
"""


@pytest.fixture
def workers(revision: Revision, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(team, "GRACE", 0.2)
    with Workers("cpu", root=revision(BODY)) as made:
        yield made


@pytest.fixture
def measure(workers: Workers, job: Callable[..., Job]) -> Callable[..., Measurement]:
    def run(variant: str, world: int = 2, timeout: float = 60.0) -> Measurement:
        asked = job(variant, timeout=timeout)
        return workers.measure(replace(asked, case=replace(asked.case, world=world)))

    return run


Measure = Callable[..., Measurement]


@pytest.mark.parametrize(
    ("variant", "status", "error"),
    [
        ("echoed", "crashed", "rank 1: ValueError: no such table"),
        ("wrong", "wrong", "rank 1: y[0] is 1"),
        ("together", "wrong", "rank 1: y[0] is 1"),
        ("alone", "wrong", "rank 1: y[0] is 1"),
        ("raises", "crashed", "rank 1: ValueError: no such table"),
        ("greedy", "out_of_memory", "rank 1: needs 32 PiB"),
    ],
)
def test_what_one_rank_reports_is_what_comes_of_the_case(
    measure: Measure, variant: str, status: str, error: str
) -> None:
    """Also where the other rank waits for it: not a timeout, and not after the time limit."""
    begun = time.monotonic()
    found = measure(variant)
    assert (found.status, found.error) == (status, error)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("variant", ["wrong", "together", "alone", "raises", "greedy", "dies", "late"])
def test_after_anything_but_ok_a_team_is_started_anew(measure: Measure, variant: str) -> None:
    first = measure("fine")
    assert measure("fine").error == first.error  # The process's number: one team measures one case after the other.
    assert measure(variant).status != "ok"
    after = measure("fine")
    assert after.status == "ok"
    assert after.error != first.error


def test_a_single_process_goes_on_after_a_wrong_result(measure: Measure) -> None:
    first = measure("fine", world=1)
    assert measure("together", world=1).status == "wrong"
    assert measure("fine", world=1).error == first.error


def test_an_answer_to_another_question_ends_the_team(measure: Measure) -> None:
    found = measure("late")
    assert found.status == "crashed"
    assert found.error == "rank 1 answered question 0, not 1"


def test_a_rank_that_dies_is_named_with_its_last_words(measure: Measure) -> None:
    found = measure("dies")
    assert found.status == "crashed"
    assert found.error == "rank 1: killed by signal SIGABRT\nassertion failed"


def test_only_the_ranks_that_have_not_answered_are_overdue(measure: Measure) -> None:
    found = measure("stuck", timeout=0.3)
    assert found.status == "timeout"
    assert str(found.error).splitlines() == ["rank 0: took longer than 0.3 s", "rank 1: took longer than 0.3 s"]


def test_an_unknown_message_is_no_crash_of_the_case(revision: Revision, job: Callable[..., Job]) -> None:
    """A base that speaks otherwise would look like one whose cases all fail, which nothing is compared with."""
    with Workers("cpu", root=revision('say("x")')) as made, pytest.raises(MachineError, match="can't read") as caught:
        made.measure(job("fine"))
    assert "nearer" in caught.value.advice
    assert made._team
    assert not made._team.alive


def test_children_find_each_other_whatever_a_launcher_has_left(
    revision: Revision, monkeypatch: pytest.MonkeyPatch, job: Callable[..., Job]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "64")
    names = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR"
    root = revision(
        f'(ROOT / str(RANK)).write_text(" ".join(os.environ[name] for name in "{names}".split()))\nmeasured("ok")'
    )
    asked = job("fine")
    with Workers("cpu", root=root) as made:
        assert made.measure(replace(asked, case=replace(asked.case, world=2))).status == "ok"
    assert [(root / rank).read_text() for rank in "01"] == ["0 0 2 127.0.0.1", "1 1 2 127.0.0.1"]
