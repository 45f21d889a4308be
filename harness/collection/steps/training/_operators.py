"""The operators of models: a rung has some from torch, and some are ours.

The files `_swin`, `_bert`, `_resnet` and `_llama` have those of one model each.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.collection.models import Config
from harness.collection.steps.training._rungs import Rung

if TYPE_CHECKING:
    import torch


def operators(rung: Rung, config: Config, device: torch.device) -> Any:
    """The operators of a model with this configuration; None for the model's own.

    The model's file is found by name, and is not imported here: the op whose steps these are imports it. So the code of
    the op has this file and the kernels that it runs, and no other model's.
    """
    own = import_module(f"{__package__}._{config.module}")
    found = own.ours(rung) if rung.norm or rung.attention else None
    parts = own.of_torch(rung, config, device)
    plain = import_module(f"harness.collection.models.{config.module}").OPERATORS
    return replace(found or plain(), **parts) if parts else found


def half_norm(rung: Rung) -> dict[str, Any]:
    """Torch's LayerNorm and softmax in their input's type, if the rung has them."""
    return {"layer_norm": layer_norm, "softmax": softmax} if rung.half_norm else {}


def layer_norm(norm: torch.nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    """Torch's LayerNorm in the type of x, where autocast would give float32."""
    import torch

    with torch.autocast(x.device.type, enabled=False):
        weight, bias = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
        return torch.nn.functional.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)


def softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Torch's softmax in the type of x, where autocast would give float32."""
    import torch

    with torch.autocast(x.device.type, enabled=False):
        return torch.softmax(x, dim)
