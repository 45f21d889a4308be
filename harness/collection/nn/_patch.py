"""`patch`: our kernels put into a model that somebody else has written, and what could not be put in, with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from harness.collection.nn import (
    _patched_activations,
    _patched_blocks,
    _patched_convolutions,
    _patched_gates,
    _patched_modules,
    _patched_projections,
    _patched_rotary,
)
from harness.collection.nn._adamw import AdamW
from harness.collection.nn._scaler import GradScaler

_MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class Swap:
    """Something that now runs by ours. name: the module's in the model. was: its class. now: the function of ours."""

    name: str
    was: str
    now: str


@dataclass(frozen=True, slots=True)
class Left:
    """Something that stays as it was. why: the reason, in a few words."""

    name: str
    was: str
    why: str


@dataclass(slots=True)
class Patched:
    """What `patch` has done. str() of it says so in a few lines.

    model: the model that was given. optimizer, scaler: ours, or the given ones where ours can't stand for them; of
    several optimizers each, in the form in which they were given.
    """

    model: nn.Module
    optimizer: Any = None
    scaler: Any = None
    swapped: list[Swap] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    undone: list[Callable[[], object]] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Make the model what it was. The given optimizer and scaler go on from the state of ours."""
        while self.undone:
            self.undone.pop()()

    def __str__(self) -> str:
        """What was swapped and what was left, alike things in one line."""
        lines = [f"swapped: {len(self.swapped)}, left: {len(self.left)}"]
        lines += _told(((one.was, f"-> {one.now}"), one.name) for one in self.swapped)
        lines += _told(((one.was, f"left: {one.why}"), one.name) for one in self.left)
        return "\n".join(lines)


def patch(model: nn.Module, optimizer: Any = None, scaler: Any = None) -> Patched:
    """Put our kernels into a model, in place; `undo()` of the result takes them out again.

        patched = nn.patch(model, optimizer, scaler)
        optimizer, scaler = patched.optimizer, patched.scaler
        print(patched)

    What is swapped: nn.LayerNorm, nn.RMSNorm, and classes that compute the same; nn.Softmax over the last dimension;
    nn.Dropout; batch norm followed by ReLU, also with an addition between them, within one module's forward; a linear
    layer followed by dropout and an addition; gated MLPs with SiLU, as Llama's (gate_proj, up_proj, down_proj); rotary
    embeddings of whole heads by a function apply_rotary_pos_emb, as transformers' decoders have them (Llama, Mistral,
    Qwen2 ...); a convolution that cuts images of few channels into patches, as ViT's first layer, which becomes a
    linear layer where it computes in halves; in compiled code GELU of halves and, under autocast, linear layers that a
    forward calls with one input, as attention does for queries, keys and values, which become one product; softmax,
    layer_norm, rms_norm and dropout that a module's forward calls as functions; torch's attention in such a forward,
    where its mask is the same for all keys, which keeps torch from its fused kernels; the operators of the models in
    harness.collection.models, windows among them. A torch.optim.AdamW becomes our AdamW and a GradScaler ours, each
    with its state; a scheduler of the rate must be made after that. Several optimizers may be given in a tuple, a list
    or a dict.

    Parameters, buffers, their names, hooks, ties of weights, and train() and eval() stay as they are, since a module
    keeps its object and gets another class. A class that overrides `forward` is swapped only where a try with random
    numbers shows that it computes the same. Several modules become one kernel only where the source of the forward
    around them has nothing but calls on its arguments: it stores nothing, draws nothing, reads no setting of the
    module, and has no `with` and no autograd Function. A module among them that is replaced later, or gets a hook, is
    called as it is. Patch before torch.compile and before DDP, and after gradient_checkpointing_enable() of
    transformers or set_grad_checkpointing() of timm: in compiled code functions and attention stay torch's then. Under
    autocast our norms, softmax and rope hand on halves, where torch's hand on float32. In compiled code a norm and a
    softmax whose input is in float32 under autocast, as a residual stream is, have torch's forward, which the compiler
    fuses with what is around it; the norm's backward is ours, and works in halves. A patched model can be deep-copied;
    to pickle it whole, or for torch.jit.script, undo the patch first (its state_dict needs nothing).

    Not covered: rotary embeddings of a part of a head, and other ways to write them; windows, attention and norms that
    a model writes out by hand in single operations; modules of torch.jit; functions that are called more than one
    function below a module's forward. torch.utils.checkpoint in a model of your own, around a module that calls such
    functions, stops the compiler at that place.
    """
    done = Patched(model, optimizer, scaler)
    for found in (
        *(_patched_blocks.operators, _patched_blocks.blocks, _patched_gates.gates, _patched_projections.projections),
        *(_patched_modules.modules, _patched_modules.calls, _patched_rotary.rotary, _patched_convolutions.convolutions),
        _patched_activations.activations,
    ):
        for name, was, now, undo in found(model):
            if undo is None:
                done.left.append(Left(name, was, now))
            else:
                done.swapped.append(Swap(name, was, now))
                done.undone.append(undo)
    if optimizer is not None:
        done.optimizer = _pytree.tree_map_with_path(partial(_optimizer, done), optimizer)
    if scaler is not None:
        _scaler(done)
    return done


def why_no_adamw(optimizer: torch.optim.Optimizer) -> str:
    """Why our AdamW can't stand for an optimizer; '' if it can."""
    if type(optimizer) is not torch.optim.AdamW:
        return "our optimizer is AdamW"
    if why := next(filter(None, map(_why_not_group, optimizer.param_groups)), ""):
        return why
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):  # torch's mark
        return "it has a scheduler of the rate, which ours wouldn't follow: make the scheduler after the patch"
    return ""


def _why_not_group(group: dict[str, Any]) -> str:
    """Why our AdamW can't have a group of weights; '' if it can."""
    whys: dict[str, Any] = {
        "our AdamW has no amsgrad": group.get("amsgrad"),
        "our AdamW has no differentiable": group.get("differentiable"),
        "its rate is a tensor, which a graph with our AdamW wouldn't follow": isinstance(group["lr"], torch.Tensor),
        "its betas are tensors, ours numbers": any(isinstance(beta, torch.Tensor) for beta in group["betas"]),
        "it has complex weights, which our AdamW doesn't take": any(one.is_complex() for one in group["params"]),
    }
    return next((why for why, holds in whys.items() if holds), "")


def _optimizer(done: Patched, path: Any, given: Any) -> Any:
    """Ours in place of an optimizer, or the given one. path: to it in what `patch` was given."""
    name = f"optimizer{_pytree.keystr(path)}"
    if isinstance(given, AdamW):
        return given
    if why := why_no_adamw(given):
        done.left.append(Left(name, type(given).__name__, why))
        return given
    ours = AdamW([{**group} for group in given.param_groups])
    if given.state:
        ours.load_state_dict(given.state_dict())
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(ours, hooks, getattr(given, hooks))
    done.swapped.append(Swap(name, "AdamW", "nn.AdamW"))
    done.undone.append(lambda: _give_back(ours, given))
    return ours


def _give_back(ours: AdamW, given: torch.optim.Optimizer) -> None:
    """Let the given optimizer go on from where ours is."""
    state = ours.state_dict()
    options = given.state_dict()["param_groups"]
    for group, own in zip(state["param_groups"], options, strict=True):
        group.update({name: value for name, value in own.items() if name not in group})
    given.load_state_dict(state)


def _scaler(done: Patched) -> None:
    given = done.scaler
    if isinstance(given, GradScaler):
        return
    if type(given) is not torch.amp.GradScaler:
        done.left.append(Left("scaler", type(given).__name__, "ours stands for torch.amp.GradScaler alone"))
        return
    ours = GradScaler(given._device, enabled=given.is_enabled())
    if given.is_enabled():
        ours.load_state_dict(given.state_dict())
    done.scaler = ours
    done.swapped.append(Swap("scaler", "GradScaler", "nn.GradScaler"))
    done.undone.append(lambda: given.is_enabled() and given.load_state_dict(ours.state_dict()))


def _told(found: Iterable[tuple[tuple[str, str], str]]) -> Iterator[str]:
    """A line for each kind, with its number and the first names."""
    names: dict[tuple[str, str], list[str]] = {}
    for kind, name in found:
        names.setdefault(kind, []).append(name)
    counted = Counter({kind: len(own) for kind, own in names.items()})
    for (was, told), count in counted.most_common():
        own = names[was, told]
        more = f" and {count - _MOST_NAMES} more" if count > _MOST_NAMES else ""
        yield f"  {count} x {was} {told} ({', '.join(own[:_MOST_NAMES])}{more})"
