"""A user's step on several ranks: the ways in which they train together, and what they must agree on.

Every rank has the same weights, and a batch of its own, which batch() makes from another seed. A step's gradients are
the mean over ranks. For a loss that is a mean over items they are the gradients of all ranks' batches as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from harness.collection.ops.process_groups import backend_of, process_group
from harness.collection.steps.ladder._rungs import LadderRung
from harness.collection.steps.training._means import gathered_mean
from harness.collection.steps.training._ranks import data_parallel
from harness.collection.steps.training._scaling import APART
from harness.collection.steps.training._trainer import whole
from harness.errors import UsageError
from harness.ops import Context

if TYPE_CHECKING:
    import torch

    from harness.collection.steps.ladder._trainer import StepTrainer

APART_BY = 2**8
"""How far apart the seeds of ranks are: between them lie the seeds of other draws."""


def shard(model: torch.nn.Module, rung: LadderRung, blocks: Sequence[torch.nn.Module], half: Any) -> None:
    """Let each rank keep a part of each weight, by FSDP2: each block is a group, and so is what is left of the model.

    half: the type in which weights are gathered, and in which a block gets its input; None for their own. Gradients are
    averaged in float32.
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    device = next(model.parameters()).device.type
    mesh = DeviceMesh.from_group(process_group(backend_of(device)), device)
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half and torch.float32)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=rung.way == "fsdp")
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def wrapped(model: torch.nn.Module, rung: LadderRung, device: torch.device, *, unused: bool) -> Any:
    """The model as several ranks call it. unused: whether some weights have no gradient in a step."""
    if rung.is_sharded or rung.way == "gathered":
        return model
    is_static = rung.way == "static_graph"
    return data_parallel(model, device, static_graph=is_static, find_unused_parameters=unused and not is_static)


def average_after_backward(weights: Sequence[torch.Tensor]) -> None:
    """Average gradients over ranks by `gathered_mean` at the end of each backward, as DistributedDataParallel does.

    So a step that clips gradients clips their mean. Raises UsageError if ranks begin with different weights, on every
    rank.
    """
    import torch
    from torch import distributed
    from torch.autograd import Variable

    own = torch.stack([one.detach().sum(dtype=torch.float64) for one in weights]).sum().cpu()
    ends = torch.stack([own, -own])  # of which the largest are the largest sum and the smallest
    distributed.all_reduce(ends, distributed.ReduceOp.MAX)
    if float(ends.sum()):
        raise UsageError(
            "model() gives other weights on each rank, though torch has the same seed",
            "let model() draw by torch alone, or load the same weights",
        )
    waiting: list[torch.Tensor] = []  # weights with a new gradient, whose mean is still to come

    def add(weight: torch.Tensor) -> None:
        if not waiting:
            Variable._execution_engine.queue_callback(average)
        waiting.append(weight)

    def average() -> None:
        fresh = {id(one) for one in waiting}
        waiting.clear()
        # A weight that this rank's batch left out may have a gradient on others, as an expert has.
        anywhere = torch.tensor([float(id(one) in fresh) for one in weights])
        distributed.all_reduce(anywhere, distributed.ReduceOp.MAX)
        found = [one for one, has in zip(weights, anywhere.tolist(), strict=True) if has]
        for weight in found:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        _average(found)

    for weight in weights:
        weight.register_post_accumulate_grad_hook(add)


def _average(weights: Sequence[torch.Tensor]) -> None:
    """Average gradients over ranks by `gathered_mean`; sparse ones, of embeddings, stay sparse."""
    sparse = [weight for weight in weights if weight.grad is not None and weight.grad.is_sparse]
    for weight in sparse:
        weight.grad = weight.grad.to_dense()
    gathered_mean(weights)
    for weight in sparse:
        weight.grad = weight.grad.to_sparse(1)


def adding_up(called: Any, *, last: bool) -> AbstractContextManager[object]:
    """The context of a part of a batch: gradients are averaged once, in the backward of the last part."""
    if last or not hasattr(called, "no_sync"):
        return nullcontext()
    silent: AbstractContextManager[object] = called.no_sync()
    return silent


def rehearse(trainer: StepTrainer, count: int) -> None:
    """Make the steps that DistributedDataParallel needs before a capture, and undo what was learnt from them.

    Random numbers begin anew. Ours keeps its state where it lies in memory, and others make theirs anew.
    """
    import torch

    tensors = [*trainer.model.parameters(), *trainer.model.buffers()]
    before = [one.detach().clone() for one in tensors]
    for _ in range(count):
        trainer.loss_of_step()
    with torch.no_grad():
        for one, first in zip(tensors, before, strict=True):
            one.copy_(first)
        for optimizer in trainer.optimizers:
            _forget_steps(optimizer)
    trainer.begin_drawing()


def _forget_steps(optimizer: torch.optim.Optimizer) -> None:
    """Make an optimizer's state what it was before the first step."""
    import torch

    from harness.collection.nn._adamw import AdamW

    if not isinstance(optimizer, AdamW):
        optimizer.state.clear()
        return
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                value.copy_(weight if name == "master" else torch.zeros_like(value))


# ---- What ranks agree on.


def mean(values: Sequence[float]) -> list[float]:
    """The mean of each number over ranks. All ranks must ask, with equally many numbers."""
    import torch
    from torch import distributed

    found = torch.tensor(values, dtype=torch.float64)
    distributed.all_reduce(found)
    means: list[float] = (found / distributed.get_world_size()).tolist()
    return means


def agreed(holds: bool, world: int) -> bool:
    """Whether something holds on any rank. All ranks must ask."""
    if world == 1:
        return holds
    import torch
    from torch import distributed

    found = torch.tensor(float(holds))
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return bool(found)


@contextmanager
def alike(ctx: Context, forget: Callable[[], object]) -> Iterator[None]:
    """What ranks keep of it is alike: if one fails here, all forget.

    A rank that kept what another one has lost would leave out steps in which the other one waits for it.
    """
    try:
        yield
        ctx.group.barrier()
    except BaseException:
        if ctx.group.size > 1:
            forget()
        raise


def apart(ctx: Context, model: torch.nn.Module, after: str) -> Iterator[str]:
    """A complaint about weights that differ between ranks, as sums tell. Every rank must ask."""
    import torch

    if ctx.group.size == 1:
        return
    weights = [whole(one.detach().sum(dtype=torch.float64)) for one in model.parameters() if one.requires_grad]
    sums = ctx.group.exchange(float(torch.stack(weights).sum()))
    if not all(math.isclose(one, sums[0], rel_tol=APART) for one in sums):
        yield f"weights: they differ between ranks after {after}; their sums are {sums}"


def same_batches(ctx: Context, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether several ranks have one and the same batch, as sums tell. Every rank must ask."""
    import torch

    if ctx.group.size == 1:
        return False
    found = ctx.group.exchange([float(one.sum(dtype=torch.float64)) for one in tensors])
    return all(one == found[0] for one in found)
