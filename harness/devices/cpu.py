"""The host's processor: timed by a monotonic clock, with its last-level cache in place of the L2."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.devices import Batch, Clock, Fact, MatrixProduct, Ring, Stream, _host
from harness.devices._timing import HostClock, host_batch, steady_batch
from harness.model import Conditions, DeviceFacts, Machine, Timer
from harness.ranks import ALONE, Group

if TYPE_CHECKING:
    import torch

_MIB = 2**20
_ITEMSIZE = {"float32": 4, "bfloat16": 2}


class Cpu:
    """All processors that this process may use, through torch's thread pool."""

    kind = "cpu"
    stream_sizes = tuple(2**exponent for exponent in range(20, 29, 2))
    stream_seconds = 8.0  # about twice as long as it takes on two processors with no other work
    product_sizes: tuple[int, ...] = (512, 1024)
    """Sides of the square matrices that are multiplied: small, so that all of them take less than a second."""
    load_seconds = 0.1
    idle_seconds = 0.0
    # Other work of the host takes processors, caches and memory away: the median of one stream may differ by 10% and
    # more from one time to the next. The best of several times is nearer to what the machine can do. It repeats within
    # 1% only on a machine with no other work, which a desktop or a rented machine isn't.
    probe_rounds = 3
    probe_tolerance = 0.1
    on_host = True
    is_asynchronous = False
    launch_seconds = 0.0
    counters = ""
    count: int | None = None
    hardware: tuple[str, ...] = ()  # whoever uses the machine uses the processor
    clock: Clock = HostClock()

    @property
    def cache_bytes(self) -> int:
        """Size of the largest cache, in bytes; 32 MiB where the system doesn't tell."""
        caches = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
        return max((_parse_size(path.read_text()) for path in caches), default=32 * _MIB)

    def use(self, index: int) -> None:
        """Do nothing: all ranks share the processors."""

    def missing(self) -> str | None:
        """None: there is always a processor."""
        return None

    def shared(self) -> str | None:
        """None: processes of other users can't be told from processes that the system always runs."""
        return None

    def software(self) -> Iterator[Fact]:
        """Nothing: torch brings all that it takes."""
        return iter(())

    def machine(self) -> Machine:
        """Facts about the host."""
        import platform

        name, count, memory = _host.cpu_name(), _host.cpu_count(), _host.memory_bytes()
        return Machine(
            kind=self.kind,
            fingerprint=_host.fingerprint(name, count, memory, platform.node()),
            devices=(DeviceFacts(name=name, memory_bytes=memory, cache_bytes=self.cache_bytes),),
            cpu=name,
            cpu_count=count,
            host_memory_bytes=memory,
            system=_host.system(),
            versions=_host.versions(),
        )

    def conditions(self) -> Conditions:
        """No state is known: none can be read on every system."""
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
        """Do nothing: calls return when they are done."""

    def watched(self) -> AbstractContextManager[None]:
        """Nothing: no profiler of processors waits to be told."""
        return nullcontext()

    def mark(self, number: int, calls: int) -> None:
        """Do nothing: no profiler lists kernels of a processor."""

    def release(self) -> None:
        """Do nothing: no memory is kept."""

    def batch(
        self,
        calls: Sequence[Callable[[], object]],
        *,
        timer: Timer,
        keep: int,
        seconds: float,
        group: Group = ALONE,
    ) -> Batch:
        """Calls in rotation: in blocks for the timer 'steady'; for any other timer as 'host', by a monotonic clock."""
        if timer == "steady":
            return steady_batch(self.clock, calls, keep=keep, seconds=seconds, group=group)
        return host_batch(calls, keep=keep, seconds=seconds, group=group)

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

    def products(self, kind: str) -> Iterator[MatrixProduct]:
        """Square matrices through torch.mm."""
        for size in self.product_sizes if kind in _ITEMSIZE else ():
            memory = 3 * size**2 * _ITEMSIZE[kind]
            yield MatrixProduct(kind, "torch.mm", size, size, size, memory, partial(_mm, kind, size))

    def rings(self, world: int) -> Iterator[Ring]:  # noqa: ARG002 - the same for every world
        """None: ranks share one memory."""
        return iter(())


KIND = Cpu


def _mm(kind: str, size: int) -> Callable[[], object]:
    import torch

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).to(getattr(torch, kind)) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _memmove(sources: Sequence[Any], destinations: Sequence[Any]) -> Callable[[], object]:
    to, of, size = destinations[0].data_ptr(), sources[0].data_ptr(), sources[0].nbytes
    return lambda: ctypes.memmove(to, of, size)


def _parse_size(text: str) -> int:
    number, unit = text.strip()[:-1], text.strip()[-1]
    return int(number) * {"K": 2**10, "M": 2**20, "G": 2**30}[unit]
