"""Bytes under way on a multiprocessor: sums done by hand. A warp of the copy reads 512 bytes; 57.6 are resident."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.explain import Known
from harness.explain.rules import in_flight
from harness.explain.rules.in_flight import Flight, flight
from tests.one_test import one_test

D = 2**29
WARPS = 2**20
Copying = Callable[..., Known]


def told(known: Known) -> Flight:
    found = flight(known, known.kernels[0])
    assert found
    return found


def test_a_warp_that_reads_little_has_all_of_it_under_way(copying: Copying) -> None:
    found = told(copying())
    assert (found.least, found.most) == pytest.approx((57.6 * 512,) * 2)
    assert found.text == "90% of 64 warps = 57.6 warps x 512 B (all that a warp reads from memory) = 29.49 kB"


@pytest.mark.parametrize(("registers", "hold"), [(16, 16 * 128), (2, 2 * 128), (0, 255 * 128)])
def test_a_warp_that_reads_much_has_a_load_or_what_its_registers_hold(
    copying: Copying, registers: int, hold: int
) -> None:
    found = told(copying(grid=132, registers=registers))
    assert (found.least, found.most) == pytest.approx((57.6 * min(hold, 512), 57.6 * hold))
    unknown = told(copying(grid=132, registers=registers, load_requests=0))
    assert (unknown.least, unknown.most) == pytest.approx((57.6 * hold,) * 2)
    assert "(what its registers hold)" in unknown.text


def test_several_launches_share_what_is_read(copying: Copying) -> None:
    known = copying(grid=WARPS / 64)
    [kernel] = known.kernels
    eight = replace(kernel, profile=replace(kernel.profile, launches=8.0))
    assert told(replace(known, kernels=(eight,))).most == pytest.approx(57.6 * min(8 * 512, 2048))


def test_what_bypasses_the_registers_has_room_in_shared_memory(copying: Copying) -> None:
    """Four warps are resident, which are a block of 128 threads; a block of 97 has as many."""
    for block in (128, 97):
        found = told(copying(load_sectors=8, block=block, occupancy=4 / 64, shared_bytes=8192))
        assert (found.least, found.most) == (8192.0, 8192.0)
        assert found.text.endswith("4.0 warps / 4 of a block x 8.192 kB (at most what shared memory holds) = 8.192 kB")


@one_test("name", ["occupancy", "grid", "block", "read_bytes"])
def test_nothing_is_known_of_what_is_under_way_without(copying: Copying, name: str) -> None:
    known = copying(**{name: 0})
    assert flight(known, known.kernels[0]) is None


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [
        (500.0, 999.0, "Too few bytes in flight: 999 B a multiprocessor at most, 1.000 kB are needed"),
        (999.0, 1000.0, "Perhaps too few bytes in flight: 999 B a multiprocessor at least, 1.000 kB are needed"),
        (1000.0, 2000.0, "Waits for memory, although enough loads are allowed for"),
    ],
)
def test_what_is_said_of_bytes_in_flight(least: float, most: float, said: str) -> None:
    assert in_flight._verdict(Flight(least, most, ""), 1000.0)[0] == said


def test_warps_wait_longest_for_memory_or_for_something_else(copying: Copying) -> None:
    for other, longest in ((0.7, True), (0.9, False)):
        known = copying(stall_long_scoreboard=0.8, stall_barrier=other)
        assert in_flight._longest_wait(known.kernels[0]) == longest


def test_what_registers_just_hold_is_all_that_a_warp_reads(copying: Copying) -> None:
    assert "x 512 B (all that a warp reads from memory)" in told(copying(registers=4)).text


def test_bytes_that_are_needed_follow_from_a_stream_of_the_same_mix(copying: Copying) -> None:
    """Half of 4 TB/s are reads, for 1 us, on 132 multiprocessors."""
    known = copying()
    assert in_flight.bytes_needed(known, known.kernels[0]) == pytest.approx(2e12 * 1e-6 / 132)
    nothing = copying(read_bytes=0)
    assert in_flight.bytes_needed(nothing, nothing.kernels[0]) is None
    unknown = replace(known, device=replace(known.device, multiprocessors=0))
    assert in_flight.bytes_needed(unknown, unknown.kernels[0]) is None


def test_what_was_seen_of_waits_and_of_memory_is_told(copying: Copying) -> None:
    known = copying(dram_active=0.5, issue_active=0.1, stall_long_scoreboard=0.8)
    [reason] = in_flight.judge(known)
    assert "warps wait for memory 80% of their time" in reason.sums
    assert "memory is active 50% of the datasheet's peak, which no stream reaches" in reason.sums
