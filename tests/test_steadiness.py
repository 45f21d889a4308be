"""How steady a host is, by a clock that tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from harness import steadiness
from harness.steadiness import Steadiness


def clock_of(turns: Iterable[float]) -> Callable[[], float]:
    """A clock by which each turn of work takes the next of these seconds."""
    now = 0.0
    moments = iter(turns)

    def clock() -> float:
        nonlocal now
        moment, now = now, now + next(moments, 1.0)
        return moment

    return clock


@pytest.mark.parametrize(
    ("turns", "found"),
    [
        # A few slow turns are no change of speed: 5% at each end don't count.
        ([*[2.0] * 96, *[9.0] * 4], (2.0, 2.0)),
        ([1.0, *[2.0] * 50, *[4.0] * 49], (2.0, 4.0)),
        ([5.0, 6.0], (5.0, 6.0)),
    ],
)
def test_turns_at_the_ends_do_not_count(turns: list[float], found: tuple[float, float]) -> None:
    assert steadiness.watch(sum(turns), clock_of(turns)) == Steadiness(*found)


def test_two_turns_are_made_at_least() -> None:
    assert steadiness.watch(0.0, clock_of([1.0, 3.0])) == Steadiness(1.0, 3.0)


def test_a_host_that_takes_twice_the_time_is_called_noisy_and_a_remedy_is_named() -> None:
    shared, steady = Steadiness(0.0006, 0.0012), Steadiness(0.0006, 0.00063)
    assert (shared.is_steady, steady.is_steady) == (False, True)
    assert shared.sentence.startswith("The host does the same work in 600 us to 1.20 ms: something shares its cores")
    assert "CUDA graphs" in shared.sentence
    assert steady.sentence == "The host does the same work in 600 us to 630 us: it is steady."


def test_the_work_takes_time() -> None:
    found = steadiness.watch(0.0)
    assert 0 < found.fast <= found.slow
