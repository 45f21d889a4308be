"""Gradients of weights on a second stream.

A backward has two products for each layer. The backward goes on with the gradient of the layer's input; the gradient of
the layer's weight isn't needed before the optimizer. Large products fill a GPU, so time is left to gain only in their
last waves of blocks, in products with few outputs, and in kernels between products that wait for memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = TypeVar("Made")


class SecondStream:
    """A stream beside the one that a backward runs on. On a CPU there is none, and all is done in turn.

    A CUDA graph may capture it: the stream takes part in the capture from each call of `both` until the next, or until
    `join`.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._used: tuple[Tensor, ...] = ()

    def both(self, here: Callable[[], Made], there: Callable[[], object], *used: Tensor) -> Made:
        """Give what `here` makes on the current stream, and let `there` run beside it and beside what follows.

        used: what `there` reads. It is kept until the current stream has waited for its end, since memory that is free
        is given to the next kernels of the stream that it was made on. So only one `there` runs at a time.
        """
        if self._stream is None:
            there()
            return here()
        self.join()
        self._stream.wait_stream(torch.cuda.current_stream())
        made = here()
        with torch.cuda.stream(self._stream):
            there()
        self._used = used
        return made

    def join(self) -> None:
        """Make the current stream wait for what runs on the second one, if anything does."""
        if self._used:
            assert self._stream is not None
            torch.cuda.current_stream().wait_stream(self._stream)
            self._used = ()


def on_two_streams(model: nn.Module, device: torch.device) -> SecondStream:
    """Make the model's products put their weights' gradients on a second stream, to be joined after each backward.

    A weight must have one product in a step, and no gradient before it.
    """
    second = SecondStream(device)
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = _Linear  # parameters and hooks stay as they are
            module.second = second
    return second


class _Linear(nn.Linear):  # type: ignore[misc] # torch has no types
    second: SecondStream

    def forward(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self.weight, self)


class _Product(torch.autograd.Function):  # type: ignore[misc] # torch has no types
    """The product of a layer, in the types that autocast gives it. Its backward puts gradients in place by itself.

    Autograd would put them in place, too, but it may copy them first, on a stream that didn't wait for them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, _weight: Tensor, layer: _Linear) -> Tensor:
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        narrow, weight = x.to(dtype), layer.weight.to(dtype)
        ctx.save_for_backward(narrow, weight)
        ctx.layer, ctx.dtype = layer, x.dtype
        bias = None if layer.bias is None else layer.bias.to(dtype)
        return functional.linear(narrow, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        layer, rows, of_rows = ctx.layer, x.flatten(0, -2), dy.flatten(0, -2)

        def of_weights() -> None:
            layer.weight.grad = (of_rows.T @ rows).to(layer.weight.dtype)
            if layer.bias is not None:
                layer.bias.grad = of_rows.sum(0).to(layer.bias.dtype)

        # Autograd may add to dy in place, but not while somebody else has it.
        dx = layer.second.both(lambda: of_rows @ weight, of_weights, rows, of_rows, dy)
        return dx.view(x.shape).to(ctx.dtype), None, None
