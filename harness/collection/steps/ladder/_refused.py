"""What a user's functions must give, and what is said where they give something else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError

if TYPE_CHECKING:
    import torch

    from harness.collection.steps.ladder._given import Given

_KNOWN = {
    "argument: 'closure'": "give step(model, optimizer, *batch) in place of loss, which calls optimizer.step(closure)",
    "sparse gradients": (
        "let optimizer(parameters) give an optimizer that takes them, such as torch.optim.SparseAdam, or make the "
        "embedding without sparse=True"
    ),
    "Expected all tensors to be on the same device": (
        "make tensors where the batch is, as in torch.zeros(3, device=x.device); the harness moves the model and the "
        "tensors of batch() to the device, and nothing else"
    ),
    "does not require grad": "let the loss come from the model's weights, without detach() and torch.no_grad()",
}
"""What to do about errors of torch, by words of them."""


def loss_of(found: Any, given: Given) -> torch.Tensor:
    """What loss() or step() has given, if it is a tensor of one number. Raises UsageError for anything else."""
    import torch

    name = next((name for name in ("step", "loss") if name in given.names), "the model's loss")
    what = f"{name}()" if name in given.names else name
    if not isinstance(found, torch.Tensor):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        advice = {
            float: "give the tensor, as in loss.detach(), without item(): item() lets the host wait for the device",
            tuple: "give the loss alone, the first of them or their sum",
        }.get(type(found), "give the loss, a tensor of one number")
        raise UsageError(f"{what} gives {kind}, not a tensor", advice)
    if found.numel() != 1:
        raise UsageError(
            f"{what} gives {found.numel()} numbers, {tuple(found.shape)}", "give one, such as their mean()"
        )
    return found


def module_of(found: Any, source: str) -> torch.nn.Module:
    """What model() has given, if it is a module. Raises UsageError for anything else."""
    import torch

    if isinstance(found, torch.nn.Module):
        return found
    advice = "give the module that is trained; of several give a torch.nn.ModuleDict of them, and a step()"
    raise UsageError(f"{source}: model() gives a {type(found).__name__}, not a torch.nn.Module", advice)


def refuse_no_number(loss: float, source: str, number: int = 1) -> None:
    """Raise UsageError for a loss that is infinite or no number. number: of the step, from 1."""
    if math.isfinite(loss):
        return
    advice = (
        "correct the loss, or the data: torch.autograd.set_detect_anomaly(True) in the file says where it comes from"
        if number == 1
        else "take a smaller rate in optimizer(), or scale the data: nothing can be compared with such losses"
    )
    raise UsageError(f"{source}: the loss of step {number} is {loss}, in float32 without TF32", advice)


@contextmanager
def advised() -> Iterator[None]:
    """Errors of a step that are known become a UsageError with what to do."""
    try:
        yield
    except UsageError:
        raise
    except (RuntimeError, TypeError) as error:
        first = str(error).partition("\n")[0]
        for words, advice in _KNOWN.items():
            if words in first:
                raise UsageError(f"the step fails: {type(error).__name__}: {first}", advice) from error
        raise
