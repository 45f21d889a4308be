"""Rule: what it costs to launch kernels is a large part of the time on the device."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.explain.records import Known, Reason, Sibling
from harness.explain.words import spared

SUMMARY = "launch latency: short kernels, or many of them, or more than another variant has"
EFFECT_OF = ()
SHORT = 3.0  # launches; a kernel that takes less than so many is mostly launch
PART = 0.1  # of the time that launches beyond the first must take


def judge(known: Known) -> Iterator[Reason]:
    """A reason if launches beyond the first take a part of the time, or if a faster variant needs fewer of them.

    An aside if all of the time is little more than a launch.
    """
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
    elif fewer := _with_fewer(known, count):
        saves, last = spared(known, known.time, known.time - fewer.time, f"'{fewer.variant}' takes the rest")
        yield Reason(
            "launches",
            f"More kernels than needed: {count:.0f} a call, where '{fewer.variant}' has {fewer.launches:.0f} and takes "
            f"{units.seconds(fewer.time)}.",
            (f"by '{known.tool}'; what a kernel leaves for the next one goes through memory", last),
            "fuse the kernels, as that variant does",
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


def _with_fewer(known: Known, count: float) -> Sibling | None:
    """The fastest other variant, if it is faster with at most half of the kernels.

    Where counters tell what kernels pass through memory, other rules say more.
    """
    first = None if known.has_counters else next(iter(known.siblings), None)
    is_better = first and first.launches and 2 * first.launches <= count and first.time < known.time
    return first if is_better else None


def _launch(known: Known, typical: float) -> tuple[float, str]:
    points = known.subject.limits.points if known.subject.limits else ()
    least = min((point.seconds for point in points), default=typical)
    if least < typical:
        return least, "the shortest stream that was measured here, which is nearly all launch"
    return typical, "typical"
