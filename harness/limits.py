"""What this machine's memory can do: plain streams of every mix and size, measured like any case."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from harness import paths, stats
from harness.devices import CACHES, FEWEST_SETS, Device, Stream, covering_sets
from harness.model import Ceilings, Machine, StreamPoint

if TYPE_CHECKING:
    import torch

_ALIGN = 512  # bytes; what the allocators give, and whole 16-byte packs
_ELEMENT = 4  # bytes; torch streams float32, and bytes are bytes to the others
_BATCH_SECONDS = 2e-3
_FEWEST, _MOST = 6, 30
_PRECISION = 0.005
_MOST_SECONDS = 0.2

Progress = Callable[[str, float], None]


def measure(device: Device, progress: Progress = lambda _text, _share: None) -> Ceilings:
    """Every way of streaming at every size. `progress(text, share done)` is called before each size."""
    streams = list(device.streams())
    sizes = [size for size in device.ceiling_sizes if 2 * size <= device.free_bytes()]
    arena = _Arena(device, max(sizes))
    points = []
    for i, size in enumerate(sizes):
        progress(f"memory ceilings, {size / 1e6:.0f} MB", i / len(sizes))
        points += [_point(device, arena, stream, size) for stream in streams]
    return Ceilings(tuple(points))


def again(device: Device, ceilings: Ceilings) -> Ceilings:
    """The same ceilings, with the best way of each mix measured once more at some of the larger sizes."""
    streams = {(stream.way, stream.read_share): stream for stream in device.streams()}
    largest = max(point.moved for point in ceilings.best)
    repeated = [point for point in ceilings.best if largest // 20 <= point.moved <= largest // 2]
    arena = _Arena(device, max((point.moved for point in repeated), default=_ALIGN))
    end = [_point(device, arena, streams[point.way, point.read_share], point.moved) for point in repeated]
    return Ceilings(ceilings.points, tuple(end))


def remember(machine: Machine, ceilings: Ceilings) -> None:
    """Keep the ceilings in the user's cache folder, where a dry run finds them. A full disk loses only that."""
    file = _remembered(machine)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([asdict(point) for point in ceilings.points]))


def recall(machine: Machine) -> Ceilings | None:
    """The ceilings last measured on this machine, or None."""
    file = _remembered(machine)
    try:
        return Ceilings(tuple(StreamPoint(**point) for point in json.loads(file.read_text())))
    except (OSError, ValueError, TypeError):
        return None


class _Arena:
    """One allocation that all streams use, so that none of them waits for an allocator."""

    def __init__(self, device: Device, largest: int) -> None:
        import torch

        self.cache_bytes = device.cache_bytes
        generator = torch.Generator(device.torch_device).manual_seed(0)
        # Uniform in [0, 1): zeros would stream faster on some devices, and denormals slower on others.
        size = max(largest, (CACHES + 1) * device.cache_bytes)
        self.data = torch.rand(size // _ELEMENT, generator=generator, device=device.torch_device)

    def sets(self, arrays: int, array_bytes: int) -> list[list[torch.Tensor]]:
        """As many disjoint sets of `arrays` arrays as a case of that size rotates over, if they fit; at least one."""
        elements = array_bytes // _ELEMENT
        per_set = arrays * elements
        wanted = max(FEWEST_SETS, covering_sets(self.cache_bytes, per_set * _ELEMENT))
        count = max(1, min(wanted, self.data.numel() // per_set))
        starts = [[s * per_set + a * elements for a in range(arrays)] for s in range(count)]
        return [[self.data[start : start + elements] for start in of_set] for of_set in starts]


def _point(device: Device, arena: _Arena, stream: Stream, moved: int) -> StreamPoint:
    """Median time of a stream that moves about `moved` bytes."""
    arrays = stream.reads + stream.writes
    array_bytes = max(_ALIGN, moved // arrays // _ALIGN * _ALIGN)
    calls = [stream.prepare(s[: stream.reads], s[stream.reads :]) for s in arena.sets(arrays, array_bytes)]
    batch = device.batch(calls, capture=stream.capture, keep=1, seconds=_BATCH_SECONDS)
    samples: list[float] = []
    deadline = time.monotonic() + _MOST_SECONDS
    while not samples or (
        len(samples) < _MOST and stats.relative_width(samples) > _PRECISION and time.monotonic() < deadline
    ):
        samples += batch.run(_FEWEST)
    return StreamPoint(
        read=stream.reads * array_bytes,
        written=stream.writes * array_bytes,
        seconds=statistics.median(samples),
        way=stream.way,
        is_copy=stream.is_copy,
    )


def _remembered(machine: Machine) -> Path:
    return paths.cache() / f"ceilings-{machine.kind}-{machine.fingerprint}.json"
