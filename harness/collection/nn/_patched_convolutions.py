"""Convolutions that cut an image into patches, as the first layer of a ViT or a Swin does, as one product of matrices.

Where the stride is the kernel, each number of the image is read once, so the convolution is a linear layer over rows of
patches. Of 3 channels, cuDNN's choice for ViT-B under autocast on an H200 was a product in float32 of 0.49 ms, and two
kernels that turn the layout (reports/h200/ladder_vit in revision 8dcf5490). Where channels are a multiple of 8, as
tensor cores want them, the convolution stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.collection.nn._patched_compiled import autocast_halves
from harness.collection.nn._patched_modules import HALVES, Found, swap, untouchable

_ALIGNED = 8  # channels of 2 bytes that are 16 bytes, as tensor cores want them


def convolutions(model: nn.Module) -> Iterator[Found]:
    """Swap convolutions into patches of images with few channels; other convolutions aren't told of."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Conv2d and _cuts(module):
            if why := untouchable(module):
                yield name, "Conv2d", why, None
            else:
                yield name, "Conv2d", "a product of patches, in halves", swap(module, _product)


def _cuts(module: nn.Conv2d) -> bool:
    """Whether a convolution reads each number of an image of few channels once."""
    apart = module.stride == module.kernel_size and module.padding in ((0, 0), "valid") and module.dilation == (1, 1)
    return apart and module.groups == 1 and max(module.kernel_size) > 1 and module.in_channels % _ALIGNED > 0


def _product(module: Any, input: Tensor) -> Tensor:
    if not _fits(module, input):
        return nn.Conv2d.forward(module, input)
    (down, right), (images, channels, height, width) = module.kernel_size, input.shape
    tiles = input.reshape(images, channels, height // down, down, width // right, right).permute(0, 2, 4, 1, 3, 5)
    y = functional.linear(tiles.flatten(3), module.weight.flatten(1), module.bias).permute(0, 3, 1, 2)
    # In the layout that the convolution gives, on which a caller may rely.
    return y if _lies_as_nhwc(input) or _lies_as_nhwc(module.weight) else y.contiguous()


def _fits(module: Any, x: Tensor) -> bool:
    """Whether the product is in halves, and the patches cover the image."""
    if x.ndim != len("NCHW") or x.shape[1] != module.in_channels or not x.numel():
        return False
    if any(size % side for size, side in zip(x.shape[2:], module.kernel_size, strict=True)):
        return False
    return x.dtype in HALVES or (x.dtype == torch.float32 and autocast_halves(x.device.type) is not None)


def _lies_as_nhwc(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
