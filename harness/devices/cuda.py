"""An NVIDIA GPU: CUDA graphs and events for time, NVML for facts and clocks."""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from harness.devices import Batch, Stream, _host
from harness.model import Conditions, Machine

if TYPE_CHECKING:
    import torch

# Reasons for a lowered clock that make a time invalid or explain it; idleness and settings made on purpose don't.
_REASONS = {
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "software thermal slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake",
}
_MAX_NODES = 10_000
_FLUSH_FACTOR = 2
_LAUNCH_CALLS = 8
_LONG = 20e-3  # seconds of a call that is timed by itself, since there is nothing to gain from more


class Cuda:
    """The first GPU that CUDA_VISIBLE_DEVICES leaves visible."""

    kind = "cuda"
    ceiling_sizes = tuple(2**exponent for exponent in range(20, 33))
    on_host = False

    @cached_property
    def cache_bytes(self) -> int:
        """Size of the L2."""
        return int(self._properties.l2_cache_size)

    def missing(self) -> str | None:
        """Why there is no GPU to use, from NVML and the environment; None if there is one."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None and (not visible.strip() or visible.strip().startswith("-1")):
            return f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU"
        import pynvml

        try:
            pynvml.nvmlInit()
            return None if pynvml.nvmlDeviceGetCount() else "the NVIDIA driver sees no GPU"
        except pynvml.NVMLError as error:
            return f"no NVIDIA driver answers ({error})"

    def shared(self) -> str | None:
        """How many other processes compute on it, as far as NVML tells."""
        import pynvml

        try:
            others = [p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(self._nvml) if p.pid != os.getpid()]
        except pynvml.NVMLError:
            return None
        return f"{len(others)} other process{'es' if len(others) > 1 else ''} on the GPU" if others else None

    def machine(self) -> Machine:
        """Facts from the driver and NVML."""
        import pynvml

        properties, handle = self._properties, self._nvml
        major, minor = self._device.compute_capability
        uuid = self._device.uuid
        driver = pynvml.nvmlSystemGetDriverVersion()
        name = self._device.name
        return Machine(
            kind=self.kind,
            name=name,
            fingerprint=_host.fingerprint(name, uuid, driver),
            memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
            cache_bytes=self.cache_bytes,
            driver=driver,
            compute_capability=f"{major}.{minor}",
            multiprocessors=properties.multiprocessor_count,
            max_sm_clock_hz=_hertz(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
            max_memory_clock_hz=_hertz(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM),
            power_limit_w=_scaled(1e-3, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
            cpu=_host.cpu_name(),
            cpu_count=_host.cpu_count(),
            host_memory_bytes=_host.memory_bytes(),
            system=_host.system(),
            versions=_host.versions(),
        )

    def conditions(self) -> Conditions:
        """Clocks, temperature, power and what limits the clocks, now. What NVML doesn't tell is None."""
        import pynvml

        handle = self._nvml
        mask = _scaled(1, pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        return Conditions(
            sm_clock_hz=_hertz(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            memory_clock_hz=_hertz(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
            temperature_c=_scaled(1, pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            power_w=_scaled(1e-3, pynvml.nvmlDeviceGetPowerUsage, handle),
            reasons=tuple(text for name, text in _REASONS.items() if int(mask or 0) & getattr(pynvml, name)),
        )

    def free_bytes(self) -> int:
        """Memory free on the device, with what torch keeps for reuse."""
        import torch

        free, _ = torch.cuda.mem_get_info()
        return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())

    @property
    def torch_device(self) -> torch.device:
        """Torch's current CUDA device."""
        import torch

        return torch.device("cuda", torch.cuda.current_device())

    def synchronize(self) -> None:
        """Wait for the device; an error of an earlier kernel surfaces here."""
        import torch

        torch.cuda.synchronize()

    def release(self) -> None:
        """Return torch's cached memory to the device."""
        import torch

        torch.cuda.empty_cache()

    def batch(
        self,
        calls: Sequence[Callable[[], object]],
        *,
        capture: bool,
        keep: int,
        seconds: float,
        agree: Callable[[float], float] = float,
    ) -> Batch:
        """A CUDA graph of many calls, or single launches with the L2 flushed.

        Single ones where calls can't be captured, or take so long that nothing is gained by timing them together.
        """
        each = agree(self._estimate(calls))
        if capture and each < _LONG:
            rounds = max(1, min(math.ceil(seconds / (each * len(calls))), _MAX_NODES // len(calls)))
            with suppress(RuntimeError):
                return _graph_batch(calls, rounds, keep)
        return self._launch_batch(calls, keep, each)

    def streams(self) -> Iterator[Stream]:
        """The driver's copy, as bandwidthTest and as a graph call it, and our kernel at each mix and unrolling."""
        from harness.cuda import memcpy
        from harness.cuda.streams import StreamKernel

        def copying(sources: Sequence[Any], destinations: Sequence[Any]) -> Callable[[], object]:
            return lambda: memcpy(destinations[0], sources[0])

        yield Stream("memcpy", 1, 1, copying, is_copy=True, capture=False)
        yield Stream("memcpy in a graph", 1, 1, copying, is_copy=True)
        for reads, writes in ((1, 0), (3, 1), (2, 1), (1, 1), (0, 1)):
            # One access a thread wins on large arrays; on small ones hints do, and a grid that fits at once.
            for unroll, evict_first in ((1, False), (1, True), (2, True), (4, True)):
                kernel = StreamKernel(reads, writes, unroll, evict_first)
                way = f"kernel, {unroll} x 16 B a thread{', evict-first' if evict_first else ''}"
                yield Stream(way, reads, writes, _bound(kernel))

    @cached_property
    def _device(self) -> Any:
        from harness.cuda import device

        return device()

    @property
    def _properties(self) -> Any:
        return self._device.properties

    @cached_property
    def _nvml(self) -> Any:
        """NVML's handle of CUDA's first device: by UUID, since the two count devices in different orders."""
        import pynvml

        pynvml.nvmlInit()
        uuid = self._device.uuid
        return pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def _estimate(self, calls: Sequence[Callable[[], object]]) -> float:
        """Rough device seconds of one call, warm unless it takes long; at least 1 us."""
        cold = self._mean(calls[:2])
        return cold if cold > _LONG else max(1e-6, self._mean(calls[:_LAUNCH_CALLS]))

    def _mean(self, calls: Sequence[Callable[[], object]]) -> float:
        """Device seconds of a call, over all of them issued one after the other."""
        start, end = _events(2)
        start.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
        elapsed: float = start.elapsed_time(end) * 1e-3
        return elapsed / len(calls)

    def _launch_batch(self, calls: Sequence[Callable[[], object]], keep: int, each: float) -> Batch:
        """Each sample is one call between two events, after the L2 was overwritten; calls rotate over the sets."""
        import torch

        scratch = torch.empty(_FLUSH_FACTOR * self.cache_bytes, dtype=torch.int8, device="cuda")
        kept: deque[Any] = deque(maxlen=max(1, keep))
        turn = 0

        def run(n: int) -> list[float]:
            nonlocal turn
            pairs = [_events(2) for _ in range(n)]
            for start, end in pairs:
                # The fill also keeps the device busy while the host issues the call, so no wait for the host is timed.
                scratch.fill_(1)
                start.record()
                kept.append(calls[turn % len(calls)]())
                end.record()
                turn += 1
            torch.cuda.synchronize()
            return [start.elapsed_time(end) * 1e-3 for start, end in pairs]

        run(min(_LAUNCH_CALLS, 2 * len(calls)) if each < _LONG else 1)
        return Batch(run, 1, "launch", each)


KIND = Cuda


def _graph_batch(calls: Sequence[Callable[[], object]], rounds: int, keep: int) -> Batch:
    """`rounds` passes over the calls in one graph. Each sample is one replay between two events."""
    import torch

    graph = torch.cuda.CUDAGraph()
    # Outputs that the calls make themselves: while the last `keep` live, the allocator can't give their memory to the
    # next call, so outputs rotate like the sets that were made beforehand.
    kept: deque[Any] = deque(maxlen=max(1, keep))
    # torch.cuda.graph() would also empty the allocator's cache, which costs more than many a measurement.
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        try:
            for _ in range(rounds):
                for call in calls:
                    kept.append(call())
        finally:
            graph.capture_end()
    count = rounds * len(calls)

    def run(n: int) -> list[float]:
        events = _events(n + 1)
        # Replays queue up behind each other, so only the first could wait for the host: it isn't timed.
        graph.replay()
        for event in events[:-1]:
            event.record()
            graph.replay()
        events[-1].record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e-3 / count for a, b in itertools.pairwise(events)]

    return Batch(run, count, "graph", run(1)[0] * count)


def _bound(kernel: Any) -> Callable[[Sequence[Any], Sequence[Any]], Callable[[], object]]:
    return lambda sources, destinations: lambda: kernel(sources, destinations)


def _events(n: int) -> list[Any]:
    import torch

    return [torch.cuda.Event(enable_timing=True) for _ in range(n)]


def _scaled(factor: float, query: Callable[..., Any], *arguments: Any) -> float | None:
    """An NVML reading times `factor`; None where this device or driver doesn't have it."""
    import pynvml

    try:
        return float(query(*arguments)) * factor
    except pynvml.NVMLError:
        return None


def _hertz(query: Callable[..., Any], *arguments: Any) -> float | None:
    return _scaled(1e6, query, *arguments)
