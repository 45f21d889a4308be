"""Memory that a pipeline shares with the processes that decode its images.

It is anonymous. Containers often have no more than 64 MB in /dev/shm, and of anonymous memory nothing is left once all
processes that use it have ended.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

from harness import units
from harness.collection.steps.pipeline._stages import DEPTH

if TYPE_CHECKING:
    import numpy as np

AT_ONCE = 3
"""Batches that processes work on at a time. When no image of the first is left, a process goes on with the next one."""
# A stage writes the slots of a ring in turn, one for each batch, and only the next stage reads them. A slot is in use
# while its batch is worked on by the stage that writes it or by the one that reads it, or waits in the queue between
# the two. So AT_ONCE + DEPTH + 1 batches are in use at most. Threads that begin at the same time may take their slots
# in another order than their batches, so there is one slot more. If the work of a stage is halved, it gives
# each batch twice and writes one slot for the two, so that fewer slots are in use. Stages behind the next one read no
# slot: images are there in a ring of their own, and then in the device's memory.
SLOTS = AT_ONCE + DEPTH + 2
"""Slots of a ring, each of which has room for a batch."""


class SharedBatches:
    """Two rings of slots: files' bytes on their way to the processes that decode, and images on their way from them.

    A process that is given it when it starts has the same memory, which is zeros at first. The memory is given back
    when no process has arrays over it any more.

    files: bytes of files (SLOTS, B, room), uint8. sizes: how many bytes each file has (SLOTS, B), int64. images: images
    (SLOTS, B, side, side, 3), uint8. boxes: the crop of each, as `crops` gives it (SLOTS, B, 4), int64. memory: all of
    these, an element a slot.
    """

    def __init__(self, batch: int, room: int, side: int, descriptor: int | None = None) -> None:
        """Use the memory of a descriptor, or new memory. Raises OSError if the system has too little of it.

        batch: images of a batch. room: bytes of the largest file. side: pixels of an image's side.
        """
        import numpy as np

        self._form = batch, room, side
        slot = np.dtype(
            [
                ("files", "uint8", (batch, room)),
                ("sizes", "int64", (batch,)),
                ("images", "uint8", (batch, side, side, 3)),
                ("boxes", "int64", (batch, 4)),
            ],
            align=True,
        )
        self._descriptor = _memory(SLOTS * slot.itemsize) if descriptor is None else descriptor
        self.memory = np.frombuffer(mmap.mmap(self._descriptor, SLOTS * slot.itemsize), slot)
        self.files, self.sizes = self.memory["files"], self.memory["sizes"]
        self.images, self.boxes = self.memory["images"], self.memory["boxes"]

    def __reduce__(self) -> tuple[Callable[..., SharedBatches], tuple[Any, ...]]:
        return _attached, (*self._form, reduction.DupFd(self._descriptor))

    def close(self) -> None:
        """Give the memory to no more processes."""
        os.close(self._descriptor)


def _memory(size: int) -> int:
    """A descriptor of new anonymous memory of `size` bytes.

    All of it is asked for at once. Otherwise the system would kill a process that writes where no memory is left.
    """
    descriptor = os.memfd_create("pipeline")
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, f"no {units.size(size)} of memory for batches: {error.strerror}") from error
    return descriptor


def _attached(batch: int, room: int, side: int, duplicate: Any) -> SharedBatches:
    """The batches in a process that was given them."""
    return SharedBatches(batch, room, side, duplicate.detach())


def pinned(array: np.ndarray) -> Callable[[], None]:
    """Pin an array's memory, so that copies from it to a GPU need no wait. Gives a function that ends this.

    Both raise RuntimeError with the driver's reason if it refuses.
    """
    import torch

    cudart = torch.cuda.cudart()
    what = f"the {units.size(array.nbytes)} that are shared with the processes that decode"

    def unpin() -> None:
        _complain(cudart.cudaHostUnregister(array.ctypes.data), f"{what} can't be unpinned")

    portable = 1  # cudaHostRegisterPortable: in every context of the process
    _complain(cudart.cudaHostRegister(array.ctypes.data, array.nbytes, portable), f"{what} can't be pinned")
    return unpin


def _complain(status: Any, what: str) -> None:
    import torch

    if int(status):
        raise RuntimeError(f"{what}: {torch.cuda.cudart().cudaGetErrorString(status)}")
