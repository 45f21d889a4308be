"""What the traces of several ranks of one program hold: each rank's steps, and its collectives.

A rank and its host stand in the trace, as torch's profiler writes them where torch.distributed was in use, else the
rank stands in the file's name (`trace.rank3.json.gz`). Steps are told by marks of `_steps`, or by torch's own
annotations `ProfilerStep#7`. A step ends on a GPU where the last kernel ends that the host launched before the mark:
the host runs ahead of the GPU.

On a GPU the collectives are NCCL's kernels, elsewhere gloo's annotations. A collective counts if no rank can leave it
before every rank has arrived: all-reduce, all-gather, reduce-scatter, all-to-all and barrier. The root of a broadcast
may be done before the others begin.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import foreign
from harness.errors import UsageError
from harness.profile import _trace
from harness.profile._trace import BEGIN, GPU, RUNTIME, STEP, Loaded, Trace, arguments, interval

_IN_NAME = re.compile(r"rank[-_.]?([0-9]{1,6})(?![0-9])")
_STEP_OF_TORCH = re.compile(r"ProfilerStep#[0-9]+$")
_ANNOTATION = "user_annotation"
_EVERYBODY_WAITS = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)
_NCCL = re.compile(r"nccl", re.IGNORECASE)
_MICROSECOND, _NANOSECOND = 1e-6, 1e-9
_LARGEST_RANK = 10**6


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective on one rank. group: whose ranks take part in it. name: such as all_reduce. start, end: seconds."""

    group: str
    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one rank's trace holds; all times are in seconds since the trace's first event.

    world: how many ranks the program has, or 0. host: the name of the machine, or '', where the trace doesn't tell.
    since: that first event, in seconds since the first event of the lowest rank's trace by the two machines' own
    clocks. edges: the begin of the first step, and the end of each step; empty where the trace tells of no steps.
    collectives: in the order of their starts.
    """

    rank: int
    world: int
    path: Path
    host: str
    since: float
    trace: Trace
    edges: tuple[float, ...]
    collectives: tuple[Collective, ...]


def read(paths: Sequence[Path]) -> tuple[Recorded, ...]:
    """The recordings of several ranks, the lowest rank first.

    Raises UsageError for a file that isn't a trace, for one that doesn't tell its rank, and for two of one rank.
    """
    every: dict[int, Recorded] = {}
    origins: dict[int, tuple[int, float]] = {}
    for path in paths:
        # One at a time: the events take thirty times as much memory as what is kept of them.
        loaded = _trace.load(path)
        rank = _rank(loaded)
        if rank in every:
            raise UsageError(
                f"{path}: is of rank {rank}, and so is {every[rank].path.name}",
                "leave one trace of each rank in the folder: of one recording, at the same steps",
            )
        every[rank], origins[rank] = _recorded(rank, loaded), (_trace.base(loaded.head), _trace.origin(loaded))
    base, first = origins[min(every)]

    def since(rank: int) -> float:
        # The two parts are subtracted apart: their sum has more digits than a float.
        return (origins[rank][0] - base) * _NANOSECOND + (origins[rank][1] - first) * _MICROSECOND

    return tuple(replace(every[rank], since=since(rank)) for rank in sorted(every))


def _distributed(loaded: Loaded, key: str) -> int | None:
    """A number that torch.distributed has told the profiler; None where it wasn't in use."""
    told = loaded.head.get("distributedInfo")
    number = told.get(key) if isinstance(told, dict) else None
    return number if isinstance(number, int) and 0 <= number <= _LARGEST_RANK else None


def _rank(loaded: Loaded) -> int:
    if (rank := _distributed(loaded, "rank")) is not None:
        return rank
    if named := _IN_NAME.search(loaded.path.name):
        return int(named[1])
    raise UsageError(
        f"{loaded.path}: doesn't tell which rank it is of",
        "name the rank in the file's name: trace.rank3.json.gz; 'harness profile torch -- torchrun ...' does so",
    )


def _recorded(rank: int, loaded: Loaded) -> Recorded:
    """What a trace holds, but for when it began beside other traces."""
    trace, first = _trace.spans(loaded), _trace.origin(loaded)
    host = loaded.head.get("host_name")
    return Recorded(
        rank=rank,
        world=_distributed(loaded, "world_size") or 0,
        path=loaded.path,
        host=foreign.name(host) if isinstance(host, str) else "",
        since=0.0,
        trace=trace,
        edges=tuple(_edges(loaded, first, trace)),
        collectives=tuple(_collectives(loaded, first)),
    )


def _edges(loaded: Loaded, first: float, trace: Trace) -> list[float]:
    """Where steps begin and end on the device."""
    annotations = [event for event in loaded.complete if event["cat"] == _ANNOTATION]
    ours = [interval(event, first)[0] for event in annotations if event["name"] in (BEGIN, STEP)]
    torchs = [interval(event, first) for event in annotations if _STEP_OF_TORCH.match(event["name"])]
    marks = sorted(ours or [*(start for start, _ in torchs[:1]), *(end for _, end in torchs)])
    if len(marks) < 2 or not trace.on_gpu:
        return marks if len(marks) > 1 else []
    launched = sorted(_launched(loaded, first))
    ends, latest = list[float](), 0.0
    for _, end in launched:
        latest = max(latest, end)
        ends.append(latest)
    before = (bisect_right(launched, (mark, float("inf"))) for mark in marks)
    return [ends[count - 1] if count else mark for count, mark in zip(before, marks, strict=True)]


def _launched(loaded: Loaded, first: float) -> Iterator[tuple[float, float]]:
    """When the host launched each kernel, and when the kernel ended. Where it isn't told, the kernel's start stands."""
    calls = {
        number: interval(event, first)[0]
        for event in loaded.complete
        if event["cat"] in RUNTIME and isinstance(number := arguments(event).get("correlation"), int)
    }
    for event in loaded.complete:
        if event["cat"] in GPU:
            start, end = interval(event, first)
            number = arguments(event).get("correlation")
            yield calls.get(number, start) if isinstance(number, int) else start, end


def _collectives(loaded: Loaded, first: float) -> Iterator[Collective]:
    """The collectives in which all ranks of a group wait for each other."""
    events = _trace.of_steps(loaded.complete)
    kernels = [event for event in events if event["cat"] == "kernel" and _NCCL.search(event["name"])]
    found: Iterable[dict[str, Any]] = kernels or (
        event for event in events if event["cat"] == _ANNOTATION and event["name"].startswith("gloo:")
    )
    for event in found:
        told = arguments(event)
        name = told.get("Collective name")
        kind = _EVERYBODY_WAITS.search(name if isinstance(name, str) else event["name"])
        if kind:
            group = " ".join(str(told.get(key, "")) for key in ("Process Group Name", "Process Group Ranks"))
            yield Collective(foreign.name(group), kind[0].replace("_", "").lower(), *interval(event, first))
