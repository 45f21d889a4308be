"""An NVIDIA GPU: CUDA graphs and events for time, NVML for facts and clocks."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.devices import MARK, Batch, Clock, Fact, MatrixProduct, Ring, Stream, _host, _queues, _software
from harness.devices._links import rings
from harness.devices._matrices import products
from harness.devices._timing import (
    LONG,
    LONGEST_PASS,
    estimate,
    host_batch,
    launch_batch,
    on_all_ranks,
    replay_batch,
    steady_batch,
)
from harness.model import Conditions, DeviceFacts, Machine, Timer
from harness.ranks import ALONE, Group

if TYPE_CHECKING:
    import torch

# Reasons for lowered clocks that make a time invalid or explain it. An idle device and settings of users don't.
_REASONS = {
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "software thermal slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake",
}
_MARK = Path(__file__).parents[1] / "cuda" / "mark.cu"
_MAX_NODES = 10_000
_FLUSH_FACTOR = 2


class Events:
    """CUDA events on torch's current stream."""

    def mark(self) -> torch.cuda.Event:
        """Record an event."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, marks: Sequence[torch.cuda.Event]) -> list[float]:
        """Seconds from each event to the next."""
        marks[-1].synchronize()
        return [a.elapsed_time(b) * 1e-3 for a, b in pairwise(marks)]


class Cuda:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, of which torch's current one is in use; at first the first."""

    kind = "cuda"
    stream_sizes = tuple(2**exponent for exponent in range(20, 33))
    stream_seconds = math.inf  # other work of the host can't slow them down
    load_seconds = 2.0
    idle_seconds = 0.2
    probe_rounds = 1
    probe_tolerance = 0.01
    on_host = False
    is_asynchronous = True
    launch_seconds = 2e-6  # from one kernel's end to the end of an empty one after it, in a graph
    counters = "ncu"
    clock: Clock = Events()

    @property
    def count(self) -> int:
        """How many GPUs are visible."""
        from harness import cuda

        return len(cuda.devices())

    @property
    def hardware(self) -> tuple[str, ...]:
        """The UUIDs of the visible GPUs: their numbers depend on CUDA_VISIBLE_DEVICES. None without a driver."""
        if self.missing():
            return ()
        from harness import cuda

        return tuple(f"GPU {device.uuid.removeprefix('GPU-')}" for device in cuda.devices())

    @property
    def cache_bytes(self) -> int:
        """Size of the L2."""
        from harness import cuda

        return int(cuda.device().properties.l2_cache_size)

    def use(self, index: int) -> None:
        """Make this GPU torch's current one, and with it our kernels' current one."""
        import torch

        torch.cuda.set_device(index)

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
        """How many other processes compute on the visible GPUs, as far as NVML tells."""
        import pynvml

        from harness import cuda

        others: set[int] = set()
        devices = cuda.devices()
        for device in devices:
            with suppress(pynvml.NVMLError):
                others |= {p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(_handle(device))}
        others -= {os.getpid()}
        if not others:
            return None
        return f"{len(others)} other process{'es' * (len(others) > 1)} on the GPU{'s' * (len(devices) > 1)}"

    def software(self) -> Iterator[Fact]:
        """The driver, what compiles our kernels, and what launches them."""
        yield _software.driver()
        yield from _software.compiler()
        yield _software.launcher()

    def machine(self) -> Machine:
        """Facts from the driver and NVML. The fingerprint is made of the GPUs' names and UUIDs, and the driver."""
        import pynvml

        from harness import cuda

        devices = cuda.devices()
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        identity = [part for device in devices for part in (device.name, device.uuid)]
        return Machine(
            kind=self.kind,
            fingerprint=_host.fingerprint(*identity, driver),
            devices=tuple(map(_facts, devices)),
            driver=driver,
            cpu=_host.cpu_name(),
            cpu_count=_host.cpu_count(),
            host_memory_bytes=_host.memory_bytes(),
            system=_host.system(),
            versions=_host.versions(),
        )

    def conditions(self) -> Conditions:
        """Clocks, temperature, power and what limits the clocks, now. What NVML doesn't tell is None."""
        import pynvml

        from harness import cuda

        handle = _handle(cuda.device())
        processes: list[Any] = []
        with suppress(pynvml.NVMLError):
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        mask = _scaled(1, pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        return Conditions(
            sm_clock_hz=_hertz(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            memory_clock_hz=_hertz(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
            temperature_c=_scaled(1, pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            power_w=_scaled(1e-3, pynvml.nvmlDeviceGetPowerUsage, handle),
            reasons=tuple(text for name, text in _REASONS.items() if int(mask or 0) & getattr(pynvml, name)),
            # One is this process, whose number may be another one where NVML counts: outside of the container.
            others=max(0, len(processes) - 1),
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

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A range of the CUDA profiler, of which nsys (--capture-range) and ncu (--profile-from-start off) know."""
        import torch

        torch.cuda.profiler.start()
        try:
            yield
            self.synchronize()  # what was issued must run before the recording ends
        finally:
            torch.cuda.profiler.stop()

    def mark(self, number: int, calls: int) -> None:
        """Launch the kernel, for ncu and nsys."""
        from harness import cuda

        cuda.load(_MARK, MARK, {})(number, calls)

    def release(self) -> None:
        """Return torch's cached memory to the device."""
        import torch

        torch.cuda.empty_cache()

    def batch(
        self,
        calls: Sequence[Callable[[], object]],
        *,
        timer: Timer,
        keep: int,
        seconds: float,
        group: Group = ALONE,
    ) -> Batch:
        """A CUDA graph of many calls, blocks of calls, or single launches with the L2 flushed.

        Instead of a graph, single launches: where a rank can't capture the calls, or where they take so long that
        nothing is gained by timing them together. Out of memory is raised.
        """
        self._fill_queues()
        if timer == "host":
            return host_batch(calls, keep=keep, seconds=seconds, group=group, wait=self.synchronize)
        if timer == "steady":
            return steady_batch(self.clock, calls, keep=keep, seconds=seconds, group=group)
        each = estimate(self.clock, calls, group)
        reason = ""
        if timer == "graph" and each < LONG and each * len(calls) < LONGEST_PASS:
            rounds = max(1, min(math.ceil(seconds / (each * len(calls))), _MAX_NODES // len(calls)))
            replay, reason = on_all_ranks(partial(self._capture, calls, rounds, keep, group), group)
            if replay:
                return replay_batch(self.clock, replay, rounds * len(calls))
        batch = launch_batch(self.clock, calls, self._flush(), keep=keep, each=each)
        return replace(batch, not_captured=reason)

    def streams(self) -> Iterator[Stream]:
        """The driver's copy, as bandwidthTest and as a graph call it, and our kernel at each mix and unrolling."""
        from harness.cuda import memcpy
        from harness.cuda.streams import StreamKernel

        def copying(sources: Sequence[Any], destinations: Sequence[Any]) -> Callable[[], object]:
            return lambda: memcpy(destinations[0], sources[0])

        yield Stream("memcpy", 1, 1, copying, is_copy=True, timer="launch")
        yield Stream("memcpy in a graph", 1, 1, copying, is_copy=True)
        for reads, writes in ((1, 0), (3, 1), (2, 1), (1, 1), (0, 1)):
            # On large arrays one access a thread is fastest; on small ones several, with cache hints.
            for unroll, evict_first in ((1, False), (1, True), (2, True), (4, True)):
                kernel = StreamKernel(reads, writes, unroll, evict_first)
                way = f"kernel, {unroll} x 16 B a thread{', evict-first' if evict_first else ''}"
                yield Stream(way, reads, writes, _bound(kernel))

    def products(self, kind: str) -> Iterator[MatrixProduct]:
        """Products of torch, if the GPU in use can do the kind."""
        from harness import cuda

        major, minor = cuda.device().compute_capability
        return products(kind, (major, minor))

    def rings(self, world: int) -> Iterator[Ring]:
        """Copies from each GPU to the next."""
        return rings(world) if 1 < world <= self.count else iter(())

    def _capture(
        self, calls: Sequence[Callable[[], object]], rounds: int, keep: int, group: Group
    ) -> Callable[[], object]:
        """Capture `rounds` passes over the calls into one graph; gives the call that replays it."""
        import torch

        graph = torch.cuda.CUDAGraph()
        # Calls may make their outputs themselves. While the last `keep` outputs are alive, the allocator can't give
        # their memory to the next call, so outputs rotate as the sets of buffers do.
        kept: deque[Any] = deque(maxlen=max(1, keep))
        # torch.cuda.graph() would also empty the allocator's cache, which takes longer than many measurements.
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            # With several ranks, a thread of NCCL queries its own events during the capture, which 'global' forbids.
            graph.capture_begin(capture_error_mode="thread_local" if group.size > 1 else "global")
            try:
                for _ in range(rounds):
                    for call in calls:
                        kept.append(call())
            except BaseException:
                # Ending a capture that failed raises an error too, which would hide the reason.
                with suppress(RuntimeError):
                    graph.capture_end()
                _end_capture_of_random_numbers()
                raise
            try:
                graph.capture_end()
            except RuntimeError:
                _end_capture_of_random_numbers()
                raise
        replay: Callable[[], object] = graph.replay
        return replay

    def _fill_queues(self) -> None:
        _queues.fill(self.torch_device.index)

    def _flush(self) -> Callable[[], object]:
        """A call that overwrites the L2."""
        import torch

        scratch = torch.empty(_FLUSH_FACTOR * self.cache_bytes, dtype=torch.int8, device="cuda")
        return lambda: scratch.fill_(1)


KIND = Cuda


def _end_capture_of_random_numbers() -> None:
    """Give torch's generator a state outside of a capture. A capture that fails leaves the old state within it.

    Then torch.randn() would fail from there on, in a process that may be a user's own.
    """
    import torch

    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def _bound(kernel: Any) -> Callable[[Sequence[Any], Sequence[Any]], Callable[[], object]]:
    return lambda sources, destinations: lambda: kernel(sources, destinations)


def _facts(device: Any) -> DeviceFacts:
    """What the driver and NVML tell of one GPU."""
    import pynvml

    handle, properties = _handle(device), device.properties
    major, minor = device.compute_capability
    return DeviceFacts(
        name=device.name,
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        cache_bytes=int(properties.l2_cache_size),
        compute_capability=f"{major}.{minor}",
        multiprocessors=properties.multiprocessor_count,
        max_sm_clock_hz=_hertz(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        max_memory_clock_hz=_hertz(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        power_limit_w=_scaled(1e-3, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
    )


def _handle(device: Any) -> Any:
    """NVML's handle of a GPU: by UUID, since NVML and CUDA count devices in different orders."""
    return _handle_of(device.uuid)


@cache
def _handle_of(uuid: str) -> Any:
    import pynvml

    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")


def _scaled(factor: float, query: Callable[..., Any], *arguments: Any) -> float | None:
    """An NVML reading times `factor`; None where this device or driver doesn't have it."""
    import pynvml

    try:
        return float(query(*arguments)) * factor
    except pynvml.NVMLError:
        return None


def _hertz(query: Callable[..., Any], *arguments: Any) -> float | None:
    return _scaled(1e6, query, *arguments)
