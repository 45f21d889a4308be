"""Rule: what it costs to launch kernels is a large part of the time on the device."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.explain.records import Known, Reason
from harness.explain.words import spared

SUMMARY = "launch latency: short kernels, or many of them"
EFFECT_OF = ()
SHORT = 3.0  # launches; a kernel that takes less than so many is mostly launch
PART = 0.1  # of the time that launches beyond the first must take


def judge(known: Known) -> Iterator[Reason]:
    """A reason if launches beyond the first take a part of the time; an aside if all of it is little more than one."""
    if known.kind is None:
        return
    launch, source = _launch(known, known.kind.launch_seconds)
    count = sum(kernel.launches for kernel in known.kernels)
    more = max(0.0, count - 1) * launch
    if more >= PART * known.time:
        saves, last = spared(known, known.time, more, f"({count:.0f} - 1) x {units.seconds(launch)}")
        yield Reason(
            "launches",
            f"Launches: {count:.0f} kernels a call, whose launches take {units.seconds(count * launch)} of "
            f"{units.seconds(known.time)}.",
            (
                f"a launch: {units.seconds(launch)}, {source}",
                last,
            ),
            "fuse the kernels into one",
            saves,
        )
    elif known.time < SHORT * launch:
        yield Reason(
            "launches",
            f"Launch latency: the call takes {units.seconds(known.time)}, and a launch alone {units.seconds(launch)}.",
            (
                f"a launch: {units.seconds(launch)}, {source}",
                f"{units.seconds(known.time)} / {units.seconds(launch)} = {known.time / launch:.1f} launches",
                "the ceiling has a launch in it too, so only fewer launches go below it",
            ),
            "fuse it with the kernels before or after it, or do several calls' work in one launch",
            aside=True,
        )


def _launch(known: Known, typical: float) -> tuple[float, str]:
    points = known.subject.limits.points if known.subject.limits else ()
    least = min((point.seconds for point in points), default=typical)
    if least < typical:
        return least, "the shortest stream that was measured here, which is nearly all launch"
    return typical, "typical"
