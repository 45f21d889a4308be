"""Two processes that measure together, with torch: what goes wrong on one of them ends its case, and no other one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import metrics
from harness.model import Case, Job, Measurement, Result, Timing
from harness.processes.rank import Rank
from harness.processes.supervisor import Workers

PLUGINS = [Path(__file__).parents[1] / "plugins" / name for name in ("ranks.py", "small.py")]
TIMING = Timing(precision=0.5, max_time=0.02, timeout=60.0)

Measure = Callable[..., Measurement]


@pytest.fixture(scope="module")
def measure() -> Iterator[Measure]:
    with Workers("cpu", PLUGINS) as workers:
        yield lambda variant, op="apart", world=2: workers.measure(
            Job(Case(op, variant, "float32", (("N", 4096),), world=world, device="cpu"), TIMING)
        )


def test_a_wrong_rank_ends_its_case_and_leaves_the_next_one_alone(measure: Measure) -> None:
    """The right rank takes 20 ms a call: if it went on with the old case, the next one's time would show it."""
    wrong = measure("wrong_0")
    assert wrong.status == "wrong"
    assert str(wrong.error).startswith("rank 0: y")

    after = measure("fine")
    assert after.status == "ok", after.error
    assert after.time
    assert after.time < 5e-3

    together = measure("gloo", op="rank_sum")
    assert together.status == "ok", together.error
    assert together.time
    assert together.case.world == 2

    wrong = measure("wrong_1")
    assert wrong.status == "wrong"
    assert str(wrong.error).startswith("rank 1: y")


def test_the_items_of_two_ranks_are_compared_with_those_of_one(measure: Measure) -> None:
    alone, together = (measure("gloo", op="rank_sum", world=world) for world in (1, 2))
    assert (alone.status, together.status) == ("ok", "ok"), (alone.error, together.error)
    found = metrics.subjects([Result(m.case, (m,)) for m in (alone, together)], None)
    efficiency = metrics.METRICS["efficiency"].value
    assert efficiency(found[alone.case.id]) is None
    assert efficiency(found[together.case.id]) == pytest.approx(alone.time / together.time)


def test_a_rank_that_raises_while_another_one_waits_for_it_is_named(measure: Measure) -> None:
    found = measure("refused", op="rank_sum")
    assert found.status == "crashed"
    assert "rank 1: ValueError: no such tree" in str(found.error)


def test_out_of_memory_on_one_rank_is_that_of_the_case(measure: Measure) -> None:
    found = measure("greedy")
    assert found.status == "out_of_memory"
    assert str(found.error).startswith("rank 1: ")


def test_out_of_memory_while_others_wait_in_a_collective_is_that_of_the_case_and_costs_seconds(
    measure: Measure,
) -> None:
    began = time.monotonic()
    found = measure("starved", op="rank_sum")
    assert time.monotonic() - began < 15.0  # most of it starts the processes
    assert found.status == "out_of_memory", found.error
    assert str(found.error).startswith("rank 1: ")
    assert measure("gloo", op="rank_sum").status == "ok"


def test_a_rank_that_hangs_ends_its_case_when_its_time_is_up_and_nothing_goes_on() -> None:
    """The processes of the case are gone, so the next one has the device for itself."""
    with Workers("cpu", PLUGINS) as workers:
        workers.begin(2)
        team = workers._ready(2)
        pids = [rank._process.pid for rank in team._ranks if isinstance(rank, Rank)]
        job = Job(Case("rank_sum", "stuck", "float32", (("N", 8),), world=2, device="cpu"), replace(TIMING, timeout=1))
        found = workers.measure(job)
        assert (found.status, str(found.error).partition(":")[0]) == ("timeout", "rank 0"), found.error
        assert len(pids) == 2
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
