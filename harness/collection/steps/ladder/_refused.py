"""What a user's functions must give, and what is said where they give something else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Losses:
    """What loss() or step() gives.

    main: one number. named: numbers by name that have gradients, without the main one. is_dict: whether it was a dict.
    """

    main: torch.Tensor
    named: Mapping[str, torch.Tensor]
    is_dict: bool = True


def losses_of(found: Any, given: Given) -> Losses:
    """What loss() or step() has given: a tensor of one number, or such tensors by name.

    Of several, the one named 'loss' is the main one; step() may leave it out, then it is their sum. Raises UsageError
    for anything else.
    """
    import torch

    if not isinstance(found, Mapping):
        return Losses(_scalar(found, given), {}, is_dict=False)
    what = _called(given)
    every = {str(name): one for name, one in found.items() if isinstance(one, torch.Tensor) and one.numel() == 1}
    # The others are figures such as an accuracy, which halves may change by a whole item.
    named = {name: one for name, one in every.items() if one.requires_grad and name != "loss"}
    if "loss" in every:
        return Losses(every["loss"], named)
    names = ", ".join(map(str, found)) or "nothing"
    if "step" not in given.names:
        advice = "add 'loss', the one whose backward trains, such as their sum; the others are compared by their names"
        raise UsageError(f"{what} gives a dict without a tensor 'loss': it has {names}", advice)
    if not every:
        advice = "give tensors, as in loss.detach(), without item(): item() lets the host wait for the device"
        raise UsageError(f"{what} gives a dict without a tensor of one number: it has {names}", advice)
    return Losses(torch.stack([one.detach().sum() for one in (named or every).values()]).sum(), named)


def _called(given: Given) -> str:
    """The name of the function that gives the loss."""
    name = next((name for name in ("step", "loss") if name in given.names), "")
    return f"{name}()" if name else "the model's loss"


def _scalar(found: Any, given: Given) -> torch.Tensor:
    """A tensor of one number. Raises UsageError for anything else."""
    import torch

    what = _called(given)
    if not isinstance(found, torch.Tensor):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        advice = {
            float: "give the tensor, as in loss.detach(), without item(): item() lets the host wait for the device",
            tuple: "give the loss alone, the first of them or their sum, or a dict of losses by name",
            type(None): "give the loss, by which rungs are compared: end it by `return loss`",
        }.get(type(found), "give the loss, a tensor of one number, or a dict of such tensors by name")
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


def refuse_ended(error: ValueError) -> None:
    """Raise UsageError for an error of a scheduler that has made all its steps."""
    if "number of total steps" in str(error):
        raise UsageError(
            f"a scheduler of the rate ends, but a ladder makes thousands of steps: give it total_steps=10**7: {error}",
            "or leave the scheduler out of step()",
        ) from error


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
