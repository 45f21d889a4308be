"""Reads the traces of torch's profiler: JSON of Chrome's trace format, as `export_chrome_trace` writes it.

Of a GPU a trace has every kernel, copy and fill, each with its device and stream. Of the host it has the operators of
torch (`cpu_op`) and the calls of the CUDA runtime and driver. All of them are complete events (`"ph": "X"`), with start
`ts` and duration `dur` in microseconds. Annotations, such as `record_function`'s, lie over other events and do no
work themselves, so they are left out.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import reprlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import foreign
from harness.devices import MARK
from harness.errors import UsageError
from harness.intervals import Interval, own

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")
_OPERATOR = "cpu_op"
_ID = "External id"
BEGIN, END = "harness: the steps begin", "harness: the steps end"
"""The names of annotations: what happened before the one, and after the other, isn't read."""
STEP = "harness: a step ends"
"""The name of the annotation at the end of each step between BEGIN and END."""
_MICROSECOND = 1e-6
_MOST_BYTES = 256 << 20
"""The most bytes of a trace, unpacked."""
_MOST_VALUES = 16_000_000
"""The most values of a trace. An event of a kernel has about 25."""
_MOST_DEVICES = 1024
_LATEST = 1e18
"""Microseconds; the times of a trace are since 1970, or since the machine's start."""
_LARGEST = 2**63 - 1
"""The largest size of a grid, a block or a memory, and the largest number of nanoseconds."""
_SHORTER = "record fewer steps: a few tell as much as many"
_RECORD = "record it anew with torch.profiler.profile() and export_chrome_trace(PATH), or with 'harness profile torch'"


class EmptyTraceError(UsageError):
    """A trace has no operator of torch and no kernel."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a device did.

    place: the device. start, end: seconds since the trace's first event. call: the number of the call that it is a
    piece of; a kernel is a call of its own. figures: of a kernel's launch, by the names of `harness.model.counters`.
    operator: of torch, that launched a kernel; '' where the trace doesn't tell, as of a graph's kernels.
    """

    name: str
    place: str
    start: float
    end: float
    call: int
    figures: tuple[tuple[str, float], ...] = ()
    operator: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace holds.

    on_gpu: whether the spans are a GPU's kernels, copies and fills; otherwise they are the times that CPU operators
    spent in themselves. host: when the host was inside operators and calls of the CUDA runtime.
    """

    on_gpu: bool
    spans: tuple[Span, ...]
    host: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The complete events of a trace in the order of their starts, and all that the file says beside its events."""

    path: Path
    complete: tuple[dict[str, Any], ...]
    head: Mapping[str, Any]


def read(path: Path) -> Trace:
    """The spans of a trace.

    Raises UsageError for a file that isn't a trace, for a trace without a kernel or operator, and for one whose
    launches have no kernels.
    """
    return spans(load(path))


def load(path: Path) -> Loaded:
    """The events of a trace. Raises UsageError for a file that isn't a trace."""
    found, head = loaded(path)
    return Loaded(path, tuple(sorted(_complete(found, path), key=lambda event: float(event["ts"]))), head)


def origin(found: Loaded) -> float:
    """The microsecond of the file's clock that the times of `spans` count from: of the first event of the steps."""
    return float(of_steps(found.complete)[0]["ts"])


def base(head: Mapping[str, Any]) -> int:
    """The nanosecond that a file's times count from; 0 in files of older versions, which count from 1970."""
    told = head.get("baseTimeNanoseconds")
    return told if isinstance(told, int) and abs(told) <= _LARGEST else 0


def spans(of: Loaded) -> Trace:
    """The spans of a trace's steps. Raises UsageError as `read` does."""
    path, events = of.path, of_steps(of.complete)
    gpu = [event for event in events if event["cat"] in GPU and event["name"] != MARK]
    operators = [event for event in events if event["cat"] == _OPERATOR]
    runtime = [event for event in events if event["cat"] in RUNTIME]
    if not gpu and any(_launches(event["name"]) for event in runtime):
        raise UsageError(
            f"{path}: the host launched kernels, but the trace has none of the GPU's times",
            "let no other profiler run meanwhile, since only one can listen to a GPU, and wait for the GPU "
            "(torch.cuda.synchronize) before the profiler stops",
        )
    if not gpu and not operators:
        raise EmptyTraceError(
            f"{path}: has neither a kernel nor an operator of torch", f"for an empty trace, {_RECORD}"
        )
    first = origin(of)
    found = tuple(_kernels(gpu, _by_id(operators), first) if gpu else _operators(operators, first))
    if len({span.place for span in found}) > _MOST_DEVICES:
        raise UsageError(f"{path}: is of more than {_MOST_DEVICES} devices, the limit", _RECORD)
    return Trace(bool(gpu), found, tuple(interval(event, first) for event in (*operators, *runtime)))


def loaded(path: Path) -> tuple[list[Any], dict[str, Any]]:
    """The events of a file, as they are in it, and what else it says. Raises UsageError for a file that isn't one."""
    try:
        found = json.loads(_text(path))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path}: can't be read as a trace: {reason}", _RECORD) from error
    except RecursionError as error:
        raise UsageError(f"{path}: can't be read as a trace: it is nested too deeply", _RECORD) from error
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list):
        raise UsageError(f"{path}: is JSON without 'traceEvents'", _RECORD)
    return events, {key: value for key, value in found.items() if key != "traceEvents"} if events is not found else {}


def _text(path: Path) -> bytes:
    """The JSON of a file. Raises UsageError if it has more bytes or values than the limit.

    The bytes of a compressed file are counted as they are unpacked. A value such as {} takes thirty times as much
    memory as it has bytes, so values are counted before they are made.
    """
    data = foreign.read(path, _MOST_BYTES)
    if path.suffix == ".gz":
        with gzip.open(io.BytesIO(data)) as unpacked:
            data = unpacked.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path}: unpacked it has more than {foreign.megabytes(_MOST_BYTES)}, the limit", _SHORTER)
    if sum(data.count(sign) for sign in (b",", b"[", b"{")) > _MOST_VALUES:
        raise UsageError(f"{path}: has more than {_MOST_VALUES:,} values, the limit", _SHORTER)
    return data


def _complete(events: Iterable[Any], path: Path) -> Iterator[dict[str, Any]]:
    """The events that have a name, a kind, a start and a length. Marks and links take no time.

    Raises UsageError for what is no event, and for a time that is no time.
    """
    for number, event in enumerate(events, 1):
        if not isinstance(event, dict):
            raise UsageError(f"{path}: {reprlib.repr(event)} in 'traceEvents', event {number}, is no event", _RECORD)
        times: tuple[Any, Any] = (event.get("ts"), event.get("dur"))
        texts = (event.get("name"), event.get("cat"))
        known = all(isinstance(time, int | float) for time in times) and all(isinstance(text, str) for text in texts)
        if event.get("ph") != "X" or not known:
            continue
        # Not written as an inequality: nan is in no range.
        if not all(-_LATEST <= time <= _LATEST for time in times):
            said = " and ".join(f"{key} {reprlib.repr(event[key])}" for key in ("ts", "dur"))
            raise UsageError(f"{path}: event {number} has times that can't be: {said}", _RECORD)
        if event["dur"] >= 0:
            yield {**event, "name": foreign.name(event["name"])}


def of_steps(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events between the annotations that begin and end the steps; all events where there are none."""
    begin = max((event["ts"] for event in events if event["name"] == BEGIN), default=-math.inf)
    end = min((event["ts"] for event in events if event["name"] == END), default=math.inf)
    return [event for event in events if begin < event["ts"] < end]


def _launches(name: str) -> bool:
    return "LaunchKernel" in name or "GraphLaunch" in name


def interval(event: dict[str, Any], first: float) -> Interval:
    """When something happened, in seconds since the microsecond `first` of the file's clock."""
    start = (event["ts"] - first) * _MICROSECOND
    return start, start + event["dur"] * _MICROSECOND


def arguments(event: dict[str, Any]) -> dict[str, Any]:
    """What an event says beside its name and its times."""
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _by_id(operators: Sequence[dict[str, Any]]) -> dict[int, str]:
    """The name of each operator by the number that the kernels have which it launched."""
    return {number: event["name"] for event in operators if (number := _number(event)) is not None}


def _number(event: dict[str, Any]) -> int | None:
    found = arguments(event).get(_ID)
    return found if isinstance(found, int) else None


def _kernels(events: Sequence[dict[str, Any]], operators: Mapping[int, str], first: float) -> Iterator[Span]:
    for call, event in enumerate(events):
        told = arguments(event)
        number, place = _number(event), _place(told.get("device", event.get("pid", 0)))
        operator = operators.get(number, "") if number is not None else ""
        yield Span(event["name"], place, *interval(event, first), call, tuple(_figures(told)), operator)


def _figures(found: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name in ("grid", "block"):
        sizes = found.get(name)
        if isinstance(sizes, list) and len(sizes) == 3 and all(map(_is_size, sizes)):
            yield name, float(sizes[0] * sizes[1] * sizes[2])
    for name, key in (("registers", "registers per thread"), ("shared_bytes", "shared memory")):
        if _is_size(found.get(key)):
            yield name, float(found[key])


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= _LARGEST


def _place(value: Any) -> str:
    """The name of a process, a thread or a device: a number or a text."""
    return foreign.name(str(value)) if isinstance(value, int | str) else "?"


def _operators(events: Sequence[dict[str, Any]], first: float) -> Iterator[Span]:
    """The time that each operator spent in itself, in the pieces that calls of other operators inside it leave."""
    threads: dict[tuple[str, str], list[int]] = {}
    for index, event in enumerate(events):
        threads.setdefault((_place(event.get("pid")), _place(event.get("tid"))), []).append(index)
    for indices in threads.values():
        intervals = [interval(events[index], first) for index in indices]
        for place, start, end in own(intervals):
            call = indices[place]
            yield Span(events[call]["name"], "CPU", start, end, call)
