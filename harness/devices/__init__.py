"""Kinds of device, one file each, found by name: `cuda.py`, `cpu.py`.

A file defines `KIND` (a Device class) that can be made without torch. Only methods that need a live device import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from harness.discover import discover
from harness.errors import UsageError, nearest
from harness.model import Conditions, Machine

if TYPE_CHECKING:
    import torch


CACHES = 4
"""A rotation's sets of buffers cover together at least this many times the last-level cache."""
FEWEST_SETS = 4
"""Where buffers lie in memory moves a time by some tenths of a percent; a few places average that."""


def covering_sets(cache_bytes: int, set_bytes: int) -> int:
    """How many sets of buffers it takes to cover the cache often enough that no call finds its data there."""
    return -(-CACHES * cache_bytes // set_bytes)


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls made ready to be timed together.

    run(n) gives n samples, each in device seconds per call. calls: how many a sample is the mean of. seconds: what one
    sample takes, roughly.
    """

    run: Callable[[int], list[float]]
    calls: int
    timer: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Stream:
    """A way of streaming through memory: `prepare(sources, destinations)` gives the call to time.

    reads, writes: how many arrays of the same size it reads and writes. is_copy: the library's own copy.
    capture: False for what a graph would slow down or can't hold.
    """

    way: str
    reads: int
    writes: int
    prepare: Callable[[Sequence[Any], Sequence[Any]], Callable[[], object]]
    is_copy: bool = False
    capture: bool = True

    @property
    def read_share(self) -> float:
        """Share of reads in the bytes moved, rounded as in StreamPoint."""
        return round(self.reads / (self.reads + self.writes), 2)


class Device(Protocol):
    """What the harness needs of a kind of device."""

    kind: str
    ceiling_sizes: tuple[int, ...]
    """Total bytes moved at which the ceilings are measured."""
    on_host: bool
    """Whether what else the host does, such as starting a process, disturbs a measurement."""

    @property
    def cache_bytes(self) -> int:
        """Size of the last cache before the memory."""

    def missing(self) -> str | None:
        """Why this kind can't be used here, and what to do; None if it can. Quick, without torch."""

    def shared(self) -> str | None:
        """Who else uses the device now, as far as that can be seen; None if nobody. Quick, without torch."""

    def machine(self) -> Machine:
        """Facts about the device and the host. Without torch."""

    def conditions(self) -> Conditions:
        """Clocks, temperature, power and what limits them, now."""

    def free_bytes(self) -> int:
        """Memory that can be allocated now."""

    @property
    def torch_device(self) -> torch.device: ...

    def synchronize(self) -> None: ...

    def release(self) -> None:
        """Give cached memory back, so that the next case starts clean."""

    def batch(
        self,
        calls: Sequence[Callable[[], object]],
        *,
        capture: bool,
        keep: int,
        seconds: float,
        agree: Callable[[float], float] = float,
    ) -> Batch:
        """Make a batch out of `calls` (one a set of buffers, rotated), about `seconds` long.

        keep: how many of the latest results stay alive, so that outputs made by the calls rotate too. agree: turns a
        time measured here into the one that all ranks of a case go by, so that they make the same number of calls.
        """

    def streams(self) -> Iterator[Stream]:
        """The ways of streaming, for the ceilings."""


def kinds() -> dict[str, Device]:
    """Every kind of device by name, the preferred one first."""
    found = {}
    for module in discover(__name__, ["KIND"]).values():
        device: Device = module.KIND()
        found[device.kind] = device
    return {name: found[name] for name in sorted(found, key=lambda name: name == "cpu")}


def choose(requested: str | None) -> str:
    """The kind to use: the requested one, else the first that works here.

    Raises UsageError for a kind that is unknown or isn't here.
    """
    available = kinds()
    if requested is None:
        return next(name for name, device in available.items() if device.missing() is None)
    if requested not in available:
        raise UsageError(f"no device named '{requested}'", nearest(requested, available))
    if reason := available[requested].missing():
        raise UsageError(f"device '{requested}' can't be used: {reason}", "run 'harness env' for the whole picture")
    return requested
