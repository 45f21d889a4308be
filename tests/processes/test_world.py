"""Two processes that measure together, with torch: what goes wrong on one of them ends its case, and no other one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import metrics
from harness.errors import brief
from harness.model import Case, Job, Measurement, Result, Timing
from harness.processes.rank import Rank
from harness.processes.supervisor import Workers

PLUGINS = [Path(__file__).parents[1] / "plugins" / name for name in ("ranks.py", "small.py")]
TIMING = Timing(precision=0.5, max_time=0.02, timeout=60.0)

Measure = Callable[..., Measurement]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """A team takes seconds to start, so each test goes on with the one that the test before has left."""
    with Workers("cpu", PLUGINS) as workers:
        yield workers


@pytest.fixture
def measure(workers: Workers) -> Measure:
    return lambda variant, op="rank_sum", timeout=60.0: workers.measure(
        Job(Case(op, variant, "float32", (("N", 4096),), world=2, device="cpu"), replace(TIMING, timeout=timeout))
    )


def processes(workers: Workers) -> list[int]:
    """The numbers of the processes of the team that is there."""
    assert workers._team
    return [rank._process.pid for rank in workers._team._ranks if isinstance(rank, Rank)]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow  # test_team.py has that a team is started anew
def test_a_wrong_rank_ends_its_case_and_leaves_the_next_one_alone(workers: Workers, measure: Measure) -> None:
    """The right rank takes 20 ms a call: if it went on with the old case, the next one's time would have it."""
    assert measure("fine", op="apart").status == "ok"
    pids = processes(workers)
    wrong = measure("wrong_0", op="apart")
    assert wrong.status == "wrong"
    assert str(wrong.error).startswith("rank 0: y")
    assert alive(pids) == []
    after = measure("fine", op="apart")
    assert after.status == "ok", after.error


def test_the_items_of_two_ranks_are_compared_with_those_of_one(measure: Measure) -> None:
    together = measure("gloo")
    assert together.status == "ok", together.error
    assert together.time
    assert together.work
    assert together.work.items == 2 * 4096
    # Alone it would do half of the items, and take as long as is said here.
    alone = replace(together, case=replace(together.case, world=1), work=replace(together.work, items=4096))
    alone = replace(alone, samples=(together.time / 4,) * 7)
    found = metrics.subjects([Result(m.case, (m,)) for m in (alone, together)], None)
    efficiency = metrics.METRICS["efficiency"].value
    assert efficiency(found[alone.case.id]) is None
    assert efficiency(found[together.case.id]) == pytest.approx(1 / 4)


def test_ranks_of_one_host_listen_to_nobody_outside(measure: Measure) -> None:
    """Torch's store takes orders from whoever reaches it, and Gloo believes whoever connects."""
    assert measure("fine", op="apart").status == "ok"
    found = measure("tells", op="apart")
    assert (found.status, found.error) == ("unsupported", "rank 0: listens at 127.0.0.1")


def test_a_rank_that_raises_while_another_one_waits_for_it_is_named(measure: Measure) -> None:
    found = measure("refused")
    assert found.status == "crashed"
    assert "rank 1: ValueError: no such tree" in str(found.error)


@pytest.mark.slow  # test_team.py has that one rank's memory is the case's, and test_runner.py has torch's error
def test_out_of_memory_while_others_wait_in_a_collective_is_that_of_the_case(
    measure: Measure,
) -> None:
    found = measure("starved")
    assert found.status == "out_of_memory", found.error  # and not a timeout
    assert str(found.error).startswith("rank 1: ")


@pytest.mark.slow  # test_team.py has the time that is up, and that a team is started anew
def test_a_rank_that_hangs_ends_its_case_when_its_time_is_up_and_nothing_goes_on(
    workers: Workers, measure: Measure
) -> None:
    """The case before failed, which costs this team nothing. Its processes go, so the next case has the device."""
    assert measure("gloo").status == "ok"
    pids = processes(workers)
    found = measure("stuck", timeout=1.0)
    assert found.status == "timeout"
    said = str(found.error)
    assert said.startswith("rank 1: took longer than 1 s"), "the rank that others wait for is named first"
    assert "rank 0: took longer than 1 s" in said
    assert "never_end" in brief(said)
    assert len(pids) == 2
    assert alive(pids) == []
