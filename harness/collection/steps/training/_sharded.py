"""A trainer whose weights, gradients and optimizer's state lie in parts on several ranks, by FSDP2.

torchtitan does so: each layer is a group of its own, whose weights are gathered together; what is left,
the embedding and the last norm, is the root's group. Weights are in float32, and are gathered in the case's type, in
which layers compute; gradients are averaged in float32. Torch.compile compiles each layer alone, inside its group.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.collection.models.files import blocks_of
from harness.collection.ops.process_groups import backend_of, process_group
from harness.collection.steps.training._ranks import RankTrainer
from harness.collection.steps.training._rungs import Half, Rung
from harness.collection.steps.training._trainer import Setup
from harness.ops import compiled

if TYPE_CHECKING:
    import torch


class ShardedTrainer(RankTrainer):
    """A trainer that is one of several, whose weights are DTensors."""

    def __init__(self, rung: Rung, setup: Setup, *, keeps: bool) -> None:
        """Make it as `Trainer` does. keeps: whether gathered weights are kept from a layer's forward to its backward.

        Between micro-batches they are kept, too, then.
        """
        self._keeps = keeps
        super().__init__(rung, setup, wrapped=False, mean=None)
        self.is_autocast = False  # weights are gathered in the type that layers compute in

    def _callable(self) -> Any:
        """The model, whose weights become parts here."""
        from torch.distributed.fsdp import fully_shard

        options: dict[str, Any] = {"mesh": _mesh(self.setup.device), "mp_policy": self._policy()}
        for block in blocks_of(self.model).values():
            if self.rung.compiled:
                block.forward = compiled(block.forward, self.rung.compiled)
            fully_shard(block, reshard_after_forward=not self._keeps, **options)
        # The root's weights stay from its forward on: the backward begins with them.
        return fully_shard(self.model, reshard_after_forward=False, **options)

    def _policy(self) -> Any:
        """In which types weights are gathered, and gradients averaged.

        Layers are given the cosines and sines of places in float32, which must stay so: inputs aren't cast.
        """
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy

        if self.rung.half == "none":
            return MixedPrecisionPolicy(cast_forward_inputs=False)
        return MixedPrecisionPolicy(self.setup.dtype, torch.float32, cast_forward_inputs=False)

    def _adding_up(self, *, last: bool) -> AbstractContextManager[object]:
        """Gradients of all micro-batches are averaged once; until then each rank has its own of all weights."""
        if self.setup.micro_batches > 1:
            self.model.set_requires_gradient_sync(last)
            self.model.set_is_last_backward(last)
            if self._keeps:
                self.model.set_reshard_after_backward(last)
        return nullcontext()

    def own_mean(self) -> list[torch.Tensor]:
        """The mean of gradients that each rank has of the whole model with the same weights, all in the case's type."""
        half: Half = "none" if self.rung.half == "none" else "pure"
        rung = replace(self.rung, compiled="", half=half)
        return RankTrainer(rung, self.setup, wrapped=False, mean=None).own_mean()


def _mesh(device: torch.device) -> Any:
    """All ranks in a row."""
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh.from_group(process_group(backend_of(device.type)), device.type)
