"""What batch norm and its backward share: sizes, layouts and declarations.

Symbol L says how images lie in memory: 0 as NCHW, 1 channels last (NHWC). A tensor of images is declared as its
contiguous memory, (outer, channels, inner), in either layout: element i is of channel i // inner % channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.ops import Context, Symbols, Tensor

if TYPE_CHECKING:
    import torch

EPSILON = 1e-5
MOMENTUM = 0.1
"""Torch's defaults."""

SYMBOLS = {
    "N": "batch",
    "C": "channels",
    "H": "height",
    "W": "width",
    "L": "layout: 0 is NCHW, 1 is channels last",
}
DEFAULTS = {"L": "0"}
MASK = Tensor("mask", ("cdiv(N * C * H * W, 32)",), "int32")
"""A bit an element, in memory's order; see `_bits`."""


def images(name: str) -> Tensor:
    """A tensor (outer, channels, inner) of the case's dtype."""
    return Tensor(name, ("N * (H * W)**L", "C", "(H * W)**(1 - L)"))


def of_channels(name: str, inplace: bool = False) -> Tensor:
    """A float32 for each channel."""
    return Tensor(name, ("C",), "float32", inplace)


def as_user_has_it(symbols: Symbols, tensor: torch.Tensor) -> torch.Tensor:
    """The (N, C, H, W) view of a tensor that `images` declares; with L = 1 its memory format is channels_last."""
    n, c, h, w = (symbols[name] for name in "NCHW")
    return tensor.view(n, h, w, c).permute(0, 3, 1, 2) if symbols["L"] else tensor.view(n, c, h, w)


def elements(symbols: Symbols) -> int:
    """Of a tensor of images."""
    return math.prod(symbols[name] for name in "NCHW")


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of a tensor of images as kernels see it."""

    outer: int
    channels: int
    inner: int

    @classmethod
    def of(cls, ctx: Context) -> Layout:
        return cls(*images("").shapes(ctx.case.symbols)[0])

    @property
    def elements(self) -> int:
        return self.outer * self.channels * self.inner

    @property
    def samples(self) -> int:
        """Elements of a channel."""
        return self.outer * self.inner
