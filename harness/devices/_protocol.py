"""What the harness needs of a kind of device, and what it hands to a device: the words of `harness.devices`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from harness.model import Conditions, Machine, Timer
from harness.ranks import ALONE, Group

if TYPE_CHECKING:
    import torch


CACHES = 4
"""The sets of buffers that calls rotate over are together at least this many times as large as the last-level cache."""
FEWEST_SETS = 4
"""The fewest sets of buffers: their addresses change a time by some tenths of a percent, which a few sets average."""


def covering_sets(cache_bytes: int, set_bytes: int) -> int:
    """How many sets of buffers it takes to cover the cache often enough that no call finds its data there."""
    return -(-CACHES * cache_bytes // set_bytes)


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls made ready to be timed together.

    run(n) gives n samples, each in device seconds per call. calls: a sample is the mean of so many calls. seconds: what
    one sample takes, roughly. not_captured: why there is no graph, if one was asked for. replay: makes the calls of a
    sample as they were timed, where they are in a graph; None where they are made one by one.
    """

    run: Callable[[int], list[float]]
    calls: int
    timer: Timer
    seconds: float
    not_captured: str = ""
    replay: Callable[[], object] | None = None


class Clock(Protocol):
    """Tells how long the device took for what was issued between two marks."""

    def mark(self) -> Any:
        """Mark what was issued so far, without waiting for it."""

    def between(self, marks: Sequence[Any]) -> list[float]:
        """Seconds from each mark to the next. Waits for the last one."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A way of streaming through memory: `prepare(sources, destinations)` gives the call to time.

    reads, writes: how many arrays of the same size it reads and writes. is_copy: the library's own copy.
    timer: 'launch' for what a graph would slow down or can't hold.
    """

    way: str
    reads: int
    writes: int
    prepare: Callable[[Sequence[Any], Sequence[Any]], Callable[[], object]]
    is_copy: bool = False
    timer: Timer = "graph"

    @property
    def read_share(self) -> float:
        """Share of reads in the bytes moved, rounded as in StreamPoint."""
        return round(self.reads / (self.reads + self.writes), 2)


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A matrix product of the library, m x k times k x n, in the type `kind`: `prepare()` gives the call to time.

    bytes: memory that its matrices take.
    """

    kind: str
    way: str
    m: int
    n: int
    k: int
    bytes: int
    prepare: Callable[[], Callable[[], object]]

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Ring:
    """A way in which each of `world` devices sends `sent` bytes to the next one, all at the same time.

    `prepare()` gives `run(times)`, which does that so often, one after the other, and gives the seconds of all of them.
    """

    world: int
    sent: int
    way: str
    prepare: Callable[[], Callable[[int], float]]


MARK = "harness_mark"
"""The kernel that is launched before the calls of a case, where a profiler watches. Its number of blocks is the case's
number, counted from 1; its number of threads a block is the number of the case's calls. So a list of kernels tells
which case each kernel belongs to."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that 'harness env' looks at. `advice` says what to do if it is missing; empty if it isn't."""

    name: str
    value: str
    advice: str = ""


class Device(Protocol):
    """What the harness needs of a kind of device. If there are several devices, methods are about the one in use."""

    kind: str
    stream_sizes: tuple[int, ...]
    """Total bytes moved at which streams are measured."""
    stream_seconds: float
    """How long measuring streams may take; then the largest sizes are left out."""
    load_seconds: float
    """How long a matrix product is repeated until the device counts as settled."""
    idle_seconds: float
    """How long the device rests before a burst of matrix products."""
    probe_rounds: int
    """How often a stream of a probe is measured; the best counts."""
    probe_tolerance: float
    """Median relative change of a probe's streams up to which the machine counts as unchanged."""
    on_host: bool
    """Whether the device is the host's processor: other work of the host, such as starting a process, disturbs it."""
    is_asynchronous: bool
    """Whether calls may return before their work is done, in a time that the host's clock measures, too."""
    launch_seconds: float
    """What one kernel more in a graph takes where nothing shorter was measured; 0 where calls launch no kernels."""
    counters: str
    """The tool of 'harness profile' that reads the hardware counters of this kind; '' if there is none."""

    @property
    def count(self) -> int | None:
        """How many devices there are, one for each rank; None if all ranks share one. Without torch."""

    @property
    def hardware(self) -> tuple[str, ...]:
        """A name for each device that only one command may measure on at a time; the same name in every process.

        Empty where the devices can't be held, as the host's processor. Without torch.
        """

    @property
    def clock(self) -> Clock: ...

    @property
    def cache_bytes(self) -> int:
        """Size of the last cache before the memory."""

    def use(self, index: int) -> None:
        """Work on the device with this index from now on."""

    def missing(self) -> str | None:
        """Why this kind can't be used here, and what to do; None if it can. Quick, without torch."""

    def shared(self) -> str | None:
        """Who else uses the devices now, as far as that can be seen; None if nobody. Quick, without torch."""

    def software(self) -> Iterator[Fact]:
        """What this kind needs installed, such as a driver or a compiler, found or missing. Without torch."""

    def machine(self) -> Machine:
        """Facts about all devices of this kind and the host. Without torch."""

    def conditions(self) -> Conditions:
        """Clocks, temperature, power and what limits them, now."""

    def free_bytes(self) -> int:
        """Memory that can be allocated now."""

    @property
    def torch_device(self) -> torch.device: ...

    def synchronize(self) -> None: ...

    def watched(self) -> AbstractContextManager[None]:
        """What runs in it is what a profiler should record, if one was told to wait for that."""

    def mark(self, number: int, calls: int) -> None:
        """Launch the kernel MARK, which tells a profiler that so many calls of the case of this number follow.

        number counts from 1. Does nothing for a kind whose kernels no profiler of ours lists.
        """

    def release(self) -> None:
        """Give cached memory back, so that the next case starts clean."""

    def batch(
        self,
        calls: Sequence[Callable[[], object]],
        *,
        timer: Timer,
        keep: int,
        seconds: float,
        group: Group = ALONE,
    ) -> Batch:
        """Make a batch, about `seconds` long, that rotates over `calls`: one call for each set of buffers.

        timer: how to time them; the batch may take another timer, which it names. keep: how many of the latest results
        stay alive, so that outputs made by the calls rotate too. group: the ranks of the case, which must all make the
        same calls.
        """

    def streams(self) -> Iterator[Stream]:
        """The ways of streaming through memory."""

    def products(self, kind: str) -> Iterator[MatrixProduct]:
        """Matrix products in a type, from the shortest to the longest; none where device or torch can't do it."""

    def rings(self, world: int) -> Iterator[Ring]:
        """The ways in which so many devices send to each other; none where there aren't so many."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the device or the host."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # Neither the CPU's allocator nor a CUDA call, such as the one that makes a graph, has an error class for it.
    text = str(error)
    return isinstance(error, RuntimeError) and ("DefaultCPUAllocator" in text or "CUDA error: out of memory" in text)
