"""What has to be run of a user's step before it can be measured. It runs in a process that may die."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.collection.steps.ladder._sheet import StepSheet
from harness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.collection.steps.ladder._trainer import StepTrainer

_LONGEST = 60
"""Characters of a name that a source gives an op."""


def survey(request: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the StepSheet of a source, after one step of it.

    request: source, a path or a library's model; device, torch's name; size, of a library's batch; prefix, of the op's
    name; world, the most devices that it will be measured on. Raises UsageError for a source that isn't as it must be,
    and what the step raises.
    """
    import torch
    from torch.nn.parameter import is_lazy

    from harness.collection.nn._patch import patch, why_no_adamw
    from harness.collection.steps.ladder import _given
    from harness.collection.steps.ladder._rungs import FLOAT32
    from harness.collection.steps.ladder._trainer import (
        StepSetup,
        StepTrainer,
        blocks_of,
        has_batch_norm,
        has_option,
        tensors_of,
    )

    source = str(request["source"])
    if not _given.is_library(source):
        if not Path(source).is_file():
            raise UsageError(f"{source}: names no library that is known", "write timm:NAME or transformers:NAME")
        source = str(Path(source).resolve())
    given = _given.given(source, request["size"])
    trainer = StepTrainer(FLOAT32, StepSetup(source, request["size"], 1, torch.device(request["device"]), "bfloat16"))
    _refuse_hidden(source, trainer.batch)
    if unsized := sum(is_lazy(one) for one in trainer.model.parameters()):
        raise UsageError(
            f"{source}: model() gives {unsized} parameters without a size, of lazy modules",
            "let model() call the module with a batch once before it gives it",
        )
    sizes = [one.shape[0] for one in tensors_of(trainer.batch) if one.ndim]
    if not sizes:
        raise UsageError(f"{source}: batch() gives no tensor with a first dimension", "give the items of a step in it")
    modules = [*trainer.model.modules()]
    repeats = bool(blocks_of(trainer.model))  # before our kernels are in them
    flops, attends, unused = _one_step(trainer)
    patched = patch(trainer.model, None if given.step else trainer.optimizer)  # as `patched` does
    fused = has_option(trainer.optimizer, "fused")
    return asdict(
        StepSheet(
            name=f"{request['prefix']}{name_of(source)}",
            source=source,
            digest="" if _given.is_library(source) else hashlib.sha256(Path(source).read_bytes()).hexdigest(),
            size=sizes[0],
            gives=given.names,
            flops=flops,
            optimizer=type(trainer.optimizer).__name__,
            fused=fused,
            foreach=has_option(trainer.optimizer, "foreach"),
            adamw=why_no_adamw(trainer.optimizer),
            convolutions=sum(isinstance(one, torch.nn.Conv2d) for one in modules) > 1,
            batch_norm=has_batch_norm(trainer.model),
            linear=any(type(one) is torch.nn.Linear for one in modules),
            attention=attends,
            blocks=repeats,
            patched=str(patched),
            world=request["world"],
            gradients=sum(one.numel() * one.element_size() for one in trainer.weights),
            unused=unused,
        )
    )


def _refuse_hidden(source: str, batch: Any) -> None:
    """Raise UsageError for an object in a batch that may hold tensors where nobody sees them."""
    import torch
    from torch.utils import _pytree

    for one in _pytree.tree_leaves(batch):
        if isinstance(one, torch.Tensor):
            continue
        if isinstance(one, Mapping) or is_dataclass(one) or hasattr(one, "to"):
            raise UsageError(
                f"{source}: batch() gives a {type(one).__name__}, in which the harness finds no tensors",
                "give a tensor, a tuple, a list or a dict of tensors, such as dict(batch) or vars(batch); loss gets "
                "the tensors of a dict by their names",
            )


def name_of(source: str) -> str:
    """A name that an id can hold: the file's without its suffix, or the model's."""
    from harness.collection.steps.ladder._given import is_library

    is_model = is_library(source)
    last = Path(source.partition(":")[2]).name if is_model else Path(source).stem.removeprefix("ladder_")
    return re.sub(r"[^a-z0-9_]+", "_", last.lower()).strip("_")[-_LONGEST:] or "step"


def _one_step(trainer: StepTrainer) -> tuple[int, bool, int]:
    """The operations of a step, whether it attends by scaled_dot_product_attention, and weights without a gradient."""
    from torch.utils.flop_counter import FlopCounterMode

    unused = 0

    def see(*_: object) -> None:
        nonlocal unused
        unused = sum(one.grad is None for one in trainer.weights)

    trainer.optimizer.register_step_pre_hook(see)
    with _attending() as calls, FlopCounterMode(display=False) as counter:
        loss = trainer.loss_of_step()
    if loss.numel() != 1:
        raise UsageError(
            f"the loss has {loss.numel()} numbers, {tuple(loss.shape)}", "let loss(model, *batch) give one number"
        )
    return int(counter.get_total_flops()), bool(calls), unused


@contextmanager
def _attending() -> Iterator[list[object]]:
    """Calls of scaled_dot_product_attention meanwhile, also by functions of torch."""
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    calls: list[object] = []
    real = functional.scaled_dot_product_attention

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(real)
        return real(*args, **kwargs)

    class Watch(TorchFunctionMode):  # type: ignore[misc] # torch has no types
        def __torch_function__(
            self, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if function is real:
                calls.append(real)
            return function(*args, **(kwargs or {}))

    functional.scaled_dot_product_attention = counted
    try:
        with Watch():
            yield calls
    finally:
        functional.scaled_dot_product_attention = real
