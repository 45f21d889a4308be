"""Functions of tests in the place of CUDA's driver, for launches by Python and for launches in C."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from harness.cuda import launch, native

Launched = Callable[[tuple[tuple[int, ...], int], int, int], int]
"""What a test has for the driver: launched(shape, function, arguments) gives a status.

shape: ((blocks along x, along y, threads, shared bytes, blocks of a cluster or 0), stream). arguments: the address of
the addresses of the arguments.
"""


class Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(ctypes.c_uint * 18)),
        ("count", ctypes.c_uint),
    )


def driven_by(launched: Launched, way: str, patch: pytest.MonkeyPatch) -> None:
    """Launch by the function of a test. way: "Python" or "C"."""
    patch.setattr(launch, "driver_launch", lambda: lambda *given: (_by_bindings(launched, *given),))
    if way == "Python":
        patch.setattr(native, "launcher", lambda: None)
        patch.setattr(launch, "launcher", lambda: None)
        return

    def called(config: Any, function: int, arguments: int, _extra: int) -> int:
        made = config.contents
        cluster = made.attributes.contents if made.count else [0] * 5
        assert cluster[0] == (4 if made.count else 0)  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        shape = made.grid[0], made.grid[1], made.block[0], made.shared, cluster[2]
        return launched((shape, made.stream), function, arguments)

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    callback, module = kind(called), native.built()
    module.begin(ctypes.cast(callback, ctypes.c_void_p).value, launch.recover, launch.refuse)
    patch.setattr(module, "kept", callback, raising=False)
    patch.setattr(native, "launcher", lambda: module)
    patch.setattr(launch, "launcher", lambda: module)


def _by_bindings(launched: Launched, config: Any, function: Any, arguments: int, _extra: int) -> int:
    cluster = [attribute.value.clusterDim.x for attribute in config.attrs] or [0]
    shape = config.gridDimX, config.gridDimY, config.blockDimX, config.sharedMemBytes, cluster[0]
    return launched((shape, int(config.hStream)), int(function), arguments)
