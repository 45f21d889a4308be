"""Compile kernels with NVRTC, keep them on disk, launch them. The only place that imports cuda.core.

Importing this package takes no time: cuda.core is imported with the first kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.cuda import assumed
from harness.cuda import compile as compiler
from harness.cuda.assumed import assuming
from harness.cuda.compile import cubin, need_cccl
from harness.cuda.divide import Divisor, fast_divisor
from harness.cuda.facts import kernel_facts
from harness.cuda.launch import LEGACY_STREAM, Kernel, memcpy, stream_handle

__all__ = [
    "LEGACY_STREAM",
    "Divisor",
    "Kernel",
    "architecture",
    "assuming",
    "device",
    "devices",
    "fast_divisor",
    "has_clusters",
    "kernel_facts",
    "load",
    "memcpy",
    "multiprocessors",
    "need_cccl",
    "resident_threads",
    "shared_memory",
    "stream_handle",
]


def load(file: Path, entry: str, macros: Mapping[str, str | int]) -> Kernel:
    """The kernel `entry` of `file`, compiled for the current device (or taken from the cache on disk) and loaded."""
    return _load(file, entry, tuple(sorted(macros.items())), device().device_id)


@cache
def _load(file: Path, entry: str, macros: tuple[tuple[str, str | int], ...], _device_id: int) -> Kernel:
    """The kernel, loaded once a device: a kernel that was loaded on one device doesn't run on another."""
    return Kernel(cubin(file, dict(macros), architecture()), entry)


def architecture() -> str:
    """'sm_90' for the current device."""
    gpu = assumed.current()
    return gpu.arch if gpu else compiler.architecture()


def resident_threads() -> int:
    """Threads that all multiprocessors together hold at a time, if registers and shared memory allow."""
    gpu = assumed.current()
    a_multiprocessor = gpu.resident_threads if gpu else int(device().properties.max_threads_per_multiprocessor)
    return multiprocessors() * a_multiprocessor


def multiprocessors() -> int:
    """Multiprocessors of the current device."""
    gpu = assumed.current()
    return gpu.multiprocessors if gpu else int(device().properties.multiprocessor_count)


def has_clusters() -> bool:
    """Whether blocks of the current device can form clusters that share their shared memory (sm_90 and later)."""
    gpu = assumed.current()
    return gpu.clusters if gpu else int(device().properties.compute_capability_major) >= 9


def shared_memory() -> int:
    """Bytes of shared memory that a block of the current device may have at most."""
    gpu = assumed.current()
    return gpu.shared if gpu else int(device().properties.max_shared_memory_per_block_optin)


def device() -> Any:
    """The driver's view of the current device, as cuda.core gives it: name, uuid, properties.

    That is torch's current device; the first visible one before torch has touched any.
    """
    from cuda.core import Device

    # Torch isn't imported for this: the parent of a run never loads it.
    torch = sys.modules.get("torch")
    return Device(torch.cuda.current_device() if torch and torch.cuda.is_initialized() else 0)


def devices() -> tuple[Any, ...]:
    """The driver's view of every visible device."""
    from cuda.core import Device

    return tuple(Device.get_all_devices())
