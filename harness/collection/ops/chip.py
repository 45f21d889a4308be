"""Facts about a GPU that the plans of kernels need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from harness import cuda

WARP = 32
MOST_BLOCKS = 8
"""The most blocks of a cluster, on every GPU that has clusters."""
RESERVED = 1024
"""Bytes of shared memory that a GPU takes for each block, beside the block's own."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A GPU as plans see it.

    clusters: whether blocks can form clusters. shared: the most bytes of shared memory that a block may have.
    """

    multiprocessors: int
    clusters: bool
    shared: int

    @classmethod
    def current(cls) -> Self:
        """The GPU that kernels run on."""
        return cls(cuda.multiprocessors(), cuda.has_clusters(), cuda.shared_memory())


H200 = Chip(132, clusters=True, shared=227 * 1024)
"""The GPU that plans are made for if this machine has none."""
