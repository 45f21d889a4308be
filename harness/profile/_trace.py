"""Reads the traces of torch's profiler: JSON of Chrome's trace format, as `export_chrome_trace` writes it.

Of a GPU a trace has every kernel, copy and fill, each with its device and stream. Of the host it has the operators of
torch (`cpu_op`) and the calls of the CUDA runtime and driver. All of them are complete events (`"ph": "X"`), with start
`ts` and duration `dur` in microseconds. Annotations, such as `record_function`'s, lie over other events and do no
work themselves, so they are left out.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.devices import MARK
from harness.errors import UsageError
from harness.intervals import Interval, own

_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIME = ("cuda_runtime", "cuda_driver")
_OPERATOR = "cpu_op"
_MICROSECOND = 1e-6
_RECORD = "record it anew with torch.profiler.profile() and export_chrome_trace(PATH), or with 'harness profile torch'"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a device did.

    place: the device. start, end: seconds since the trace's first event. call: the number of the call that it is a
    piece of; a kernel is a call of its own. figures: of a kernel's launch, by the names of `harness.model.counters`.
    """

    name: str
    place: str
    start: float
    end: float
    call: int
    figures: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace holds.

    on_gpu: whether the spans are a GPU's kernels, copies and fills; otherwise they are the times that CPU operators
    spent in themselves. host: when the host was inside operators and calls of the CUDA runtime.
    """

    on_gpu: bool
    spans: tuple[Span, ...]
    host: tuple[Interval, ...]


def read(path: Path) -> Trace:
    """The spans of a trace.

    Raises UsageError for a file that isn't a trace, for a trace without a kernel or operator, and for one whose
    launches have no kernels.
    """
    events = sorted(_complete(_loaded(path), path), key=lambda event: float(event["ts"]))
    gpu = [event for event in events if event["cat"] in _GPU and event["name"] != MARK]
    operators = [event for event in events if event["cat"] == _OPERATOR]
    runtime = [event for event in events if event["cat"] in _RUNTIME]
    if not gpu and any(_launches(event["name"]) for event in runtime):
        raise UsageError(
            f"{path}: the host launched kernels, but the trace has none of the GPU's times",
            "let no other profiler run meanwhile, since only one can listen to a GPU, and wait for the GPU "
            "(torch.cuda.synchronize) before the profiler stops",
        )
    if not gpu and not operators:
        raise UsageError(f"{path}: has neither a kernel nor an operator of torch", f"for an empty trace, {_RECORD}")
    origin = float(events[0]["ts"])
    spans = _kernels(gpu, origin) if gpu else _operators(operators, origin)
    return Trace(bool(gpu), tuple(spans), tuple(_interval(event, origin) for event in (*operators, *runtime)))


def _loaded(path: Path) -> list[Any]:
    """The events of a file, as they are in it."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        found = json.loads(data)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path}: can't be read as a trace: {reason}", _RECORD) from error
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list):
        raise UsageError(f"{path}: is JSON without 'traceEvents'", _RECORD)
    return events


def _complete(events: Iterable[Any], path: Path) -> Iterator[dict[str, Any]]:
    """The events that have a name, a kind, a start and a length. Marks and links take no time."""
    for event in events:
        if not isinstance(event, dict):
            raise UsageError(f"{path}: {event!r:.80} in 'traceEvents' is no event", _RECORD)
        times = (event.get("ts"), event.get("dur"))
        texts = (event.get("name"), event.get("cat"))
        known = all(isinstance(time, int | float) for time in times) and all(isinstance(text, str) for text in texts)
        if event.get("ph") == "X" and known and event["dur"] >= 0:
            yield event


def _launches(name: str) -> bool:
    return "LaunchKernel" in name or "GraphLaunch" in name


def _interval(event: dict[str, Any], origin: float) -> Interval:
    start = (event["ts"] - origin) * _MICROSECOND
    return start, start + event["dur"] * _MICROSECOND


def _arguments(event: dict[str, Any]) -> dict[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _kernels(events: Sequence[dict[str, Any]], origin: float) -> Iterator[Span]:
    for call, event in enumerate(events):
        device = _arguments(event).get("device", event.get("pid", 0))
        yield Span(event["name"], str(device), *_interval(event, origin), call, tuple(_figures(_arguments(event))))


def _figures(found: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name in ("grid", "block"):
        sizes = found.get(name)
        if isinstance(sizes, list) and len(sizes) == 3 and all(isinstance(size, int) for size in sizes):
            yield name, float(sizes[0] * sizes[1] * sizes[2])
    for name, key in (("registers", "registers per thread"), ("shared_bytes", "shared memory")):
        if isinstance(found.get(key), int):
            yield name, float(found[key])


def _operators(events: Sequence[dict[str, Any]], origin: float) -> Iterator[Span]:
    """The time that each operator spent in itself, in the pieces that calls of other operators inside it leave."""
    threads: dict[tuple[str, str], list[int]] = {}
    for index, event in enumerate(events):
        threads.setdefault((str(event.get("pid")), str(event.get("tid"))), []).append(index)
    for indices in threads.values():
        intervals = [_interval(events[index], origin) for index in indices]
        for place, start, end in own(intervals):
            call = indices[place]
            yield Span(events[call]["name"], "CPU", start, end, call)
