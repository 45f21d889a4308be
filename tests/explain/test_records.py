"""What rules are told of a case's kernels: which of them matter, what memory and caches give, what is busy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.explain import Known, Seen
from harness.model import Work
from tests.one_test import one_test

D = 2**29
BEST = 2 * D / 4e12  # of the fixture's copy

Copying = Callable[..., Known]


def without(known: Known, *names: str) -> Known:
    """The same, of a profiler that doesn't tell these figures."""
    [kernel] = known.kernels
    values = tuple((name, value) for name, value in kernel.profile.values if name not in names)
    return replace(known, kernels=(replace(kernel, profile=replace(kernel.profile, values=values)),))


def parted(known: Known, *shares: float) -> Known:
    """The same, whose kernels take these shares of the time."""
    [kernel] = known.kernels
    return replace(known, kernels=tuple(Seen(kernel.profile, share, share * known.time) for share in shares))


@one_test(("loaded", "bypasses"), [(0.3, True), (0.49, True), (0.51, False), (1.0, False)])
def test_less_than_half_of_what_is_read_comes_by_loads(copying: Copying, loaded: float, bypasses: bool) -> None:
    [kernel] = copying(load_sectors=loaded * D / 32).kernels
    assert kernel.bypasses == bypasses


@one_test(
    ("shares", "major"),
    [
        ((0.9, 0.04, 0.03, 0.03), [0]),
        ((0.03, 0.04, 0.9, 0.03), [2]),
        ((0.06, 0.04, 0.9), [0, 2]),
        ((0.04,) * 25, [*range(20)]),
    ],
)
def test_kernels_that_matter_are_large_or_most_of_the_time(
    copying: Copying, shares: tuple[float, ...], major: list[int]
) -> None:
    """In the order of their launches, whichever is largest."""
    known = parted(copying(), *shares)
    assert list(known.major) == [known.kernels[place] for place in major]


def test_a_kernel_is_busy_as_long_as_its_bytes_its_instructions_or_its_fullest_pipe(copying: Copying) -> None:
    for values, seconds in (
        ({"issue_active": 0.0}, BEST),
        ({"issue_active": 0.6}, 1.2 * BEST),
        ({"issue_active": 0.6, "pipe_alu": 0.7}, 1.4 * BEST),
    ):
        known = copying(**values)
        assert known.busy(known.kernels[0]) == pytest.approx(seconds, rel=1e-6)
    # Nobody knows what memory does.
    known = without(copying(issue_active=0.6), "read_bytes", "written_bytes", "dram_active")
    assert known.streaming(known.kernels[0]) is None
    assert known.busy(known.kernels[0]) == pytest.approx(1.2 * BEST, rel=1e-6)


@one_test(
    ("read", "loaded", "inside"),
    [
        (0.8, 0.8 / 0.3, True),
        (0.8, 0.8 / 0.49, True),
        (0.8, 0.8 / 0.51, False),
        (0.8, 0.8 / 0.7, False),
        (0.95, 0.95 / 0.3, False),  # it streams what is needed, and loads small things many times
        (0.1, 0.1, False),
    ],
)
def test_caches_have_most_of_what_is_accessed(copying: Copying, read: float, loaded: float, inside: bool) -> None:
    known = copying(read_bytes=read * D, load_sectors=loaded * D / 32)
    assert known.in_cache(known.kernels[0]) == inside


def test_caches_of_a_kernel_that_needs_to_read_nothing_or_whose_reads_are_unknown(copying: Copying) -> None:
    known = copying(work=Work(0, D), read_bytes=0.1 * D, load_sectors=D / 32)
    assert known.in_cache(known.kernels[0])
    unknown = without(copying(load_sectors=100 * D / 32), "read_bytes")
    assert not unknown.in_cache(unknown.kernels[0])


@one_test(("share", "resident"), [(0.2, True), (0.3, True), (0.49, True), (0.51, False), (1.0, False)])
def test_data_lie_in_a_cache_if_less_than_half_comes_through_memory(
    copying: Copying, share: float, resident: bool
) -> None:
    known = copying(read_bytes=share * D, written_bytes=share * D)
    assert known.resident == (2 * share * D if resident else None)
    assert known.in_cache(known.kernels[0]) == resident
    assert parted(known, 0.5, 0.5).resident is None
    assert without(known, "written_bytes").resident is None


def test_memory_is_active_for_a_share_of_the_time_where_nobody_counted_bytes(copying: Copying) -> None:
    known = without(copying(dram_active=0.3), "read_bytes")
    assert known.streaming(known.kernels[0]) == pytest.approx(0.3 * known.time)


def test_a_kernel_is_told_with_its_share_where_there_are_several(copying: Copying) -> None:
    known = copying()
    assert known.label(known.kernels[0]) == "copy"
    two = parted(known, 0.6, 0.4)
    assert [two.label(kernel) for kernel in two.kernels] == ["copy (60% of the time)", "copy (40% of the time)"]
