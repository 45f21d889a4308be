"""Gated MLPs, as Llama's has them, that run by our SwiGLU: down_proj(silu(gate_proj(x)) * up_proj(x)).

The three projections stay modules that are called, whatever they are: with hooks, adapters or weights of 8 bits.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.collection.nn._decoder import swiglu
from harness.collection.nn._patched_modules import CLOSE, HOOKS, Found, bare, swap, untouchable, why_changed

_SMALL = {"gate_proj": (8, 12), "up_proj": (8, 12), "down_proj": (12, 8)}
"""The projections, each with its inputs and outputs in the try."""
_ROWS = 16


def gates(model: nn.Module) -> Iterator[Found]:
    """Swap modules with these projections; say why others stay."""
    for name, module in list(model.named_modules()):
        if not all(isinstance(getattr(module, one, None), nn.Module) for one in _SMALL):
            continue
        if getattr(type(module), "is_ours", False):
            continue
        was = type(module).__name__
        if why := untouchable(module) or _why_not(module):
            yield name, was, why, None
        else:
            yield name, was, "nn.swiglu", swap(module, _gated)


def _gated(module: Any, *given: Tensor, **named: Tensor) -> Any:
    # The argument has other names in other libraries.
    (x,) = (*given, *named.values())
    gate, up = module.gate_proj(x), module.up_proj(x)
    fit = gate.shape == up.shape and gate.dtype == up.dtype
    return module.down_proj(swiglu(gate, up) if fit else functional.silu(gate) * up)


def _why_not(module: Any) -> str:
    """Why a module isn't swapped, by a try of its own forward between small projections; '' if it is."""
    if len(inspect.signature(type(module).forward).parameters) != 2:
        return "its forward takes more than one argument"
    others = [child for name, child in module.named_children() if name not in _SMALL]
    if any(getattr(inner, hooks) for child in others for inner in child.modules() for hooks in HOOKS):
        return "its activation has hooks"
    if any(True for child in others for _ in child.parameters()):
        return "its activation has parameters"
    tried = bare(module)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.autocast("cpu", enabled=False):
            torch.default_generator.manual_seed(1)  # of the CPU alone
            small = {name: nn.Linear(*sizes, device="cpu", dtype=torch.float32) for name, sizes in _SMALL.items()}
            vars(tried)["_modules"] = {**module._modules, **small}
            x = 4 * torch.randn(_ROWS, _SMALL["gate_proj"][0], device="cpu", dtype=torch.float32)
            for training in (True, False):
                tried.training = training
                got, want = type(module).forward(tried, x), _gated(tried, x)
                alike = isinstance(got, Tensor) and got.shape == want.shape
                if not alike or not torch.allclose(got, want, CLOSE, CLOSE):
                    return "its own forward computes something else"
    except Exception as error:  # whatever somebody else's forward wants, it isn't what ours takes
        return f"its own forward can't be tried: {type(error).__name__}"
    tried.__dict__["_modules"] = module._modules
    return why_changed(tried, module)
