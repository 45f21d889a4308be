"""Means of gradients over the ranks of one host by copies between their devices, beside the backward.

The kernels of NCCL take multiprocessors from the backward. Copies from device to device need none where the driver has
copy engines make them; kernels only add. Source: torch's notes on symmetric memory, which is what all ranks of a host
can write.
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
"""Torch's variable. Memory that a switch writes to all devices isn't needed here, and isn't there on all hosts."""
_ALIGNED = 32
"""Elements that a share is a multiple of, so that copies and sums begin where caches have lines."""


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
        rank, world = self._group.rank(), self._group.size()
        share = -(-elements // (world * _ALIGNED)) * _ALIGNED
        every, self._barrier, self.uncounted = room(self.weights[0], 2 * world * share, self._group)
        # By rank: gradients, of which the last share may end with what isn't used, and places for others' gradients.
        gradients = [memory[: world * share].view(world, share).unbind() for memory in every]
        places = [memory[world * share :].view(world, share).unbind() for memory in every]
        # Each rank begins with another one, so that no link is everybody's first.
        others = [(rank + step) % world for step in range(1, world)]
        self._mean = gradients[rank][rank]
        self._sent = [(places[other][rank], gradients[rank][other]) for other in others]
        self._got = [places[rank][other] for other in others]
        self._sent_back = [gradients[other][rank] for other in others]
        self.copied = self._mean.nbytes
        return every[rank][:elements]

    def _average(self, *, waits: bool) -> SharedBuffer:
        with _beside(self._flat.device):
            self._exchange()
        if waits:
            self.wait()
        return self

    def _exchange(self) -> None:
        for place, gradients in self._sent:
            place.copy_(gradients)
        self._barrier()
        for number, gradients in enumerate(self._got, 2):
            self._mean.lerp_(gradients, 1 / number)
        for gradients in self._sent_back:
            gradients.copy_(self._mean)
        # Nobody reads a share that isn't there yet, nor sends the next step's gradients to a place that is still read.
        self._barrier()


def room(like: torch.Tensor, elements: int, group: Any) -> tuple[list[torch.Tensor], Callable[[], object], int]:
    """(memory of each rank as a tensor, a barrier of all ranks on the current stream, bytes torch doesn't count).

    like: a tensor with the type and the device. Every rank must make this call. Raises RuntimeError where a device
    can't write the memory of another one.
    """
    import torch
    from torch import distributed

    if like.device.type == "cpu":
        return _files(like, elements), partial(distributed.barrier, group), 0
    from torch.distributed import _symmetric_memory

    own, devices = like.device.index, _told(like.device.index)
    reaches = all(torch.cuda.can_device_access_peer(own, other) for other in devices if other != own)
    if unable := [device for device, able in zip(devices, _told(reaches), strict=True) if not able]:
        raise RuntimeError(f"devices {unable} can't write the memory of all of {devices}: measure buckets")
    os.environ[_NO_MULTICAST] = "1"
    before = torch.cuda.memory_allocated()
    memory = _symmetric_memory.empty(elements, dtype=like.dtype, device=like.device)
    uncounted = max(0, memory.nbytes - (torch.cuda.memory_allocated() - before))
    handle = _symmetric_memory.rendezvous(memory, group)
    every = [handle.get_remote_tensor(rank, (elements,), like.dtype) for rank in range(group.size())]
    every[group.rank()] = memory  # which keeps it
    return every, handle.barrier, uncounted


def _files(like: torch.Tensor, elements: int) -> list[torch.Tensor]:
    """Memory of processors: a file of each rank, which is gone as soon as all ranks have it mapped."""
    import torch
    from torch import distributed

    with NamedTemporaryFile() as file:
        file.truncate(elements * like.itemsize)
        every = [torch.from_file(name, shared=True, size=elements, dtype=like.dtype) for name in _told(file.name)]
        distributed.barrier()
    return every


def _told(own: Any) -> list[Any]:
    """What each rank tells."""
    from torch import distributed

    found = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, own)
    return found


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
