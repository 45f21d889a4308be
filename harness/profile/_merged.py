"""The traces of several ranks as one file for Perfetto: on one clock, with the rank ahead of a process's name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.profile import _trace

_NAME = "process_name"
_PER_NANOSECOND, _PER_SECOND = 1e-3, 1e6  # microseconds


def write(traces: Sequence[Path], ranks: Sequence[int], ahead: Sequence[float], file: Path) -> None:
    """Write the events of all traces. ranks, ahead: of each the rank, and the seconds that its clock is ahead by."""
    numbers: dict[tuple[int, Any], int] = {}
    base: int | None = None
    with gzip.open(file, "wt", encoding="utf-8", compresslevel=3) as out:
        out.write('{"traceEvents": [')
        first = True
        for path, rank, early in zip(traces, ranks, ahead, strict=True):
            events, head = _trace.loaded(path)
            since = _trace.base(head)
            base = since if base is None else base
            later = (since - base) * _PER_NANOSECOND - early * _PER_SECOND
            for event in _moved(events, rank, later, numbers):
                out.write(f"{'' if first else ','}\n{json.dumps(event)}")
                first = False
        out.write(f'\n], "displayTimeUnit": "ms", "baseTimeNanoseconds": {base or 0}}}\n')


def _moved(
    events: Sequence[Any], rank: int, later: float, numbers: dict[tuple[int, Any], int]
) -> Iterator[dict[str, Any]]:
    """The events of one rank, later by so many microseconds, with numbers of processes that no other rank has."""
    for event in events:
        if not isinstance(event, dict):
            continue
        made = dict(event)
        if isinstance(made.get("ts"), int | float):
            made["ts"] += later
        if isinstance(made.get("pid"), int | str):
            made["pid"] = numbers.setdefault((rank, made["pid"]), len(numbers) + 1)
        if isinstance(made.get("id"), int | str):
            made["id"] = f"{rank}.{made['id']}"
        told = made.get("args")
        if made.get("name") == _NAME and isinstance(told, dict):
            made["args"] = {**told, "name": f"rank {rank}: {told.get('name', '')}"}
        yield made
