"""Products in float8 with a scale for each tensor, found anew for each product: forward in e4m3, gradients in e5m2.

Micikevicius et al. (2022) describe the two types. torchao's recipe "tensorwise" does the same; `by_torchao` takes it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from harness.collection.models import LlamaConfig
from harness.collection.models.files import blocks_of

if TYPE_CHECKING:
    import torch

TINY = 1e-12
"""The least that is taken for the largest element of a tensor, so that zeros have a scale."""


def in_float8(model: torch.nn.Module) -> torch.nn.Module:
    """The model, with the products of its blocks in float8. The head's stays: its logits need more digits."""
    import torch

    product = float8_product()  # made here, since torch 2.11 can't compile what makes a class
    for block in blocks_of(model).values():
        for module in block.modules():
            if isinstance(module, torch.nn.Linear):
                module.forward = partial(linear, product, module.weight)
    return model


def by_torchao(model: torch.nn.Module) -> torch.nn.Module:
    """The same by torchao's linear layers, which keep the weights. On a CPU, torchao emulates the products."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=next(model.parameters()).device.type == "cpu")
    for block in blocks_of(model).values():
        convert_to_float8_training(block, config=config)
    return model


OF: Mapping[str, Callable[[torch.nn.Module], torch.nn.Module]] = {"torch": in_float8, "torchao": by_torchao}
"""What puts a model's blocks in float8, by the name that a rung has for it."""


def obstacle(whose: str) -> str | None:
    """Why products of this name can't be taken; None if they can."""
    if whose == "torchao" and importlib.util.find_spec("torchao") is None:
        return "torchao isn't installed: pip install 'torchao>=0.17'"
    return None


def flops(config: LlamaConfig, size: int) -> tuple[tuple[str, int], ...]:
    """The operations of a training step: those of blocks' products in float8, the rest in the case's type."""
    every, float8 = 3 * size * config.flops(), 3 * size * config.flops_of_products()
    return (("float8", float8), ("case", every - float8))


def linear(product: type[torch.autograd.Function], weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The product of x (..., K) and the weight (M, K): (..., M) in bfloat16. product: `float8_product()`.

    Both sizes, and the rows of x, are multiples of 16.
    """
    y: torch.Tensor = product.apply(x.flatten(0, -2), weight)
    return y.unflatten(0, x.shape[:-1])


def quantised(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor in float8, and the scale, a scalar in float32: x is about their product."""
    import torch

    largest = torch.finfo(dtype).max
    scale = x.abs().amax().float().clamp(min=TINY) / largest
    return (x.float() / scale).clamp(-largest, largest).to(dtype), scale


def _product(a: Any, b: Any, *, fast: bool) -> torch.Tensor:
    """The product of two quantised matrices (N, K) and (M, K): (N, M) in bfloat16. fast: sums in fewer digits."""
    import torch

    (x, scale_x), (y, scale_y) = a, b
    return torch._scaled_mm(x, y.t(), scale_a=scale_x, scale_b=scale_y, out_dtype=torch.bfloat16, use_fast_accum=fast)


@cache
def float8_product() -> type[torch.autograd.Function]:
    """The product as a function of torch, with its gradients: x (N, K), weight (M, K) to (N, M)."""
    import torch

    class Float8Product(torch.autograd.Function):  # type: ignore[misc] # torch has no types
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, weight)
            return _product(quantised(x, torch.float8_e4m3fn), quantised(weight, torch.float8_e4m3fn), fast=True)

        @staticmethod
        def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, weight = ctx.saved_tensors
            # A factor must have the summed dimension last in memory.
            dy, scale = quantised(slope, torch.float8_e5m2)
            of_x, of_weight = (quantised(one.t().contiguous(), torch.float8_e4m3fn) for one in (x, weight))
            dx = _product((dy, scale), of_weight, fast=False)
            dweight = _product((dy.t().contiguous(), scale), of_x, fast=False)
            return dx.to(x.dtype), dweight.to(weight.dtype)

    return Float8Product
