"""What share of communication the backward hides: by times, and by the intersection of intervals in a trace.

By times it is known only where the times tell it: with an interval, and between 0 and 100%. A kernel of NCCL begins by
waiting for the other ranks, and a profiler slows ranks down by different amounts, so most of its time in a trace may be
waiting. Where the traces of all ranks can be laid over each other, that part is told apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import metrics, units
from harness.intervals import Interval, arrived, common, length, merged
from harness.metrics import Metric, Subject
from harness.ops import Context

HIDDEN, HIDDEN_LOW, HIDDEN_HIGH = "hidden_by_trace", "hidden_by_trace_low", "hidden_by_trace_high"
COMMUNICATION, WAITING = "communication", "communication_waiting"
OVERLAPPED, AFTER, WITHOUT = "ddp", "after", "no_sync"
"""Variants of a training step on several devices: its gradients are summed during the backward, after it, or never."""
_STEPS = 6
"""Steps of a trace: the range of six values holds their median with more than 95%."""
_MICROSECOND = 1e-6
_APART = 50e-6
"""Seconds that the clocks of two traces of one host may differ by."""


# ---- By times.


@dataclass(frozen=True, slots=True)
class ByTimes:
    """The share that is hidden, with its 95% interval, or why it isn't known."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    unknown: str = ""


def by_times(s: Subject) -> ByTimes | None:
    """What OVERLAPPED is faster than AFTER by, over what WITHOUT is faster by; None where one of them has no time."""
    known = [s, *(s.beside[name] for name in (AFTER, WITHOUT) if name in s.beside)]
    if s.variant != OVERLAPPED or s.world < 2 or len(known) < 3 or not all(each.time for each in known):
        return None
    intervals = [each.interval for each in known if each.interval]
    if len(intervals) < len(known):
        return ByTimes(unknown="too few samples for an interval")
    if unknown := _unknown(*(each.time or 0.0 for each in known), noise=intervals[1][0] <= intervals[2][1]):
        return ByTimes(unknown=unknown)
    shares = [_share(*times) for times in product(*intervals)]
    if min(shares) <= 0 and max(shares) >= 1:
        return ByTimes(unknown="its interval has 0% and 100% in it")
    return ByTimes(_share(*(each.time or 0.0 for each in known)), min(shares), max(shares))


def _unknown(overlapped: float, after: float, without: float, *, noise: bool) -> str:
    """Why three times tell no share; '' if they tell one. noise: whether the intervals of the last two overlap."""
    if noise or after <= without:
        return f"{AFTER} isn't slower than {WITHOUT} by more than the noise"
    if overlapped > after:
        return f"{OVERLAPPED} is slower than {AFTER}, so it costs more than it hides"
    return f"{OVERLAPPED} is faster than {WITHOUT}" if overlapped < without else ""


def _share(overlapped: float, after: float, without: float) -> float:
    return (after - overlapped) / (after - without)


def _bound(name: str) -> Callable[[Subject], float | None]:
    """A function that gives the figure, or a bound of it, where it is known."""

    def bound(s: Subject) -> float | None:
        found = by_times(s)
        return getattr(found, name) if found else None

    return bound


_HINT = (
    f"how much of the time that the sum of gradients takes the backward hides: what {OVERLAPPED} is faster than "
    f"{AFTER} by, over what {WITHOUT} is faster by. It isn't known where it doesn't lie between 0 and 100%"
)
metrics.add(
    Metric("hidden_by_times", "communication hidden, by times", units.SHARE, _bound("value"), _HINT),
    after="efficiency_high",
)
for _name, _end in (("low", "lower"), ("high", "upper")):
    metrics.add(
        Metric(
            f"hidden_by_times_{_name}",
            f"{_end} bound of the communication hidden, by times",
            units.SHARE,
            _bound(_name),
        ),
        after="hidden_by_times" if _name == "low" else "hidden_by_times_low",
    )


# ---- By a trace.

metrics.fact(
    HIDDEN,
    "hidden (trace)",
    units.SHARE,
    "share of the time of NCCL's kernels, or of copies in their place, in which other kernels ran on the same device. "
    "A kernel of NCCL also waits for the other devices, and takes multiprocessors from other kernels",
    head="",
)
for _name, _end in ((HIDDEN_LOW, "lower"), (HIDDEN_HIGH, "upper")):
    metrics.fact(
        _name, f"{_end} bound of hidden (trace)", units.SHARE, "of the median over the steps of a trace", head=""
    )
metrics.fact(
    COMMUNICATION,
    "communication",
    units.SHARE,
    "time of NCCL's kernels, or of copies in their place, over the time of the steps, in a trace of a few steps; "
    "hidden or not",
    head="",
)
metrics.fact(
    WAITING,
    "communication, waiting",
    units.SHARE,
    "share of the time of NCCL's kernels until the last rank's kernel had begun, by the traces of all ranks",
    head="",
)


def report_trace(ctx: Context, step: Callable[[], object], copied: Collection[int] = ()) -> None:
    """Trace a few steps, on every rank at the same time, and report what their communication was hidden by.

    copied: sizes in bytes of the copies that communicate, where kernels of NCCL don't. Nothing is reported where a rank
    isn't let at the profiler.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    step()
    torch.cuda.synchronize()
    # Nothing is recorded of the host, since that would slow it down.
    profiler = profile(activities=[ProfilerActivity.CUDA])
    refused = None
    try:
        profiler.start()
    except RuntimeError as error:
        refused = str(error)
    nobody = ctx.group.verdict(refused)
    if nobody is None:
        for _ in range(_STEPS):
            step()
        torch.cuda.synchronize()
    if refused is None:
        profiler.stop()
    if nobody is not None:
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        trace = json.loads(file.read_text(encoding="utf-8"))
    found = shares(trace["traceEvents"], copied=copied)
    own = [list(interval) for interval in sending(trace["traceEvents"])]
    # Times of a trace are from this moment on, which may be another one in each process.
    every = ctx.group.exchange([trace.get("baseTimeNanoseconds", 0), own])
    if ctx.group.local_size == ctx.group.size and (waited := waiting(every, ctx.group.rank)) is not None:
        found[WAITING] = waited
    for name, value in found.items():
        ctx.report(name, value)


def shares(events: Sequence[Mapping[str, Any]], steps: int = _STEPS, copied: Collection[int] = ()) -> dict[str, float]:
    """The figures of one rank from the events of a trace in Chrome's format; nothing where nothing communicates.

    steps: that the trace is of. Without as many kernels of NCCL in each step there is no interval. copied: sizes in
    bytes of copies that count as such kernels do.
    """
    sent = sending(events, copied)
    computed = merged(_interval(event) for event in _kernels(events) if not _is_sending(event))
    if not sent:
        return {}
    every = [*sent, *computed]
    window = max(end for _, end in every) - min(start for start, _ in every)
    whole = merged(sent)
    found = {HIDDEN: common(whole, computed) / length(whole), COMMUNICATION: length(whole) / window}
    of_step = len(sent) // steps
    if of_step * steps == len(sent):
        parts = [merged(sent[first : first + of_step]) for first in range(0, len(sent), of_step)]
        each = [common(part, computed) / length(part) for part in parts]
        found |= {HIDDEN_LOW: min(each), HIDDEN_HIGH: max(each)}
    return found


def sending(events: Iterable[Mapping[str, Any]], copied: Collection[int] = ()) -> list[Interval]:
    """When each kernel of NCCL ran, and each copy of such a size, in seconds, in the order of their starts."""
    events = [*events]
    kernels = [event for event in _kernels(events) if _is_sending(event)]
    moved = [event for event in events if event.get("cat") == "gpu_memcpy"]
    copies = [event for event in moved if event.get("args", {}).get("bytes") in copied]
    return sorted(_interval(event) for event in (*kernels, *copies))


def waiting(every: Sequence[Sequence[Any]], rank: int) -> float | None:
    """The share of the time of a rank's kernels of NCCL until the last rank's kernel had begun.

    every: of each rank the moment that its times count from, in nanoseconds, and when its kernels of NCCL ran, in
    seconds, in the order of their starts. None where ranks have different numbers of kernels, and where a kernel ended
    before another rank's had begun: then the clocks aren't one.
    """
    first = every[0][0]
    kernels = [
        [(start + (base - first) * 1e-9, end + (base - first) * 1e-9) for start, end in own] for base, own in every
    ]
    if not kernels[rank] or len({len(own) for own in kernels}) > 1:
        return None
    waited = 0.0
    for together in zip(*kernels, strict=True):
        late = arrived(together)
        if late > min(end for _, end in together) + _APART:
            return None
        start, end = together[rank]
        waited += min(late, end) - start
    return waited / length(kernels[rank])


def _kernels(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [event for event in events if event.get("ph") == "X" and event.get("cat") == "kernel"]


def _is_sending(event: Mapping[str, Any]) -> bool:
    return "nccl" in event["name"].lower()


def _interval(event: Mapping[str, Any]) -> Interval:
    start = float(event["ts"]) * _MICROSECOND
    return start, start + float(event["dur"]) * _MICROSECOND
