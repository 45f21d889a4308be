"""How a model is made ready for inference: biases looked up ahead, channels of its first convolution last, and more."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def prepared(model: Any) -> Any:
    """Look the biases of positions up once for all calls, and let channels of the patches' convolution come last.

    Then the convolution's output needs no transpose. The model's operators are replaced, and its tables by biases.
    """
    import torch

    for part in model.modules():
        if hasattr(part, "relative_position_bias_table"):
            table, index = part.relative_position_bias_table, part.relative_position_index
            bias = part.operators.position_bias(table, index).detach()
            part.relative_position_bias_table = torch.nn.Parameter(bias)
            part.operators = replace(part.operators, position_bias=_given)
    return model.to(memory_format=torch.channels_last)


def _given(bias: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return bias


def bias_apart(model: Any) -> Any:
    """The model with the bias of queries, keys and values added by a kernel of its own, in place."""
    import torch

    for part in model.modules():
        if hasattr(part, "qkv"):
            product = torch.nn.utils.skip_init(torch.nn.Linear, *part.qkv.weight.shape[::-1], bias=False, device="meta")
            product.weight, bias = part.qkv.weight, part.qkv.bias
            product.register_forward_hook(partial(_add, bias))
            part.qkv = product
    return model


def _add(bias: torch.Tensor, _module: Any, _inputs: Any, made: torch.Tensor) -> torch.Tensor:
    return made.add_(bias)
