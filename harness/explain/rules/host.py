"""Rule: the host issues calls more slowly than the device does them."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.explain.records import Known, Reason

SUMMARY = "a host that issues calls too slowly"
EFFECT_OF = ()
SLOWER = 1.25  # times the device's time that a loop on the host takes; less is the noise of host clocks and of drivers


def judge(known: Known) -> Iterator[Reason]:
    """An aside if a loop of calls on the host, without a graph, takes longer than the device does.

    It is no verdict: the time and the ceiling are the device's, so the loop doesn't explain what lies between.
    """
    seen = known.subject.call_time
    if known.case.device != "cuda" or seen is None or seen <= SLOWER * known.time:
        return
    lost = units.seconds(seen - known.time)
    yield Reason(
        "host",
        f"Host-bound outside of a graph: a loop of calls takes {units.seconds(seen)} a call, the device "
        f"{units.seconds(known.time)}.",
        (
            f"{units.seconds(seen)} / {units.seconds(known.time)} = {seen / known.time:.2f}",
            f"such a loop loses {units.seconds(seen)} - {units.seconds(known.time)} = {lost} a call",
        ),
        "capture the calls into a CUDA graph, or give each call more work; a faster kernel doesn't help such a loop",
        aside=True,
    )
