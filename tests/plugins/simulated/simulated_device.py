"""A device of a package whose clock is simulated: what is issued takes its bytes over BANDWIDTH, nothing else.

Its tensors lie in the host's memory, where torch computes. Bytes are counted for each call of torch that reaches the
dispatcher: every tensor that goes in or comes out, once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from harness.devices import Batch, Fact, MatrixProduct, Ring, Stream, replay_batch, steady_batch
from harness.devices.cpu import Cpu
from harness.model import Conditions, DeviceFacts, Machine, Timer
from harness.ranks import ALONE, Group

if TYPE_CHECKING:
    import torch

BANDWIDTH = float(os.environ.get("SIMULATED_BANDWIDTH", "1e12"))
"""Bytes a second."""


class SimulatedClock:
    """Seconds that the device has worked."""

    now = 0.0

    def mark(self) -> float:
        return self.now

    def between(self, marks: Sequence[float]) -> list[float]:
        return [later - earlier for earlier, later in pairwise(marks)]


class Simulated:
    """A device that streams as fast as SIMULATED_BANDWIDTH says."""

    kind = "simulated"
    stream_sizes = (2**16, 2**18)
    stream_seconds = 1.0
    load_seconds = 0.0
    idle_seconds = 0.0
    probe_rounds = 1
    probe_tolerance = 0.01
    on_host = False
    is_asynchronous = False
    launch_seconds = 3e-6
    counters = "stopwatch"
    count: int | None = 1
    cache_bytes = 2**16
    hardware = tuple(os.environ.get("SIMULATED_HARDWARE", "").split())

    def __init__(self) -> None:
        self.clock = SimulatedClock()

    def use(self, index: int) -> None:
        pass

    def missing(self) -> str | None:
        return "SIMULATED_BANDWIDTH is 0" if not BANDWIDTH else None

    def shared(self) -> str | None:
        return None

    def software(self) -> Iterator[Fact]:
        yield Fact("simulator", f"{BANDWIDTH:g} bytes a second")

    def machine(self) -> Machine:
        facts = DeviceFacts("A simulated device", 2**33, self.cache_bytes)
        return replace(Cpu().machine(), kind=self.kind, fingerprint="simulated", devices=(facts,))

    def conditions(self) -> Conditions:
        return Conditions()

    def free_bytes(self) -> int:
        return 2**30

    @property
    def torch_device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def synchronize(self) -> None:
        pass

    def watched(self) -> AbstractContextManager[None]:
        return nullcontext()

    def mark(self, number: int, calls: int) -> None:
        pass

    def release(self) -> None:
        pass

    def batch(
        self,
        calls: Sequence[Callable[[], object]],
        *,
        timer: Timer,
        keep: int,
        seconds: float,
        group: Group = ALONE,
    ) -> Batch:
        charged = [partial(self._charge, call) for call in calls]
        if timer == "steady":
            return steady_batch(self.clock, charged, keep=keep, seconds=seconds, group=group)
        return replay_batch(self.clock, lambda: [call() for call in charged], len(charged))

    def streams(self) -> Iterator[Stream]:
        yield Stream("copy", 1, 1, lambda s, d: partial(d[0].copy_, s[0]), is_copy=True)
        yield Stream("fill", 0, 1, lambda _, d: partial(d[0].fill_, 1.0))

    def products(self, kind: str) -> Iterator[MatrixProduct]:
        return iter(())

    def rings(self, world: int) -> Iterator[Ring]:
        return iter(())

    def _charge(self, call: Callable[[], object]) -> object:
        with _charging()(self.clock):
            return call()


KIND = Simulated


@cache
def _charging() -> Any:
    """The context in which calls of torch take time. Made when torch is there."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Charging(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self, clock: SimulatedClock) -> None:
            super().__init__()
            self._clock = clock

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            tensors = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, torch.Tensor)]
            moved = sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
            self._clock.now += moved / BANDWIDTH
            return found

    return Charging
