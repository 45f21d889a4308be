"""The optimizers of a step: one, or several in a tuple, a list or a dict, and torch's calls that a rung asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from harness.collection.steps.ladder._given import Given
from harness.collection.steps.ladder._rungs import LadderRung
from harness.errors import UsageError

if TYPE_CHECKING:
    import torch

_CALLS = ("fused", "foreach", "capturable")
"""Settings that say how an optimizer computes, but not what."""


def made(given: Given, model: torch.nn.Module, source: str) -> Any:
    """What optimizer() gives for a model, if it is an optimizer of torch or has several. Raises UsageError if not.

    It gets the weights in a list, which groups may be taken from one after the other.
    """
    import torch

    try:
        found = given.optimizer(model if given.takes_model else [*model.parameters()])
    except (AttributeError, TypeError) as error:
        if given.takes_model:
            raise
        raise UsageError(
            f"{source}: optimizer() fails: {type(error).__name__}: {error}",
            "it gets a list of the model's weights; call its argument `model`, and it gets the model, for groups by "
            "name or for an optimizer of each part",
        ) from error
    leaves = every(found)
    if leaves and all(isinstance(one, torch.optim.Optimizer) for one in leaves):
        return found
    wrong = next((one for one in leaves if not isinstance(one, torch.optim.Optimizer)), found)
    inside = "" if wrong is found else f" in a {type(found).__name__}"
    raise UsageError(
        f"{source}: optimizer() gives a {type(wrong).__name__}{inside}, not an optimizer of torch",
        "give an optimizer, or several in a tuple, a list or a dict, as step(model, optimizer, *batch) is to get them; "
        "leave out schedulers: step() may make one at its first call",
    )


def every(found: Any) -> list[Any]:
    """The optimizers in what optimizer() gives."""
    from torch.utils import _pytree

    leaves: list[Any] = _pytree.tree_leaves(found)
    return leaves


def mapped(found: Any, change: Callable[[Any], Any]) -> Any:
    """The same form with each optimizer changed."""
    from torch.utils import _pytree

    return _pytree.tree_map(change, found)


def weights_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All weights that an optimizer has."""
    return [one for group in optimizer.param_groups for one in group["params"]]


def has_option(optimizer: torch.optim.Optimizer, name: str) -> bool:
    """Whether an optimizer's class has an option of this name, for its weights: none is fused for complex ones."""
    if name == "fused" and any(one.is_complex() for one in weights_of(optimizer)):
        return False
    return name in inspect.signature(type(optimizer).__init__).parameters


def as_asked(plain: torch.optim.Optimizer, rung: LadderRung) -> torch.optim.Optimizer:
    """The optimizer with torch's calls that the rung asks for.

    Where ours stands for AdamW, other optimizers have torch's: the fused ones if there are any.
    """
    from harness.collection.nn._patch import why_no_adamw

    calls = rung.optimizer
    if calls == "ours":
        if not why_no_adamw(plain):
            return plain
        calls = "fused" if has_option(plain, "fused") else "foreach"
    options: dict[str, Any] = {}
    if calls:
        options = {"fused": calls == "fused", "foreach": calls == "foreach"}
    if rung.graph:
        options["capturable"] = True
    return rebuilt(plain, **options)


def rebuilt(optimizer: torch.optim.Optimizer, **options: Any) -> torch.optim.Optimizer:
    """An optimizer of the same class and groups with other options; the given one if there are none."""
    options = {name: value for name, value in options.items() if has_option(optimizer, name)}
    if not options:
        return optimizer
    groups = [{**group, **options} for group in optimizer.param_groups]
    return type(optimizer)(groups, lr=groups[0]["lr"], **options)


def state_of(optimizer: torch.optim.Optimizer, whole: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """A copy of an optimizer's state. whole: puts together what ranks have parts of."""
    import torch
    from torch.utils import _pytree

    def kept(one: Any) -> Any:
        return whole(one.detach()).clone() if isinstance(one, torch.Tensor) else one

    found: dict[str, Any] = _pytree.tree_map(kept, optimizer.state_dict())
    return found


def go_on(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Let an optimizer go on from a copy of a state, in its own way of computing."""
    from torch.utils import _pytree

    own = optimizer.state_dict()["param_groups"]
    groups = [
        {**group, **{name: mine[name] for name in _CALLS if name in mine}}
        for group, mine in zip(state["param_groups"], own, strict=True)
    ]
    copied = _pytree.tree_map(lambda one: one.clone() if hasattr(one, "clone") else one, state["state"])
    optimizer.load_state_dict({"state": copied, "param_groups": groups})


def rates(optimizers: Iterable[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """The settings of all groups, such as rates: those that are numbers."""
    return [
        {name: value for name, value in group.items() if name != "params" and _is_plain(value)}
        for one in optimizers
        for group in one.param_groups
    ]


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, tuple) and all(isinstance(x, int | float) for x in value)
    )
