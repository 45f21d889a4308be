"""A model with its data, its optimizer and its loss scaling, and one training step of it, as a rung asks for them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.collection.models import MODELS, Config, ResNetConfig
from harness.collection.models.files import blocks_of, module_of
from harness.collection.steps.training import _float8, _operators, _ranges
from harness.collection.steps.training._rungs import Rung
from harness.collection.steps.training._settings import captured
from harness.errors import UsageError
from harness.ops import compiled

if TYPE_CHECKING:
    import torch

    from harness.collection.steps.training._streams import SecondStream

SCALE = 1024.0
"""What the loss is multiplied by in mixed precision. Torch begins with 65536, which may overflow in the first steps;
then a rung would skip them, and its losses would lag behind the other rungs' losses."""
NEVER = 2**30
"""Steps without an overflow after which the scale grows: so it tells how many steps were skipped."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a training begins with: the same for all rungs of a case.

    size: of the batch. dtype: of halves; a rung without halves trains in it too, where it is float64. layout: of
    images, 'nchw' or 'nhwc'. shard: which part of the data it is given: ranks have the same weights and other data.
    clip: the global norm that gradients are clipped to before each update; None for no clipping. micro_batches: equal
    parts of the batch that go through the model one after the other, whose gradients are added up for one update.
    """

    model: str
    size: int
    seed: int
    device: torch.device
    dtype: torch.dtype
    layout: str = "nchw"
    shard: int = 0
    clip: float | None = None
    micro_batches: int = 1

    def __post_init__(self) -> None:
        """Raise UsageError for micro-batches that wouldn't be of one size."""
        if self.size % self.micro_batches:
            reason = f"a batch of {self.size} can't be cut into {self.micro_batches} equal micro-batches"
            raise UsageError(reason, f"give a batch that is a multiple of {self.micro_batches}")

    @property
    def config(self) -> Config:
        """The model's configuration."""
        return MODELS[self.model]


class Trainer:
    """Makes training steps as a rung says. `loss_of_step` makes one, and gives its loss, a scalar."""

    def __init__(self, rung: Rung, setup: Setup) -> None:
        """Make model, data and optimizer. Torch's seed is set."""
        import torch

        self.rung, self.setup = rung, setup
        is_scaled = rung.half != "none" and setup.dtype == torch.float16
        self.is_autocast = rung.half == "mixed"
        # Torch's fused optimizers and ours skip a step with an overflow on the device; for others the host must ask.
        self.is_capturable = not is_scaled or rung.fused or rung.adam
        wide = torch.float64 if setup.dtype == torch.float64 else torch.float32
        kind = setup.dtype if rung.half == "pure" else wide
        self.model = _placed(_cast(_built(rung, setup), kind), setup)
        if rung.fp8:
            _float8.OF[rung.fp8](self.model)
        if rung.recomputed:
            keep_little(self.model)
        self.second_stream = _second_stream(self.model, setup) if rung.streams else None
        self.kind = kind
        self.batch = batch_of(setup, kind)
        self.loss = module_of(setup.model).loss
        self.called = self._callable()
        self.weights = list(self.model.parameters())
        # Our AdamW has masters of its own.
        given = [one.dtype == wide or rung.adam for one in self.weights]
        self.masters = [
            one if is_given else one.detach().float().requires_grad_()
            for one, is_given in zip(self.weights, given, strict=True)
        ]
        # The weights in halves, each with its master.
        pairs = zip(self.weights, self.masters, strict=True)
        self.halves = [(one, master) for one, master in pairs if one is not master]
        self.optimizer = _optimizer(rung, setup.config, self.masters, capturable=rung.graph and self.is_capturable)
        self.scaler = _scaler(rung)(setup.device.type, init_scale=SCALE, growth_interval=NEVER, enabled=is_scaled)
        _ranges.add_where_wanted(self)
        torch.manual_seed(setup.seed + 1 + setup.shard)  # for dropout, whatever numbers were drawn for the weights

    def _callable(self) -> Any:
        """What steps call: the model, as it is compiled."""
        return compiled(self.model, self.rung.compiled) if self.rung.compiled else self.model

    def new_batch(self, seed: int) -> Any:
        """Data that no step has seen, of the form of all steps' data."""
        return batch_of(replace(self.setup, seed=seed), self.kind)

    def loss_of_step(self) -> torch.Tensor:
        """Forward, backward and the optimizer's step. Nothing waits for the device but what torch itself waits for."""
        loss = self._backward()
        self._update()
        return loss

    def as_graph(self, *, ranks: int = 1) -> Callable[[], torch.Tensor]:
        """The step with all that can be in a CUDA graph; all kernels must have been chosen by steps before.

        Where the host must know whether gradients overflowed, the graph ends before the optimizer, as torch's notes on
        CUDA graphs advise for mixed precision. The device has the graph's work to do while the host issues the rest.
        ranks: how many processes communicate in the step.
        """
        if self.is_capturable:
            return captured(self.loss_of_step, ranks=ranks)
        backward = captured(self._backward, ranks=ranks)

        def step() -> torch.Tensor:
            loss = backward()
            self._update()
            return loss

        return step

    def _backward(self) -> torch.Tensor:
        """Forward and backward of all micro-batches, which make new gradients. Gives the loss of the whole batch."""
        import torch

        for weight in self.weights:
            weight.grad = None
        count = self.setup.micro_batches
        losses: list[torch.Tensor] = []
        for number, part in enumerate(parts_of(self.batch, count), 1):
            with self._adding_up(last=number == count):
                loss = self._forward(part)
                # The loss is a mean over the batch, so the gradient of the batch is the mean of its parts' gradients.
                self._differentiate(loss / count if count > 1 else loss)
            losses.append(loss.detach())
        return torch.stack(losses).mean() if count > 1 else losses[0]

    def _adding_up(self, *, last: bool) -> AbstractContextManager[object]:  # noqa: ARG002 - of ranks
        """The context of a micro-batch. last: whether no other one comes before the update."""
        return nullcontext()

    def _forward(self, batch: Any) -> torch.Tensor:
        """The loss of a batch, or of a part of one."""
        import torch

        with torch.autocast(self.setup.device.type, self.setup.dtype, enabled=self.is_autocast):
            loss: torch.Tensor = self.loss(self.called, batch)
        return loss

    def _differentiate(self, loss: torch.Tensor) -> None:
        """Put the gradients of the scaled loss in place."""
        self.scaler.scale(loss).backward()
        if self.second_stream:
            self.second_stream.join()

    def _update(self) -> None:
        """The optimizer's step, and the scale of the next loss."""
        self._step()
        self.scaler.update()

    def _step(self) -> None:
        """The optimizer's step. Masters are given the gradients of halves before it, and halves are copied after it."""
        import torch

        for _, master in self.halves:
            if master.grad is None:
                master.grad = torch.empty_like(master)
        if self.halves:
            torch._foreach_copy_([master.grad for _, master in self.halves], [one.grad for one, _ in self.halves])
        if self.setup.clip is not None:
            # The norm is of gradients without the scale of the loss. If one overflowed, all become NaN, and the scaler,
            # which has seen it before, skips the step.
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.masters, self.setup.clip, foreach=True)
        self.scaler.step(self.optimizer)
        if self.halves:
            with torch.no_grad():
                torch._foreach_copy_([one for one, _ in self.halves], [master for _, master in self.halves])


def built(model: str, operators: Any, seed: int, device: torch.device) -> torch.nn.Module:
    """The model on the device, with weights that depend on the seed and the kind of device only."""
    import torch

    torch.manual_seed(seed)
    with device:
        made: torch.nn.Module = module_of(model).MODEL(MODELS[model], operators)
    return made


def keep_little(model: torch.nn.Module) -> None:
    """Let blocks compute anew in the backward what is between their input and output. It changes no number."""
    from torch.utils.checkpoint import checkpoint

    for block in blocks_of(model).values():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _built(rung: Rung, setup: Setup) -> torch.nn.Module:
    return built(setup.model, _operators.operators(rung, setup.config, setup.device), setup.seed, setup.device)


def _second_stream(model: torch.nn.Module, setup: Setup) -> SecondStream:
    from harness.collection.steps.training._streams import on_two_streams

    return on_two_streams(model, setup.device)


def _cast(model: torch.nn.Module, kind: torch.dtype) -> torch.nn.Module:
    """The model in this type. Batch norms stay in float32 if it is one of halves, as cuDNN wants them."""
    import torch

    model = model.to(kind)
    if kind in (torch.float16, torch.bfloat16):
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.float()
    return model


def _placed(model: torch.nn.Module, setup: Setup) -> torch.nn.Module:
    """The model with the weights of its convolutions in the layout of the images."""
    import torch

    return model.to(memory_format=torch.channels_last) if setup.layout == "nhwc" else model


def batch_of(setup: Setup, kind: torch.dtype) -> Any:
    """The data of all steps, numbers in this type."""
    import torch

    generator = torch.Generator(setup.device).manual_seed(setup.seed + setup.shard)
    batch = module_of(setup.model).batch(setup.config, setup.size, generator, setup.device)
    batch = type(batch)(*(one.to(kind) if one.is_floating_point() else one for one in batch))
    if setup.layout == "nhwc":
        batch = batch._replace(images=batch.images.to(memory_format=torch.channels_last))
    return batch


def parts_of(batch: Any, count: int) -> list[Any]:
    """The batch, cut into equal parts, which are views of it."""
    if count == 1:
        return [batch]
    return [type(batch)(*part) for part in zip(*(one.chunk(count) for one in batch), strict=True)]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; where its parts lie on several ranks, all of them put together, for which every rank must call."""
    gathered: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered


def _optimizer(rung: Rung, config: Config, weights: list[torch.Tensor], *, capturable: bool) -> torch.optim.Optimizer:
    """SGD with momentum for convolutions, AdamW for transformers: torch's foreach or fused calls, or ours.

    capturable: whether its step will be in a graph.
    """
    import torch

    options: dict[str, Any] = {"lr": config.rate, "weight_decay": config.decay}
    if rung.adam:
        from harness.collection.nn._adamw import AdamW

        return AdamW(weights, **options)
    options |= {"fused": True} if rung.fused else {"foreach": True}
    if isinstance(config, ResNetConfig):
        return torch.optim.SGD(weights, momentum=0.9, **options)
    return torch.optim.AdamW(weights, capturable=capturable, **options)


def _scaler(rung: Rung) -> Callable[..., Any]:
    """The class of the rung's GradScaler."""
    import torch

    if rung.unscale:
        from harness.collection.nn._scaler import GradScaler

        return GradScaler
    kind: Callable[..., Any] = loop_scaler() if rung.loop else torch.amp.GradScaler
    return kind


def loop_scaler() -> Callable[..., Any]:
    """The class of a GradScaler that calls torch's kernel for one gradient after the other."""
    import torch

    class LoopScaler(torch.amp.GradScaler):  # type: ignore[misc] # torch has no types
        def _unscale_grads_(
            self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, _: bool
        ) -> dict[torch.device, torch.Tensor]:
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    torch._amp_foreach_non_finite_check_and_unscale_([weight.grad], found_inf, inv_scale)
            return {found_inf.device: found_inf}

    return LoopScaler
