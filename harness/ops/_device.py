"""What the plans of kernels need to know of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from harness import cuda

WARP = 32
MOST_BLOCKS = 8
"""Of a cluster, on every device that has them."""
RESERVED = 1024
"""Bytes of shared memory that a device takes for each block, beside the block's own."""


@dataclass(frozen=True, slots=True)
class Device:
    """multiprocessors; whether blocks form clusters; bytes of shared memory that a block may have."""

    multiprocessors: int
    clusters: bool
    shared: int

    @classmethod
    def current(cls) -> Self:
        """The one that kernels run on."""
        return cls(cuda.multiprocessors(), cuda.has_clusters(), cuda.shared_memory())


H200 = Device(132, clusters=True, shared=227 * 1024)
"""For what is asked of a plan where there is no GPU."""
