"""Traces of several ranks of one program, whose clocks, stragglers and waiting are known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.profile._trace import BEGIN, STEP

BASE = 1_790_857_026_000_000_000
"""Nanoseconds since 1970: what the times of a trace count from."""
SENDING = 200.0
"""Microseconds that each collective takes from the last rank's arrival on."""
GEMM = "nvjet_sm90_tst_128x256"
Work = Callable[[int, int], float]


def alike(seed: int = 1, mean: float = 1000.0, noise: float = 30.0) -> Work:
    """Microseconds of work of each rank in each turn, which scatter in the same way on all ranks."""
    chance = random.Random(seed)
    return lambda rank, turn: chance.gauss(mean, noise)


def write(
    folder: Path,
    work: Work,
    *,
    ranks: int = 4,
    steps: int = 6,
    turns: int = 4,
    ahead: Sequence[float] = (),
    jitter: float = 2.0,
    beside: float = 0.0,
    late: Work = lambda rank, turn: 0.0,
    marks: str = "ours",
    launches: Callable[[int], int] = lambda rank: 1,
    group: Callable[[int], str] = lambda rank: "0",
) -> list[Path]:
    """Write one trace of each rank; give their paths.

    Times in microseconds: in each of `turns` of a step a rank works, then all meet in an all-reduce. work: of a rank in
    a turn. late: how long the rank's host waits before. ahead: what the clocks are ahead by. jitter: by which the ranks
    leave an all-reduce at different moments. beside: work that runs beside each all-reduce, from its start on. marks:
    whose marks of steps, 'ours' or 'torch'; '' for none. launches: kernels that a rank's work consists of.
    """
    chance = random.Random(7)
    events: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
    now = [1000.0] * ranks
    for rank in range(ranks):
        _mark(events[rank], BEGIN if marks == "ours" else "", now[rank])
    for step in range(steps):
        began = list(now)
        for turn in range(turns):
            starts = []
            for rank in range(ranks):
                now[rank] += late(rank, step * turns + turn)
                long = work(rank, step * turns + turn)
                for piece in range(launches(rank)):
                    part = long / launches(rank)
                    _kernel(events[rank], GEMM, now[rank] + piece * part, part)
                starts.append(now[rank] + long + 5)
            end = max(starts) + SENDING
            for rank, start in enumerate(starts):
                left = end + chance.uniform(0, jitter)
                told = {"Collective name": "allreduce", "Process Group Name": group(rank)}
                _kernel(events[rank], "ncclDevKernel_AllReduce_Sum_f32_RING_LL", start, left - start, **told)
                if beside:
                    _kernel(events[rank], GEMM, start, beside)
                now[rank] = left + 5
        for rank in range(ranks):
            # The host is ahead of the GPU: it has launched the step's last kernel long before that kernel runs.
            _mark(events[rank], STEP if marks == "ours" else "", now[rank] - 300)
            if marks == "torch":
                _annotation(events[rank], f"ProfilerStep#{step}", began[rank] - 400, now[rank] - began[rank])
    return [_written(folder, rank, ranks, events[rank], ahead[rank] if ahead else 0.0) for rank in range(ranks)]


def _kernel(events: list[dict[str, Any]], name: str, start: float, length: float, **told: Any) -> None:
    number = len(events)
    host = {"pid": 99, "tid": 99, "args": {"correlation": number}}
    events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start - 350, "dur": 5, **host})
    args = {"device": 0, "stream": 7, "correlation": number, **told}
    events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "ts": start, "dur": length, "args": args})


def _mark(events: list[dict[str, Any]], name: str, at: float) -> None:
    if name:
        _annotation(events, name, at - (400 if name == BEGIN else 0), 1.0)


def _annotation(events: list[dict[str, Any]], name: str, start: float, length: float) -> None:
    events.append({"ph": "X", "cat": "user_annotation", "name": name, "pid": 99, "tid": 99, "ts": start, "dur": length})


def _written(folder: Path, rank: int, world: int, events: list[dict[str, Any]], ahead: float) -> Path:
    """Write a rank's trace, whose times count from a moment of its own, as those of each process may."""
    base = BASE + 3_000_000 * rank
    moved = [{**event, "ts": event["ts"] + ahead + 5_000_000 - 3_000 * rank} for event in events]
    path = folder / f"trace.rank{rank}.json"
    head = {"distributedInfo": {"rank": rank, "world_size": world}, "host_name": "here", "baseTimeNanoseconds": base}
    path.write_text(json.dumps({**head, "traceEvents": moved}))
    return path
