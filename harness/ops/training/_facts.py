"""Figures that training steps report of themselves: memory, energy, and how far off their losses are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from harness import metrics, units
from harness.ops.sheet import Context

OFF = "loss_distance"
Made = TypeVar("Made")
_SECONDS = 2.0
"""Seconds of steps whose energy is measured: enough that the counter moves many times."""

metrics.fact(
    OFF,
    "distance of losses",
    units.SHARE,
    "how far off the first steps' losses are from those of float32 at most, over what the latter fall by",
)


def with_memory(ctx: Context, steps: Callable[[], Made]) -> Made:
    """What `steps` gives. Its peak memory is reported, on a GPU; that of a captured graph is what its capture took."""
    import torch

    if ctx.device.type != "cuda":
        return steps()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    made = steps()
    torch.cuda.synchronize()
    ctx.report(metrics.PEAK_MEMORY, torch.cuda.max_memory_allocated())
    return made


def report_energy(ctx: Context, step: Callable[[], object], items: int) -> None:
    """Make steps for about `_SECONDS`, and report their energy an item, where the GPU counts its energy.

    The steps come after those that are timed, so that the timed ones don't depend on them.
    """
    import torch

    if ctx.device.type != "cuda":
        return
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    count = math.ceil(_SECONDS / (time.perf_counter() - start))
    begin = _joules()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    end = _joules()
    if begin is not None and end is not None and end > begin:
        ctx.report(metrics.ENERGY, (end - begin) / (count * items))


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
