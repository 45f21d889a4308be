"""Launches that follow each other, of which each may begin while the one before still runs.

CUDA calls it programmatic dependent launch; GPUs from compute capability 9.0 on have it. A kernel that isn't written
for it (kernels/include/dependent.cuh) must not be launched so: it would read what isn't there yet.

Two kernels share a multiprocessor only if they divide its memory alike into L1 and shared memory. So all kernels of a
chain ask for as much shared memory as there is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from harness import cuda
from harness.cuda.launch import LAUNCHES, Launched, launch

_ALL_SHARED = 100  # percent


class Chain:
    """The launches of a call, made again with the same tensors whenever the chain is called, on torch's stream.

    The first one waits for what is on the stream before it.
    """

    def __init__(self, launches: Sequence[Launched]) -> None:
        self._launches = launches  # with the tensors, whose memory nothing else may get
        self._values = [[_argument(value) for value in made.arguments] for made in launches]
        self._addresses = [(ctypes.c_uint64 * len(row))(*map(ctypes.addressof, row)) for row in self._values]
        self._shapes: dict[int, list[Any]] = {}
        for function in {made.function for made in launches}:
            _divide_alike(function)

    @classmethod
    def of(cls, call: Callable[[], object]) -> Chain:
        """Make the call, and give what makes its launches again."""
        with LAUNCHES.taken() as launches:
            call()
        return cls(tuple(launches))

    def __call__(self) -> None:
        """Make the launches."""
        stream = cuda.stream_handle() or cuda.LEGACY_STREAM
        if stream not in self._shapes:
            self._shapes[stream] = [_shape(made, stream, early=place > 0) for place, made in enumerate(self._launches)]
        for shape, made, addresses in zip(self._shapes[stream], self._launches, self._addresses, strict=True):
            launch(shape, made.function, ctypes.addressof(addresses))


def _divide_alike(function: int) -> None:
    """Ask for shared memory in place of L1. This is a wish: a kernel runs without it, too."""
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    driver.cuKernelSetAttribute(attribute, _ALL_SHARED, driver.CUkernel(function), cuda.device().device_id)


def _argument(value: Any) -> Any:
    """An object of ctypes with the argument's bytes."""
    return ctypes.c_uint64(value.data_ptr()) if hasattr(value, "data_ptr") else value


def _shape(made: Launched, stream: int, *, early: bool) -> Any:
    """The driver's record of how a kernel is launched. early: it may begin while the one before it still runs."""
    from cuda.bindings import driver

    shape = driver.CUlaunchConfig()
    shape.gridDimX, shape.gridDimY, shape.gridDimZ = made.shape.blocks
    shape.blockDimX, shape.blockDimY, shape.blockDimZ = made.shape.block, 1, 1
    shape.sharedMemBytes, shape.hStream = made.shape.shared, driver.CUstream(stream)
    if early:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        shape.attrs, shape.numAttrs = [attribute], 1
    return shape
