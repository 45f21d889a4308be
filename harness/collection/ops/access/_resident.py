"""Grids that are resident as a whole, with a given number of threads on each multiprocessor."""

from __future__ import annotations

from harness import cuda
from harness.collection.ops.chip import WARP

_LARGEST_BLOCK = 1024


def blocks_each(threads: int) -> int:
    """The fewest blocks that hold the threads of a multiprocessor."""
    return -(-threads // _LARGEST_BLOCK)


def obstacles(threads: int) -> dict[str, bool]:
    """Reasons why a multiprocessor can't hold T threads in equal blocks of whole warps; each with whether it holds."""
    most, of_blocks = cuda.resident_threads() // cuda.multiprocessors(), blocks_each(threads)
    return {
        f"T is {threads}; a multiprocessor holds up to {most}": threads > most,
        f"T is {threads}, not whole warps in {of_blocks} equal blocks": threads % (of_blocks * WARP) > 0,
    }


def grid_and_block(threads: int) -> tuple[int, int]:
    """Blocks of the whole grid, and threads of each.

    The hardware gives each multiprocessor the same number of blocks, as it places a block where most room is left.
    """
    of_blocks = blocks_each(threads)
    return cuda.multiprocessors() * of_blocks, threads // of_blocks
