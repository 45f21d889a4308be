"""The host's processor: a monotonic clock, and the last-level cache in place of the L2."""

from __future__ import annotations

import ctypes
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.devices import Batch, Stream, _host
from harness.model import Conditions, Machine

if TYPE_CHECKING:
    import torch

_MIB = 2**20
_SHORTEST = 1e-3  # seconds of a batch below which the clock's own cost would show


class Cpu:
    """All processors that this process may use, through torch's thread pool."""

    kind = "cpu"
    ceiling_sizes = tuple(2**exponent for exponent in range(20, 29, 2))
    on_host = True

    @property
    def cache_bytes(self) -> int:
        """Size of the largest cache, in bytes; 32 MiB where the system doesn't tell."""
        caches = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
        return max((_parse_size(path.read_text()) for path in caches), default=32 * _MIB)

    def missing(self) -> str | None:
        """Never: there is always a processor."""
        return None

    def shared(self) -> str | None:
        """Not to be told from what the system always does."""
        return None

    def machine(self) -> Machine:
        """Facts about the host."""
        import platform

        name, count, memory = _host.cpu_name(), _host.cpu_count(), _host.memory_bytes()
        return Machine(
            kind=self.kind,
            name=name,
            fingerprint=_host.fingerprint(name, count, memory, platform.node()),
            memory_bytes=memory,
            cache_bytes=self.cache_bytes,
            cpu=name,
            cpu_count=count,
            host_memory_bytes=memory,
            system=_host.system(),
            versions=_host.versions(),
        )

    def conditions(self) -> Conditions:
        """Nothing that can be read everywhere."""
        return Conditions()

    def free_bytes(self) -> int:
        """Memory available without swapping."""
        return _host.available_bytes()

    @property
    def torch_device(self) -> torch.device:
        """Torch's CPU device."""
        import torch

        return torch.device("cpu")

    def synchronize(self) -> None:
        """Nothing to wait for: calls return when they are done."""

    def release(self) -> None:
        """Nothing is kept."""

    def batch(
        self,
        calls: Sequence[Callable[[], object]],
        *,
        capture: bool,  # noqa: ARG002 - there are no graphs here
        keep: int,
        seconds: float,
        agree: Callable[[float], float] = float,
    ) -> Batch:
        """Calls in rotation, timed together by a monotonic clock."""
        kept: deque[Any] = deque(maxlen=max(1, keep))
        rounds = 1
        while True:
            elapsed = agree(_time(calls, rounds, kept))
            if elapsed >= min(seconds, _SHORTEST):
                break
            rounds *= 2
        count = max(1, math.ceil(rounds * seconds / elapsed)) if elapsed < seconds else rounds
        per_sample = count * len(calls)
        each = elapsed / (rounds * len(calls))
        return Batch(
            lambda n: [_time(calls, count, kept) / per_sample for _ in range(n)], per_sample, "host", per_sample * each
        )

    def streams(self) -> Iterator[Stream]:
        """The C library's copy, and torch's threaded kernels for each mix of reads and writes."""
        import torch

        yield Stream("memcpy", 1, 1, _memmove, is_copy=True)
        yield Stream("torch copy_", 1, 1, lambda s, d: partial(d[0].copy_, s[0]), is_copy=True)
        yield Stream("torch dot", 1, 0, lambda s, _: lambda: torch.dot(s[0], s[0]))
        yield Stream("torch sum", 1, 0, lambda s, _: s[0].sum)
        yield Stream("torch fill_", 0, 1, lambda _, d: lambda: d[0].fill_(1.0))
        yield Stream("torch add", 2, 1, lambda s, d: lambda: torch.add(s[0], s[1], out=d[0]))
        yield Stream("torch addcmul", 3, 1, lambda s, d: lambda: torch.addcmul(s[0], s[1], s[2], out=d[0]))


KIND = Cpu


def _memmove(sources: Sequence[Any], destinations: Sequence[Any]) -> Callable[[], object]:
    to, of, size = destinations[0].data_ptr(), sources[0].data_ptr(), sources[0].nbytes
    return lambda: ctypes.memmove(to, of, size)


def _time(calls: Sequence[Callable[[], object]], rounds: int, kept: deque[Any]) -> float:
    """Seconds for `rounds` passes over all calls. What they return stays alive in `kept`."""
    start = time.perf_counter()
    for _ in range(rounds):
        for call in calls:
            kept.append(call())
    return time.perf_counter() - start


def _parse_size(text: str) -> int:
    number, unit = text.strip()[:-1], text.strip()[-1]
    return int(number) * {"K": 2**10, "M": 2**20, "G": 2**30}[unit]
