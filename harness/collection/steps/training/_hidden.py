"""What share of communication the backward hides: by times, and by the intersection of intervals in a trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import metrics, units
from harness.intervals import common, length, merged
from harness.metrics import Metric, Subject
from harness.ops import Context

HIDDEN, COMMUNICATION = "hidden_by_trace", "communication"
OVERLAPPED, AFTER, WITHOUT = "ddp", "after", "no_sync"
"""Variants of a training step on several devices: its gradients are summed during the backward, after it, or never."""
_STEPS = 5
_MICROSECOND = 1e-6


def _by_times(s: Subject) -> float | None:
    after, without = (s.beside[name].time if name in s.beside else None for name in (AFTER, WITHOUT))
    if s.variant != OVERLAPPED or not (s.time and after and without and s.world > 1 and after > without):
        return None
    return (after - s.time) / (after - without)


metrics.add(
    Metric(
        "hidden_by_times",
        "communication hidden, by times",
        units.SHARE,
        _by_times,
        f"how much of the time that the sum of gradients takes the backward hides: what {OVERLAPPED} is faster than "
        f"{AFTER} by, over what {WITHOUT} is faster by",
        head="hidden (times)",
        keep=7,
    ),
    after="efficiency_high",
)
metrics.fact(
    HIDDEN,
    "hidden (trace)",
    units.SHARE,
    "share of the time of NCCL's kernels in which other kernels ran on the same device. A kernel of NCCL also waits "
    "for the other devices, and takes multiprocessors from other kernels",
)
metrics.fact(
    COMMUNICATION,
    "communication",
    units.SHARE,
    "time of NCCL's kernels over the time of the steps, in a trace of a few steps; hidden or not",
)


def report_trace(ctx: Context, step: Callable[[], object]) -> None:
    """Trace a few steps, on every rank at the same time, and report what their communication was hidden by.

    Nothing is reported where a rank isn't let at the profiler.
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
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    for name, value in shares(events).items():
        ctx.report(name, value)


def shares(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Both figures from the events of a trace in Chrome's format; nothing where no kernel communicates."""
    kernels = [event for event in events if event.get("ph") == "X" and event.get("cat") == "kernel"]
    sent = merged(_interval(event) for event in kernels if "nccl" in event["name"].lower())
    computed = merged(_interval(event) for event in kernels if "nccl" not in event["name"].lower())
    if not sent:
        return {}
    every = [*sent, *computed]
    window = max(end for _, end in every) - min(start for start, _ in every)
    return {HIDDEN: common(sent, computed) / length(sent), COMMUNICATION: length(sent) / window}


def _interval(event: Mapping[str, Any]) -> tuple[float, float]:
    start = float(event["ts"]) * _MICROSECOND
    return start, start + float(event["dur"]) * _MICROSECOND
