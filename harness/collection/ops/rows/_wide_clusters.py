"""Clusters of 16 blocks, which some GPUs allow to kernels that ask for them. Every GPU with clusters allows 8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.collection.ops.chip import MOST_BLOCKS, Chip

if TYPE_CHECKING:
    from harness.cuda import Kernel

WIDE_BLOCKS = 16
"""Blocks of a cluster, at most: twice what every GPU with clusters allows."""
_WIDE_SHARED = 200 * 1024  # bytes that a block may have where such clusters are allowed, as on sm_90 and sm_100


def most_blocks(chip: Chip) -> int:
    """Blocks of a cluster, at most; 1 where there are no clusters."""
    if not chip.clusters:
        return 1
    return WIDE_BLOCKS if chip.shared >= _WIDE_SHARED else MOST_BLOCKS


def resident_clusters(kernel: Kernel, threads: int, shared: int, cluster: int) -> int:
    """Clusters of so many blocks that the device runs at a time; 0 where it allows none, or has no room for one.

    Afterwards the kernel may be launched with them.

    threads: of a block. shared: dynamic bytes of a block. cluster: blocks of a cluster.
    """
    if cluster <= MOST_BLOCKS:
        return kernel.resident_clusters(threads, shared, cluster)
    if not _allowed(kernel):
        return 0
    try:
        return kernel.resident_clusters(threads, shared, cluster)
    except Exception as error:
        if "CLUSTER" in str(error):  # CUDA_ERROR_INVALID_CLUSTER_SIZE, as a part of a GPU may say
            return 0
        raise


def _allowed(kernel: Kernel) -> bool:
    import torch
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    # Not a method of Kernel: all reference runs would count as runs of older code after a change in harness/cuda.
    (status,) = driver.cuKernelSetAttribute(attribute, 1, kernel._kernel.handle, torch.cuda.current_device())
    return bool(status == driver.CUresult.CUDA_SUCCESS)
