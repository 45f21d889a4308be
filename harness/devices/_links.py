"""Copies between NVIDIA GPUs of one process. The bandwidth of the GPUs' links is measured with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from harness.devices import Ring

SIZES = (2**26, 2**28, 2**30)
"""Bytes that each device sends."""


def rings(world: int) -> Iterator[Ring]:
    """Each of `world` devices copies to the next one by cudaMemcpyPeer, all at the same time."""
    for sent in SIZES:
        yield Ring(world, sent, "cudaMemcpyPeer in a ring", partial(_prepare, world, sent))


def _prepare(world: int, sent: int) -> Callable[[int], float]:
    import torch

    # Each direction has a stream of its own on each device. torch makes a copy wait for the current streams of both
    # devices, so on shared streams the copies of the ring would run one after the other.
    out = [torch.cuda.Stream(device) for device in range(world)]
    into = [torch.cuda.Stream(device) for device in range(world)]
    sources = [torch.randint(0, 255, (sent,), dtype=torch.uint8, device=f"cuda:{d}") for d in range(world)]
    targets = [torch.empty(sent, dtype=torch.uint8, device=f"cuda:{d}") for d in range(world)]

    def wait() -> None:
        for device in range(world):
            torch.cuda.synchronize(device)

    def run(times: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(times):
            for source, stream in enumerate(out):
                target = (source + 1) % world
                with torch.cuda.stream(into[target]), torch.cuda.stream(stream):
                    targets[target].copy_(sources[source], non_blocking=True)
        wait()
        return time.perf_counter() - start

    run(1)  # The first copy between two devices sets up their access to each other.
    return run
