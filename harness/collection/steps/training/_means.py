"""Means of gradients over ranks, in buffers that hold many gradients: after the backward, or during the backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from harness.collection.ops.process_groups import backend_of, process_group

if TYPE_CHECKING:
    import torch

BUCKET = 25 * 2**20
"""Bytes with which a bucket is full, as DistributedDataParallel has them by default but for its first bucket."""
_PIECE = 2**22
"""Elements that are gathered at once for the reference, so that it takes little memory."""
Mean = Callable[[Sequence["torch.Tensor"]], None]
"""Puts the mean over ranks in the place of the gradients of these weights."""


class Buffer:
    """Memory for the gradients of some weights, each as a view with the layout of its weight."""

    uncounted = 0
    """Bytes of the device that torch's allocator doesn't count."""
    copied = 0
    """Bytes of each of its copies to other devices, where copies communicate."""

    def __init__(self, weights: Sequence[torch.Tensor], group: Any) -> None:
        import torch

        self.weights, self._group = weights, group
        self._flat = self._memory(sum(weight.numel() for weight in weights))
        self._views: list[torch.Tensor] = []
        start = 0
        for weight in weights:
            self._views.append(torch.as_strided(self._flat, weight.shape, weight.stride(), start))
            start += weight.numel()

    def send(self, *, waits: bool) -> Any:
        """Copy all gradients together, and average them over ranks; gradients are views of the buffer then.

        Without waits, what is averaged may be read after wait() of what is given.
        """
        import torch

        torch._foreach_copy_(self._views, [weight.grad for weight in self.weights])
        for weight, view in zip(self.weights, self._views, strict=True):
            weight.grad = view
        return self._average(waits=waits)

    def _memory(self, elements: int) -> torch.Tensor:
        return self.weights[0].new_empty(elements)

    def _average(self, *, waits: bool) -> Any:
        from torch import distributed

        return distributed.all_reduce(self._flat, distributed.ReduceOp.AVG, group=self._group, async_op=not waits)


class FlatMean:
    """Averages over ranks by one all-reduce of a buffer that holds all gradients, which are views of it afterwards."""

    def __init__(self, device: torch.device) -> None:
        self._group = process_group(backend_of(device.type))
        self._buffer: Buffer | None = None

    def __call__(self, weights: Sequence[torch.Tensor]) -> None:
        """Replace the gradients of these weights, which must be the same weights each time."""
        if self._buffer is None:
            self._buffer = Buffer(weights, self._group)
        self._buffer.send(waits=True)


class BucketMean:
    """Averages over ranks during the backward, as DistributedDataParallel does, bucket by bucket.

    DistributedDataParallel copies each gradient by a kernel of its own as soon as the gradient is there. Here one
    kernel, or few, copy all gradients of a bucket once the last of them is there. Buckets are sent in the same order on
    all ranks, from the last weights on, whose gradients come first.
    """

    def __init__(self, device: torch.device, buffer: Callable[[Sequence[torch.Tensor], Any], Buffer] = Buffer) -> None:
        """Have buckets in such buffers, each of some weights and the group of all ranks."""
        self._group, self._buffer = process_group(backend_of(device.type)), buffer
        self.sends = True
        """Whether the backward that runs averages gradients."""
        self._buckets: list[Buffer] = []
        self._missing: list[int] = []
        self._works: list[Any] = []

    @property
    def uncounted(self) -> int:
        """Bytes of the device that torch's allocator doesn't count."""
        return sum(bucket.uncounted for bucket in self._buckets)

    @property
    def copied(self) -> set[int]:
        """Sizes in bytes of copies to other devices; none where kernels of NCCL communicate."""
        return {bucket.copied for bucket in self._buckets if bucket.copied}

    def watch(self, weights: Sequence[torch.Tensor]) -> None:
        """Average the gradients of these weights in each backward from now on."""
        for some in bucketed(weights[::-1]):
            for weight in some:
                weight.register_post_accumulate_grad_hook(_hook(weakref.ref(self), len(self._buckets)))
            self._buckets.append(self._buffer(some, self._group))
        self._begin()

    def __call__(self, weights: Sequence[torch.Tensor]) -> None:
        """Wait for the mean of the gradients of all weights. Raises RuntimeError where a weight had no gradient."""
        if len(self._works) < len(self._buckets):
            raise RuntimeError(f"{sum(self._missing)} of {len(weights)} weights had no gradient in the backward")
        for work in self._works:
            work.wait()
        self._begin()

    def _begin(self) -> None:
        self._missing, self._works = [len(bucket.weights) for bucket in self._buckets], []

    def ready(self, bucket: int) -> None:
        """Send what can be sent after another gradient of a bucket. Raises RuntimeError for one too many."""
        if not self.sends:
            return
        if not self._missing[bucket]:
            raise RuntimeError("a second backward began before the means of the first one were taken")
        self._missing[bucket] -= 1
        while len(self._works) < len(self._buckets) and not self._missing[len(self._works)]:
            self._works.append(self._buckets[len(self._works)].send(waits=False))


def _hook(mean: weakref.ref[BucketMean], bucket: int) -> Callable[[torch.Tensor], None]:
    """What a weight calls. A weight that kept its mean alive, which keeps the weight alive, would never be freed."""

    def ready(_: torch.Tensor) -> None:
        if (found := mean()) is not None:
            found.ready(bucket)

    return ready


def bucketed(weights: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The weights in buckets, in their order. A weight that reaches BUCKET bytes is the last one of its bucket."""
    buckets: list[list[torch.Tensor]] = []
    room = 0
    for weight in weights:
        if room <= 0:
            buckets.append([])
            room = BUCKET
        buckets[-1].append(weight)
        room -= weight.nbytes
    return buckets


def gathered_mean(weights: Sequence[torch.Tensor]) -> None:
    """Average the gradients over ranks in another way than any variant does: for the reference.

    Each rank gathers all ranks' gradients and adds them up in float64 (complex128), piece by piece.
    """
    import torch
    from torch import distributed

    world = distributed.get_world_size()
    # A gradient that can be differentiated itself may not be changed in place, its values may.
    for gradient in (weight.grad.detach() for weight in weights if weight.grad is not None):
        wide = torch.complex128 if gradient.is_complex() else torch.float64
        group = process_group(backend_of(gradient.device.type))
        flat = gradient.reshape(-1)
        for piece in flat.split(_PIECE):
            gathered = piece.new_empty(world, piece.numel())
            distributed.all_gather([*gathered], piece, group=group)
            piece.copy_(gathered.sum(0, dtype=wide) / world)
        if flat.data_ptr() != gradient.data_ptr():  # reshape copied what isn't contiguous
            gradient.copy_(flat.view(gradient.shape))
