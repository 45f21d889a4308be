"""A loaded kernel, called with torch tensors on torch's current stream."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from harness.errors import MachineError
from harness.model import KernelFacts

if TYPE_CHECKING:
    import torch


_ALWAYS_ALLOWED = 48 * 1024  # bytes of shared memory, static and dynamic


class Kernel:
    """One `extern "C"` kernel. Call it as `kernel(grid, block, *args)`.

    Arguments: contiguous torch tensors (passed as pointers), ctypes scalars of exactly the kernel's types, or None (a
    null pointer). The last argument may be a ctypes.Structure, for a struct that the kernel takes by value. An empty
    grid does nothing, since CUDA refuses it. Raises ValueError for a tensor with gaps or in another order, whose
    elements a kernel would look for in the wrong places.
    """

    def __init__(self, cubin: bytes, entry: str) -> None:
        from cuda.core import Device, ObjectCode

        # torch made the primary context current; this tells cuda.core to use it.
        Device(_torch_cuda().current_device()).set_current()
        self._module = ObjectCode.from_cubin(cubin)
        self._kernel = self._module.get_kernel(entry)
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
        along the first dimension of the grid. Raises ValueError if that dimension isn't a multiple of `cluster`, or for
        clusters of a kernel that takes a struct.
        """
        from cuda.core import launch

        if grid == 0:
            return
        self._allow(shared)
        if args and isinstance(args[-1], ctypes.Structure):
            if cluster is not None:
                raise ValueError(
                    f"{self.facts.name} takes a struct, so it can't have clusters; pass the struct's members"
                )
            _launch_with_struct(self._kernel.handle, (grid, block, shared), [_argument(value) for value in args])
            return
        launch(_stream(), _config(grid, block, shared, cluster), self._kernel, *map(_argument, args))

    def resident_clusters(self, block: int, shared: int, cluster: int) -> int:
        """Clusters of `cluster` blocks that the device runs at a time. block: threads; shared: dynamic bytes."""
        self._allow(shared)
        config = _config(cluster, block, shared, cluster)
        return int(self._kernel.occupancy.max_active_clusters(config, stream=_stream()))

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


def memcpy(destination: torch.Tensor, source: torch.Tensor) -> None:
    """Copy between two contiguous tensors of the same size with the driver's device-to-device copy."""
    from cuda.core import Buffer

    size = source.numel() * source.element_size()
    if size:
        to, origin = Buffer.from_handle(destination.data_ptr(), size), Buffer.from_handle(source.data_ptr(), size)
        to.copy_from(origin, stream=_stream())


@lru_cache(maxsize=256)
def _config(grid: int | tuple[int, ...], block: int, shared: int, cluster: int | None) -> Any:
    from cuda.core import LaunchConfig

    if cluster is None:
        return LaunchConfig(grid=grid, block=block, shmem_size=shared)
    first, *others = (grid,) if isinstance(grid, int) else grid
    if first % cluster:
        raise ValueError(f"a grid of {first} blocks can't be cut into clusters of {cluster}")
    # cuda.core counts clusters.
    return LaunchConfig(grid=(first // cluster, *others), cluster=cluster, block=block, shmem_size=shared)


def _launch_with_struct(kernel: Any, sizes: tuple[int | tuple[int, ...], int, int], arguments: list[Any]) -> None:
    """A launch by the driver: cuda.core passes no structs (github.com/NVIDIA/cuda-python/issues/2343).

    sizes: grid, block and dynamic bytes of shared memory. The driver copies the arguments before it returns.
    """
    from cuda.bindings import driver

    grid, block, shared = sizes
    blocks = (*((grid,) if isinstance(grid, int) else grid), 1, 1)[:3]
    values = [ctypes.c_void_p(value) if isinstance(value, int) else value for value in arguments]
    addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    function, stream = driver.CUfunction(int(kernel)), _stream().handle
    (status,) = driver.cuLaunchKernel(function, *blocks, block, 1, 1, shared, stream, ctypes.addressof(addresses), 0)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise MachineError(f"a launch of {blocks} blocks of {block} threads failed: {status.name}")


def stream_handle() -> int:
    """The driver's handle of torch's current stream; 0 for the default stream.

    It is asked for at each launch, since torch changes its current stream while it captures a graph. torch.cuda's
    `current_stream` makes an object of Python each time, which takes longer than all else here.
    """
    from torch._C import _cuda_getCurrentRawStream

    return int(_cuda_getCurrentRawStream(_torch_cuda().current_device()))


def _stream() -> Any:
    return _wrapped(stream_handle())


@lru_cache(maxsize=64)
def _wrapped(handle: int) -> Any:
    from cuda.core import LEGACY_DEFAULT_STREAM, Stream

    return Stream.from_handle(handle) if handle else LEGACY_DEFAULT_STREAM


def _argument(value: Any) -> Any:
    if value is None:
        return 0
    if not hasattr(value, "data_ptr"):
        return value
    if not value.is_contiguous():
        raise ValueError(
            f"a tensor of shape {tuple(value.shape)} with strides {value.stride()} isn't contiguous; pass "
            "`tensor.contiguous()`"
        )
    return value.data_ptr()


def _torch_cuda() -> Any:
    import torch

    return torch.cuda
