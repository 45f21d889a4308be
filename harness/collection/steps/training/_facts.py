"""Figures that steps and inference report of themselves: memory, energy, a busy GPU, and how far off losses are."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from harness import metrics, units
from harness.collection.steps.training._figures import ACTIVATIONS, ENERGY, PEAK_MEMORY, WEIGHTS
from harness.ops import Context

OFF = "loss_distance"
BUSY = "device_busy"
SKIPPED = "skipped_steps"
Made = TypeVar("Made")
_MADE = "allocated_bytes.all.allocated"
"""The allocator's count of all bytes that tensors were ever given."""
_SECONDS = 2.0
"""Seconds of steps whose energy is measured: enough that the counter moves many times."""
_SMALLEST = 2.0**-149
"""The smallest float32 above 0."""
_PROFILED = 5
"""Steps that the profiler watches: they differ little."""

metrics.fact(
    OFF,
    "distance of losses",
    units.SHARE,
    "how far the first steps' losses are from the losses of float32 at most, over what the losses of float32 fall by",
)
metrics.fact(
    BUSY,
    "device busy",
    units.SHARE,
    "the share of a step's time in which the GPU runs a kernel or copies; in the rest it waits for the host, or in a "
    "graph for the next kernel's start",
)
metrics.fact(
    SKIPPED,
    "skipped steps",
    units.COUNT,
    "steps whose gradients overflowed, so that they changed no weight; they take less time than other steps",
)


def report_skipped(ctx: Context, begun: float, scale: float) -> None:
    """Report how many steps were skipped, if any was: each halves the scale of the loss, and nothing else changes it.

    begun: the scale before the first step. scale: that after the last one, which is 0 after very many.
    """
    if scale != begun:
        ctx.report(SKIPPED, round(math.log2(begun / max(scale, _SMALLEST))))


def allocated(ctx: Context) -> int:
    """Bytes that tensors take on the GPU when all is forgotten that earlier cases may have left; 0 on a CPU.

    A case is to find the same GPU whichever cases came before it, or its peak memory would depend on them.
    """
    import torch

    if ctx.device.type != "cuda":
        return 0
    from harness.collection.nn._memory import forget

    gc.collect()
    forget()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_allocated())


def with_memory(ctx: Context, steps: Callable[[], Made], before: int = 0) -> Made:
    """What `steps` gives. Its peak memory is reported, on a GPU; a captured graph's is what its capture took.

    before: bytes that were allocated before the case was prepared (`allocated`). They aren't the case's.
    """
    import torch

    if ctx.device.type != "cuda":
        return steps()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    made = steps()
    torch.cuda.synchronize()
    ctx.report(PEAK_MEMORY, torch.cuda.max_memory_allocated() - before)
    return made


def report_bytes(ctx: Context, model: Any, call: Callable[[], object]) -> None:
    """Report the bytes of a model's weights, and on a GPU the bytes of all tensors that a call of it makes.

    model: a module, or what tells its `weight_bytes`.
    """
    import torch

    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    ctx.report(WEIGHTS, getattr(model, "weight_bytes", sum(one.numel() * one.element_size() for one in parameters)))
    if ctx.device.type == "cuda":
        before = torch.cuda.memory_stats()[_MADE]
        call()
        ctx.report(ACTIVATIONS, torch.cuda.memory_stats()[_MADE] - before)


def report_steps(ctx: Context, step: Callable[[], object], items: int) -> None:
    """Make steps for about `_SECONDS`; report their energy an item, if the GPU counts it, and how busy the GPU is.

    The steps come after the timed steps, so that no timed step depends on them. Nothing is reported on a
    CPU. Of several GPUs, how busy each of them is isn't reported: a kernel that waits for another rank would count.
    """
    import torch

    if ctx.device.type != "cuda":
        return
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    # Several ranks wait for each other in each step, so all make as many.
    count = math.ceil(ctx.group.agree(_SECONDS / (time.perf_counter() - start)))
    begin, start = _joules(), time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    seconds, end = (time.perf_counter() - start) / count, _joules()
    if begin is not None and end is not None and end > begin:
        ctx.report(ENERGY, (end - begin) / (count * items))
    if busy := _busy_seconds(step) if ctx.group.size == 1 else 0.0:
        ctx.report(BUSY, min(1.0, busy / seconds))


def _busy_seconds(step: Callable[[], object]) -> float:
    """Seconds of a step in which the GPU does anything; 0 where the profiler isn't let at it.

    Only what the GPU does is taken from the profiler: it takes the host some time, so steps last longer under it.
    """
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    profiler = profile(activities=[ProfilerActivity.CUDA])
    try:
        profiler.start()
    except RuntimeError:
        return 0.0
    for _ in range(_PROFILED):
        step()
    torch.cuda.synchronize()
    profiler.stop()
    # An annotation of the host's code lies on the GPU's time line as well, from its first kernel to its last one's end.
    ranges = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]
    return covered(ranges) * 1e-6 / _PROFILED


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """What intervals (start, end) cover together."""
    length, until = 0.0, -math.inf
    for start, end in sorted(intervals):
        length += max(0.0, end - max(start, until))
        until = max(until, end)
    return length


def _joules() -> float | None:
    """What the GPU in use has taken since its driver was loaded; None where NVML doesn't tell."""
    import pynvml

    from harness import cuda

    uuid = cuda.device().uuid
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * 1e-3
    except pynvml.NVMLError:
        return None
