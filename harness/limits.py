"""Measuring what a machine can do: streams through its memory, matrix products, copies over its links.

`ready` gives the limits that a run needs. It measures what isn't known yet, and keeps it for the next run on this
machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness import kept, stats
from harness.devices import CACHES, FEWEST_SETS, Device, MatrixProduct, Ring, Stream, covering_sets
from harness.model import COMPUTE_KINDS, ComputePoint, Limits, LinkPoint, Machine, StreamPoint, Work

if TYPE_CHECKING:
    import torch

_SCHEMA = 1  # version of the file that limits are kept in, and of how they are measured
_ALIGN = 512  # bytes: the alignment that the allocators give, a whole number of 16-byte packs
_ELEMENT = 4  # bytes: torch streams float32; for the other ways of streaming the type makes no difference
_RANDOM = 2**22  # elements of the block of random numbers that streams move again and again
_BATCH_SECONDS = 2e-3
_FEWEST, _MOST = 6, 30
_FEWEST_SIZES = 2  # of streams, so that there is a line through them
_PRECISION = 0.005
_MOST_SECONDS = 0.2
_BURST_CALLS, _LONG_CALLS = 8, 3  # of a matrix product in a burst; the second where a product takes `_LONG` seconds
_LONG = 20e-3
_SETTLED_SECONDS = 0.1  # of the calls at the end of a load, which count as settled
_SENDS, _SEND_ROUNDS = 10, 5

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Needs:
    """Which limits a run needs.

    streams: the memory's. kinds: peaks of compute, each by a name in COMPUTE_KINDS. worlds: bandwidths of the
    links, by the number of devices that send at the same time.
    """

    streams: bool = True
    kinds: tuple[str, ...] = ()
    worlds: tuple[int, ...] = ()

    @classmethod
    def of(cls, works: Iterable[tuple[Work, int]]) -> Needs:
        """What these works, each with its number of devices, are compared with: streams always, the rest if needed."""
        found = tuple(works)
        kinds = {kind for work, _ in found for kind, count in work.flops if count}
        worlds = {world for work, world in found if work.sent and world > 1}
        return cls(kinds=tuple(sorted(kinds)), worlds=tuple(sorted(worlds)))

    @classmethod
    def everything(cls, machine: Machine) -> Needs:
        """All limits that can be measured on the machine; links for 2, 4, 8 ... devices, and for all of them."""
        count = len(machine.devices)
        doubled = {2**exponent for exponent in range(1, count.bit_length())}
        return cls(kinds=COMPUTE_KINDS, worlds=tuple(sorted(doubled | ({count} if count > 1 else set()))))


def _silent(_text: str, _share: float) -> None:
    """Report nothing."""


def ready(device: Device, needs: Needs, fresh: bool = False, progress: Progress = _silent) -> Limits:
    """The limits that are needed: kept ones where they still hold, the rest measured now, and kept.

    Kept limits hold if a probe, some of their streams measured again, takes as long. fresh: measure everything that is
    needed anew. progress(text, share done) is called before each step. A kind or a world that device or torch can't do
    is left out.
    """
    if needs == _NOTHING:
        return Limits()
    machine = device.machine()
    known = None if fresh else recall(machine)
    if known and not _holds(device, known, progress):
        known = None
    limits = known or Limits()
    lacking = missing(limits, needs)
    if lacking != _NOTHING:
        found = measure(device, lacking, progress)
        limits = Limits(limits.points + found.points, (), limits.compute + found.compute, limits.links + found.links)
        remember(machine, limits)
    return _only(limits, needs, machine)


def missing(limits: Limits, needs: Needs) -> Needs:
    """What is needed beyond the limits at hand."""
    kinds = {point.kind for point in limits.compute}
    worlds = {point.world for point in limits.links}
    return Needs(
        streams=needs.streams and not limits.points,
        kinds=tuple(kind for kind in needs.kinds if kind not in kinds),
        worlds=tuple(world for world in needs.worlds if world not in worlds),
    )


def measure(device: Device, needs: Needs, progress: Progress = _silent) -> Limits:
    """Measure what is needed: streams in every way and size, products of each kind, rings of each world."""
    sizes = [size for size in device.stream_sizes if 2 * size <= device.free_bytes()] if needs.streams else []
    steps = len(sizes) + len(needs.kinds) + len(needs.worlds)
    done = iter(range(steps))

    def step(text: str) -> None:
        progress(f"measuring the machine: {text}", next(done) / steps)

    points: list[StreamPoint] = []
    if sizes:
        points = list(_streamed(device, sizes, step))
    compute: list[ComputePoint] = []
    for kind in needs.kinds:
        step(f"matrix products in {kind}")
        device.release()
        compute += _peaks(device, kind)
    links: list[LinkPoint] = []
    for world in needs.worlds:
        step(f"copies between {world} devices")
        device.release()
        links += [_link(ring) for ring in device.rings(world) if 4 * ring.sent <= device.free_bytes()]
    return Limits(tuple(points), (), tuple(compute), tuple(links))


def _streamed(device: Device, sizes: Sequence[int], step: Callable[[str], None]) -> Iterator[StreamPoint]:
    """Every stream at the sizes, from the smallest on, as far as the device's time for them goes: two sizes always."""
    deadline = time.monotonic() + device.stream_seconds
    streams, arena = list(device.streams()), _Arena(device, max(sizes))
    for number, size in enumerate(sizes):
        step(f"streams of {size / 1e6:.0f} MB")
        if number >= _FEWEST_SIZES and time.monotonic() >= deadline:
            continue
        for stream in streams:
            yield _point(device, arena, stream, size)


def again(device: Device, limits: Limits) -> Limits:
    """The same limits, with the best way of each mix measured once more at some of the larger sizes, as their `end`."""
    largest = max((point.moved for point in limits.best), default=0)
    repeated = [point for point in limits.best if largest // 20 <= point.moved <= largest // 2]
    return replace(limits, end=_repeated(device, repeated, largest))


def remember(machine: Machine, limits: Limits) -> None:
    """Keep the limits in the user's cache folder. Where they can't be written, the next run measures them again."""
    from harness import store

    text = store.dump(_Kept(_SCHEMA, _made_with(machine), replace(limits, end=())))
    kept.write(_file(machine), text.encode())


def recall(machine: Machine) -> Limits | None:
    """The limits that are kept of this machine; None if none are kept, or another harness made them (see `_made_with`).

    Without streams they count as none, since no probe can tell whether they still hold. Limits that can't be true count
    as none, too.
    """
    from harness import store
    from harness.store import soundness

    try:
        found = store.parse(_Kept, kept.read(_file(machine)) or b"")
    except ValueError:
        return None
    fits = found.schema == _SCHEMA and found.made_with == _made_with(machine) and not soundness.of_limits(found.limits)
    return replace(found.limits, cache_bytes=_cache(machine)) if fits and found.limits.points else None


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the file holds."""

    schema: int
    made_with: tuple[tuple[str, str], ...]
    limits: Limits


_NOTHING = Needs(streams=False)


def _made_with(machine: Machine) -> tuple[tuple[str, str], ...]:
    """Names and versions of the software that the limits depend on. Limits that other software made aren't used."""
    return (("torch", dict(machine.versions).get("torch", "")), ("driver", machine.driver))


def _file(machine: Machine) -> str:
    """The name of the file in the cache folder."""
    return f"limits-{machine.kind}-{machine.fingerprint}.json"


def _cache(machine: Machine) -> int:
    """Bytes of the last-level cache of the device that a case runs on."""
    return machine.devices[0].cache_bytes


def _only(limits: Limits, needs: Needs, machine: Machine) -> Limits:
    """The part of the limits that is needed: what else is kept must not change what a run shows."""
    return Limits(
        points=limits.points if needs.streams else (),
        compute=tuple(point for point in limits.compute if point.kind in needs.kinds),
        links=tuple(point for point in limits.links if point.world in needs.worlds),
        cache_bytes=_cache(machine) if needs.streams else 0,
    )


def _holds(device: Device, known: Limits, progress: Progress) -> bool:
    """Whether a probe takes as long as what is kept: by the median over its streams, a large one of each mix."""
    progress("checking whether the machine is as it was", 0.0)
    largest = max(point.moved for point in known.points)
    large = [point for point in known.best if 4 * point.moved <= largest] or known.best
    by_mix = {point.read_share: point for point in large}  # the last of each mix, which is its largest
    repeated = _repeated(device, list(by_mix.values()), largest, device.probe_rounds)
    drift = Limits(known.points, repeated).drift
    return drift is not None and abs(drift) <= device.probe_tolerance


def _repeated(device: Device, points: Sequence[StreamPoint], largest: int, rounds: int = 1) -> tuple[StreamPoint, ...]:
    """The streams of these points measured once more, the best of several rounds; without ways that are gone.

    largest: bytes of the largest stream that was measured then. The memory is as large as then, if that is free: in
    less, fewer sets of buffers have room, which the cache holds a larger part of.
    """
    if not points:
        return ()
    streams = {(stream.way, stream.read_share): stream for stream in device.streams()}
    repeated = [(streams[key], p.moved) for p in points if (key := (p.way, p.read_share)) in streams]
    needed = max(point.moved for point in points)
    arena = _Arena(device, max(needed, min(largest, device.free_bytes() // 2)))
    found = [[_point(device, arena, stream, moved) for stream, moved in repeated] for _ in range(rounds)]
    return tuple(min(tries, key=lambda point: point.seconds) for tries in zip(*found, strict=True))


class _Arena:
    """One allocation that all streams use, so that none of them waits for an allocator."""

    def __init__(self, device: Device, largest: int) -> None:
        import torch

        self.cache_bytes = device.cache_bytes
        size = max(largest, (CACHES + 1) * device.cache_bytes)
        self.data = torch.empty(size // _ELEMENT, device=device.torch_device)
        # Uniform in [0, 1): zeros would stream faster on some devices, and denormals slower on other devices. Repeated,
        # since a CPU makes random numbers more slowly than it copies them.
        generator = torch.Generator(device.torch_device).manual_seed(0)
        block = torch.rand(min(_RANDOM, self.data.numel()), generator=generator, device=device.torch_device)
        for part in self.data.split(_RANDOM):
            part.copy_(block[: part.numel()])

    def sets(self, arrays: int, array_bytes: int) -> list[list[torch.Tensor]]:
        """Disjoint sets of `arrays` arrays, for calls to take in turn; fewer if they don't all fit, at least one."""
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
    batch = device.batch(calls, timer=stream.timer, keep=1, seconds=_BATCH_SECONDS)
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


def _peaks(device: Device, kind: str) -> Iterator[ComputePoint]:
    """Each product of a kind in a burst, and the one with the best rate after a load."""
    bursts: dict[MatrixProduct, float] = {}
    for product in device.products(kind):
        if 2 * product.bytes <= device.free_bytes():
            bursts[product] = _burst_seconds(device, product)
    for product, seconds in bursts.items():
        yield _compute_point(product, seconds)
    if bursts:
        best = max(bursts, key=lambda product: product.operations / bursts[product])
        yield replace(_compute_point(best, _settled_seconds(device, best, bursts[best])), state="settled")


def _compute_point(product: MatrixProduct, seconds: float) -> ComputePoint:
    return ComputePoint(
        product.kind, product.m, product.n, product.k, rate=product.operations / seconds, way=product.way
    )


def _burst_seconds(device: Device, product: MatrixProduct) -> float:
    """Median seconds of a few calls after a rest: no longer than the ops that are compared with it."""
    call = product.prepare()
    call()  # loads the kernel
    [rough] = _consecutive(device, call, 1)
    time.sleep(device.idle_seconds)
    count = _BURST_CALLS if rough < _LONG else _LONG_CALLS
    return statistics.median(_consecutive(device, call, 1 + count)[1:])  # the first one still waits for the host


def _settled_seconds(device: Device, product: MatrixProduct, burst: float) -> float:
    """Median seconds of the last calls of a load, by when power may have lowered the clocks."""
    call = product.prepare()
    count = max(_LONG_CALLS, int(_SETTLED_SECONDS / burst))
    deadline = time.monotonic() + device.load_seconds
    while True:
        seconds = _consecutive(device, call, count)
        if time.monotonic() >= deadline:
            return statistics.median(seconds)


def _consecutive(device: Device, call: Callable[[], object], count: int) -> list[float]:
    """Seconds of each of `count` calls, issued one after the other."""
    marks = [device.clock.mark()]
    for _ in range(count):
        call()
        marks.append(device.clock.mark())
    return device.clock.between(marks)


def _link(ring: Ring) -> LinkPoint:
    """Median time of a ring."""
    run = ring.prepare()
    seconds = statistics.median(run(_SENDS) / _SENDS for _ in range(_SEND_ROUNDS))
    return LinkPoint(ring.world, ring.sent, seconds, ring.way)
