"""A trainer on each of several ranks, and the ways in which their gradients become one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.collection.models import Config
from harness.collection.ops.process_groups import backend_of, process_group
from harness.collection.steps.training._hidden import AFTER, OVERLAPPED, WITHOUT
from harness.collection.steps.training._means import BucketMean, Mean, gathered_mean
from harness.collection.steps.training._rungs import Rung
from harness.collection.steps.training._trainer import Setup, Trainer, whole

if TYPE_CHECKING:
    import torch

LABELS = 16
"""How many classes, or words, labels have at most; half of all where there are few. Labels are random, so what ranks
learn from each other in the first steps is how often each label comes. With labels of all classes this is little where
there are many images: the losses of eight ranks would hardly fall, and no step could be judged by them."""
REHEARSED = 12
"""Steps before a step of ranks is captured. Torch's notes on CUDA graphs ask for eleven of DistributedDataParallel."""


@dataclass(frozen=True, slots=True)
class Way:
    """How ranks train together.

    wrapped: whether the model is in DistributedDataParallel. synced: whether gradients are averaged over ranks, so that
    all of them have the same weights after each step. sharded: whether each rank keeps a part of the weights, of the
    gradients and of the optimizer's state alone. keeps: whether weights that were gathered for a layer's forward are
    kept until its backward. halves: whether gradients are sent in bfloat16, which is half of their bytes.
    buckets: whether gradients are averaged during the backward without DistributedDataParallel. copied: whether they
    travel by copies between devices then.
    """

    name: str
    summary: str
    wrapped: bool
    synced: bool
    rows: tuple[str, ...] = ()
    sharded: bool = False
    keeps: bool = False
    halves: bool = False
    buckets: bool = False
    copied: bool = False


WAYS = (
    Way("replicas", "each device trains for itself: what sharing the host and the power costs", False, False, ("O2",)),
    Way(WITHOUT, "DistributedDataParallel that never communicates: what its hooks cost", True, False),
    Way(AFTER, "all gradients are averaged in one all-reduce after the backward", False, True),
    Way(OVERLAPPED, "DistributedDataParallel: all-reduce during the backward", True, True, ("O2", "O6")),
)
_COPIED_AT_ONCE = "all-reduce during the backward, where few kernels copy all gradients of a bucket"
IN_BUCKETS = Way("buckets", _COPIED_AT_ONCE, False, True, buckets=True)
_BY_ENGINES = (
    "as buckets, by copies between devices in place of NCCL's kernels, which take multiprocessors; kernels only add"
)
BY_COPIES = replace(IN_BUCKETS, name="copies", summary=_BY_ENGINES, copied=True)
_LAYER_BY_LAYER = "FSDP2 of each layer: weights are gathered for its forward, and again for its backward"
_FSDP = Way("fsdp", _LAYER_BY_LAYER, False, True, sharded=True)
_KEPT = replace(_FSDP, name="fsdp_keep", summary="FSDP2 that keeps gathered weights until their backward", keeps=True)
SHARDED = (_FSDP, _KEPT)
"""Ways of `fully_shard` of torch.distributed.fsdp, for models whose weights take much of the memory."""
SHARDED_OURS = replace(_FSDP, name="fsdp_ours", summary="fsdp, with our kernels in its layers, and our AdamW")
OF_RUNGS = WAYS[-1]
"""How ranks train together whose step is a rung of a ladder."""
IN_HALVES = replace(
    OF_RUNGS, name="ddp_bfloat16", summary=f"{OF_RUNGS.summary}, of gradients in bfloat16", rows=(), halves=True
)
"""By torch's hook. Sums are in bfloat16, too; its exponents are float32's, so scaled gradients don't overflow."""


class RankTrainer(Trainer):
    """A trainer that is one of several. A single one trains for itself, in whichever way."""

    def __init__(self, rung: Rung, setup: Setup, *, wrapped: bool, mean: Mean | None) -> None:
        """Make it as `Trainer` does. mean: called between backward and optimizer; None for nothing."""
        super().__init__(rung, setup)
        self.batch = with_few_labels(self.batch, setup.config)
        self._mean = mean
        self._wrapped: Any = None
        self._may_sync = True
        if isinstance(mean, BucketMean):
            mean.watch(self.weights)
        if wrapped:
            import torch

            self._wrapped = self.called = data_parallel(self.model, setup.device)
            if rung.compiled:
                # Around the wrapper, torch.compile cuts the graph where a bucket of gradients is complete. It can't be
                # one whole graph then.
                self.called = torch.compile(self._wrapped, dynamic=False, mode=rung.compiled)

    def new_batch(self, seed: int) -> Any:
        """Data that no step has seen, with labels of few classes."""
        return with_few_labels(super().new_batch(seed), self.setup.config)

    @property
    def uncounted(self) -> int:
        """Bytes of the device that torch's allocator doesn't count."""
        return self._mean.uncounted if isinstance(self._mean, BucketMean) else 0

    @property
    def copied(self) -> set[int]:
        """Sizes in bytes of copies to other devices; none where kernels of NCCL communicate."""
        return self._mean.copied if isinstance(self._mean, BucketMean) else set()

    def never_sync(self) -> None:
        """Leave out the communication of DistributedDataParallel from now on."""
        self._may_sync = False

    def send_halves(self) -> None:
        """Have DistributedDataParallel send gradients in bfloat16 from now on, by torch's hook."""
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        group = process_group(backend_of(self.setup.device.type))
        # DistributedDataParallel knows the hook by its name, and refuses it on a CPU, where it works.
        hook = lambda state, bucket: bf16_compress_hook(state, bucket)  # noqa: E731, PLW0108
        self._wrapped.register_comm_hook(group, hook)

    def _adding_up(self, *, last: bool) -> AbstractContextManager[object]:
        """Gradients are averaged over ranks once, in the backward of the last micro-batch."""
        syncs = last and self._may_sync
        if isinstance(self._mean, BucketMean):
            self._mean.sends = syncs
        return nullcontext() if syncs or self._wrapped is None else self._wrapped.no_sync()

    def rehearse(self) -> None:
        """Make the steps that have to be made before one is captured, and undo what was learnt from them.

        Weights, the optimizer's state and random numbers are as if there had been no step. Running statistics of batch
        norm, which no training step reads, stay changed.
        """
        import torch

        tensors = [*self.weights, *(master for _, master in self.halves)]
        before = [one.detach().clone() for one in tensors]
        for _ in range(REHEARSED):
            self.loss_of_step()
        with torch.no_grad():
            for one, first in zip(tensors, before, strict=True):
                one.copy_(first)
            for weight, state in self.optimizer.state.items():
                for name, value in state.items():
                    if isinstance(value, torch.Tensor):
                        # Our AdamW keeps masters of weights in halves there, which begin as the weights do.
                        value.copy_(weight if name == "master" else torch.zeros_like(value))
        torch.manual_seed(self.setup.seed + 1 + self.setup.shard)

    def error_of_mean(self) -> float:
        """How far the ranks' common gradients are from the mean of the gradients of each rank, as a share of its norm.

        The mean is `gathered_mean`. No step is made, and random numbers begin anew afterwards.
        """
        import torch

        want = self.own_mean()
        self._gradients(synced=True)
        if self._mean is not None:
            self._mean(self.weights)
        off = torch._foreach_sub([whole(weight.grad) for weight in self.weights], want)
        distance, size = (torch.stack(torch._foreach_norm(found)).norm() for found in (off, want))
        torch.manual_seed(self.setup.seed + 1 + self.setup.shard)
        return float(distance / size)

    def own_mean(self) -> list[torch.Tensor]:
        """The mean of the ranks' own gradients."""
        self._gradients(synced=False)
        gathered_mean(self.weights)
        return [weight.grad.clone() for weight in self.weights if weight.grad is not None]

    def _gradients(self, synced: bool) -> None:
        """New gradients of the loss, with the same random numbers each time; not compiled, which would take long."""
        import torch

        torch.manual_seed(self.setup.seed + self.setup.shard)
        usual = self.called, self._may_sync
        self.called, self._may_sync = self._wrapped or self.model, synced
        self._backward()
        self.called, self._may_sync = usual

    def _step(self) -> None:
        if self._mean is not None:
            self._mean(self.weights)
        super()._step()


def with_few_labels(batch: Any, config: Config) -> Any:
    """The batch with labels of few classes. Labels below 0, of what isn't predicted, stay."""
    labels = batch.labels
    return batch._replace(labels=labels.where(labels < 0, labels % min(LABELS, config.classes // 2)))


def data_parallel(model: torch.nn.Module, device: torch.device, **options: bool) -> Any:
    """The model in DistributedDataParallel, as a good user sets it up. options: more of its options.

    Gradients are copied into the buckets that are communicated, divided by the number of ranks on the way, and are
    views of the buckets afterwards, so none is copied back. Running statistics of batch norm, which no
    training step reads, aren't sent.
    """
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=process_group(backend_of(device.type)),
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
        **options,
    )
