"""A loaded kernel, called with torch tensors on torch's current stream."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from harness.cuda.native import launcher
from harness.errors import MachineError
from harness.model import KernelFacts

if TYPE_CHECKING:
    import torch


LEGACY_STREAM = 1
"""The driver's handle of the default stream, whatever else the process takes for it."""
_ALWAYS_ALLOWED = 48 * 1024  # bytes of shared memory, static and dynamic


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """How a kernel is launched. grid: blocks; block: threads; shared: dynamic bytes; cluster: blocks of a cluster.

    A cluster lies along the first dimension of the grid; with `cluster` None there are no clusters.
    """

    grid: int | tuple[int, ...]
    block: int
    shared: int = 0
    cluster: int | None = None

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Blocks in three dimensions."""
        return _three(self.grid)


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch that was made: the driver's handle of the kernel, how it was launched, and its arguments.

    A function of 0 stands for anything else that was done on the device, such as a copy.
    """

    function: int
    shape: LaunchShape
    arguments: tuple[Any, ...]


Note = TypeVar("Note")


class Notes(Generic[Note]):
    """What happens in a thread, noted for the innermost context of the thread that asks for it.

    by_thread: the notes by the thread's number; empty where nobody asks, which is quickly seen.
    """

    def __init__(self) -> None:
        self.by_thread: dict[int, list[Note]] = {}

    def add(self, note: Note) -> None:
        """Add a note, if this thread asks for notes."""
        notes = self.by_thread.get(threading.get_ident())
        if notes is not None:
            notes.append(note)

    @contextmanager
    def taken(self) -> Iterator[list[Note]]:
        """The notes of this thread inside the context."""
        thread, notes = threading.get_ident(), list[Note]()
        outer = self.by_thread.get(thread)
        self.by_thread[thread] = notes
        try:
            yield notes
        finally:
            if outer is None:
                del self.by_thread[thread]
            else:
                self.by_thread[thread] = outer


LAUNCHES = Notes[Launched]()
"""The launches that threads make. They are made as well."""
COPY = Launched(0, LaunchShape(1, 1), ())


class Kernel:
    """One `extern "C"` kernel. Call it as `kernel(grid, block, *args)`.

    Arguments: contiguous torch tensors (passed as pointers), ctypes scalars of exactly the kernel's types, None (a null
    pointer), or a ctypes.Structure for a struct that the kernel takes by value. An empty grid does nothing, since CUDA
    refuses it. Raises ValueError for a tensor with gaps or in another order, whose elements a kernel would look for in
    the wrong places.
    """

    def __init__(self, cubin: bytes, entry: str) -> None:
        from cuda.core import Device, ObjectCode

        # torch made the primary context current; this tells cuda.core to use it.
        Device(_torch_cuda().current_device()).set_current()
        self._module = ObjectCode.from_cubin(cubin)
        self._kernel = self._module.get_kernel(entry)
        self._function = int(self._kernel.handle)
        self._shared = 0  # dynamic bytes that the driver has allowed beyond what every kernel may have
        attributes = self._kernel.attributes
        self.facts = KernelFacts(
            name=entry,
            registers=attributes.num_regs,
            local=attributes.local_size_bytes,
            shared=attributes.shared_size_bytes,
        )

    def __call__(
        self, grid: int | tuple[int, ...], block: int, *args: Any, shared: int = 0, cluster: int | None = None
    ) -> None:
        """Launch asynchronously.

        grid: blocks, as one number or up to three; block: threads; shared: dynamic bytes; cluster: blocks of a cluster,
        along the first dimension of the grid. Raises ValueError if that dimension isn't a multiple of `cluster`.
        """
        if grid == 0 or (isinstance(grid, tuple) and 0 in grid):
            return
        if shared:
            self._allow(shared)
        if LAUNCHES.by_thread:
            LAUNCHES.add(Launched(self._function, LaunchShape(grid, block, shared, cluster), args))
        stream = stream_handle() or LEGACY_STREAM
        if native := launcher():
            blocks = _three(grid)
            _refuse_cut(blocks[0], cluster)
            native.launch(self._function, blocks, block, shared, cluster or 0, stream, args)
            return
        values = [_argument(value) for value in args]
        addresses = (ctypes.c_uint64 * len(values))(*map(ctypes.addressof, values))
        launch(config(grid, block, shared, cluster, stream), self._function, ctypes.addressof(addresses))

    def resident_clusters(self, block: int, shared: int, cluster: int) -> int:
        """Clusters of `cluster` blocks that the device runs at a time. block: threads; shared: dynamic bytes."""
        from cuda.core import LaunchConfig

        self._allow(shared)
        shape = LaunchConfig(grid=1, cluster=cluster, block=block, shmem_size=shared)
        return int(self._kernel.occupancy.max_active_clusters(shape, stream=_stream()))

    def _allow(self, shared: int) -> None:
        """Ask the driver to allow this many dynamic bytes. Raises MachineError where a block can't have so many."""
        if shared <= max(_ALWAYS_ALLOWED - self.facts.shared, self._shared):
            return
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        device = _torch_cuda().current_device()
        (status,) = driver.cuKernelSetAttribute(attribute, shared, self._kernel.handle, device)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise MachineError(f"{self.facts.name} can't have {shared} bytes of shared memory: {status.name}")
        self._shared = shared


@lru_cache(maxsize=1024)
def config(grid: int | tuple[int, ...], block: int, shared: int, cluster: int | None, stream: int) -> Any:
    """The driver's record of how a kernel is launched. stream: the driver's handle.

    Raises ValueError for a grid that clusters don't fill.
    """
    from cuda.bindings import driver

    blocks = _three(grid)
    _refuse_cut(blocks[0], cluster)
    made = driver.CUlaunchConfig()
    made.gridDimX, made.gridDimY, made.gridDimZ = blocks
    made.blockDimX, made.blockDimY, made.blockDimZ = block, 1, 1
    made.sharedMemBytes, made.hStream = shared, driver.CUstream(stream)
    if cluster is not None:
        size = driver.CUlaunchAttribute()
        size.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size.value.clusterDim.x, size.value.clusterDim.y, size.value.clusterDim.z = cluster, 1, 1
        made.attrs, made.numAttrs = [size], 1
    return made


def _three(grid: int | tuple[int, ...]) -> tuple[int, int, int]:
    """Blocks in three dimensions."""
    first, second, third = (grid, 1, 1) if isinstance(grid, int) else (*grid, 1, 1)[:3]
    return first, second, third


def _refuse_cut(blocks: int, cluster: int | None) -> None:
    if cluster is not None and blocks % cluster:
        raise ValueError(f"a grid of {blocks} blocks can't be cut into clusters of {cluster}")


def launch(shape: Any, function: int, arguments: int) -> None:
    """Launch by the driver: cuda.core's launch takes longer, and passes no structs.

    shape: what config() gives; function: the driver's handle of the kernel. arguments: the address of the addresses of
    the arguments, which the driver copies before it returns. Raises MachineError where the driver refuses.
    """
    for tries in range(2):
        (status,) = driver_launch()(shape, _as_function(function), arguments, 0)
        if not status:
            return
        recover(int(status), (shape.gridDimX, shape.gridDimY, shape.gridDimZ), shape.blockDimX, tries)


@lru_cache(maxsize=1)
def driver_launch() -> Callable[[Any, Any, int, int], tuple[Any]]:
    """The driver's function that launches, as cuda.bindings has it."""
    from cuda.bindings import driver

    return driver.cuLaunchKernelEx  # type: ignore[no-any-return]


@lru_cache(maxsize=4096)
def _as_function(kernel: int) -> Any:
    from cuda.bindings import driver

    return driver.CUfunction(kernel)


def recover(status: int, blocks: tuple[int, int, int], threads: int, tries: int) -> None:
    """Give the thread a context, if that was what a launch lacked. Raises MachineError with the driver's word if not.

    A new thread, such as autograd's for a backward, has no context of the driver until something asks for it. To ask
    at each launch would take time. status: what the driver gave; tries: how often the launch was tried before.
    """
    from cuda.bindings import driver
    from cuda.core import Device

    if status == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT and not tries:
        Device(_torch_cuda().current_device()).set_current()
        return
    name = driver.CUresult(status).name
    raise MachineError(f"a launch of {blocks} blocks of {threads} threads failed: {name}")


def refuse(tensor: torch.Tensor) -> None:
    """Raise ValueError for a tensor with gaps or in another order: a kernel would look for its elements elsewhere."""
    raise ValueError(
        f"a tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()} isn't contiguous; pass "
        "`tensor.contiguous()`"
    )


def memcpy(destination: torch.Tensor, source: torch.Tensor) -> None:
    """Copy between two contiguous tensors of the same size with the driver's device-to-device copy."""
    from cuda.core import Buffer

    size = source.numel() * source.element_size()
    if size:
        LAUNCHES.add(COPY)
        to, origin = Buffer.from_handle(destination.data_ptr(), size), Buffer.from_handle(source.data_ptr(), size)
        to.copy_from(origin, stream=_stream())


def stream_handle() -> int:
    """The driver's handle of torch's current stream; 0 for the default stream.

    It is asked for at each launch, since torch changes its current stream while it captures a graph. torch.cuda's
    `current_stream` makes an object of Python each time, which takes longer than all else here.
    """
    torch_c = _torch_c()
    return int(torch_c._cuda_getCurrentRawStream(torch_c._cuda_getDevice()))


def _stream() -> Any:
    return _wrapped(stream_handle())


@lru_cache(maxsize=64)
def _wrapped(handle: int) -> Any:
    from cuda.core import LEGACY_DEFAULT_STREAM, Stream

    return Stream.from_handle(handle) if handle else LEGACY_DEFAULT_STREAM


def _argument(value: Any) -> Any:
    """An object of ctypes with the argument's bytes."""
    if value is None:
        return ctypes.c_uint64(0)
    if not hasattr(value, "data_ptr"):
        return value
    if not value.is_contiguous():
        refuse(value)
    return ctypes.c_uint64(value.data_ptr())


@lru_cache(maxsize=1)
def _torch_c() -> Any:
    """The part of torch in C. To import it at each launch would take longer than to ask it."""
    import torch

    return torch._C


def _torch_cuda() -> Any:
    import torch

    return torch.cuda
