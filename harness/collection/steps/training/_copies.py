"""Means of gradients over the ranks of one host by copies between their devices, beside the backward.

The kernels of NCCL take multiprocessors from the backward. Copies from device to device are made by copy engines, which
take none; kernels only add. Source: torch's notes on symmetric memory, which is what all ranks of a host can write.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from harness.collection.steps.training._means import Buffer

if TYPE_CHECKING:
    import torch

_NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
"""Torch's variable: memory that a switch writes to all devices isn't needed here, and isn't there on all hosts."""


class SharedBuffer(Buffer):
    """A buffer that all ranks can write, whose mean is made by copies between devices and by sums.

    Each rank makes the mean of one share: the other ranks copy their gradients of the share to places of their own
    at this rank, which adds them, and copies the mean to all other ranks.
    """

    def wait(self) -> None:
        """Have the work that comes next on this device wait for the mean."""
        if (side := _side(self._flat.device)) is not None:
            import torch

            torch.cuda.current_stream().wait_stream(side)

    def _memory(self, elements: int) -> torch.Tensor:
        self._rank, world = self._group.rank(), self._group.size()
        share = -(-elements // world)
        own, self._barrier = room(self.weights[0], 2 * world * share, self._group)
        self.uncounted = own[0].nbytes
        # By rank: gradients, of which the last share may end with what isn't used, and places for others' gradients.
        self._gradients = [memory[: world * share].view(world, share) for memory in own]
        self._places = [memory[world * share :].view(world, share) for memory in own]
        return own[self._rank][:elements]

    def _average(self, *, waits: bool) -> SharedBuffer:
        with _beside(self._flat.device):
            self._exchange()
        if waits:
            self.wait()
        return self

    def _exchange(self) -> None:
        rank, world = self._rank, self._group.size()
        # Each rank begins with another one, so that no link is everybody's first.
        others = [(rank + step) % world for step in range(1, world)]
        for other in others:
            self._places[other][rank].copy_(self._gradients[rank][other])
        self._barrier()
        mean = self._gradients[rank][rank]
        for number, other in enumerate(others, 2):
            mean.lerp_(self._places[rank][other], 1 / number)
        for other in others:
            self._gradients[other][rank].copy_(mean)
        # Nobody reads a share that isn't there yet, nor sends the next step's gradients to a place that is still read.
        self._barrier()


def room(like: torch.Tensor, elements: int, group: Any) -> tuple[list[torch.Tensor], Callable[[], object]]:
    """(memory of each rank as a tensor of this one, a barrier of all ranks on the stream that is current).

    like: a tensor with the type and the device. Every rank must make this call.
    """
    from torch import distributed

    if like.device.type == "cpu":
        return _files(like, elements), partial(distributed.barrier, group)
    from torch.distributed import _symmetric_memory

    os.environ.setdefault(_NO_MULTICAST, "1")
    own = _symmetric_memory.empty(elements, dtype=like.dtype, device=like.device)
    handle = _symmetric_memory.rendezvous(own, group)
    every = [handle.get_buffer(rank, (elements,), like.dtype) for rank in range(group.size())]
    every[group.rank()] = own  # which keeps the memory
    return every, handle.barrier


def _files(like: torch.Tensor, elements: int) -> list[torch.Tensor]:
    """Memory of processors: a file of each rank, which is gone as soon as all ranks have it mapped."""
    import torch
    from torch import distributed

    names = [""] * distributed.get_world_size()
    with NamedTemporaryFile() as file:
        distributed.all_gather_object(names, file.name)
        file.truncate(elements * like.itemsize)
        distributed.barrier()
        every = [torch.from_file(name, shared=True, size=elements, dtype=like.dtype) for name in names]
        distributed.barrier()
    return every


@cache
def _side(device: torch.device) -> torch.cuda.Stream | None:
    """The stream of copies beside the backward; None for a processor, which makes one after the other.

    Its few kernels come before the backward's, since copies wait for them.
    """
    import torch

    return torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None


def _beside(device: torch.device) -> AbstractContextManager[object]:
    """Work on the other stream, after what is on the current one."""
    side = _side(device)
    if side is None:
        return nullcontext()
    import torch

    side.wait_stream(torch.cuda.current_stream())
    beside: AbstractContextManager[object] = torch.cuda.stream(side)
    return beside
