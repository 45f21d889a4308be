"""What batch norm and its backward share: sizes, layouts and declarations.

Symbol L says how images lie in memory: 0 as NCHW, 1 channels last (NHWC). A tensor of images is declared as its
contiguous memory, (outer, channels, inner), in either layout: element i is of channel i // inner % channels.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.ops import Context, Symbols, Tensor
from harness.ops._elementwise import CUDA_TYPE

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
LIMIT_32 = 2**31 - 2**12
"""Elements that 32-bit indexes count: a bit is left to the fast division, and a block reaches past the end."""
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

    @property
    def bits(self) -> int:
        """Of an index that counts elements."""
        return 32 if self.elements < LIMIT_32 else 64

    def counter(self, value: int) -> ctypes.c_uint32 | ctypes.c_uint64:
        """A number of elements as kernels take it: an INDEX."""
        return ctypes.c_uint32(value) if self.bits == 32 else ctypes.c_uint64(value)

    def divisors(self, *sizes: int) -> list[Any]:
        """The fields of the Divisor<INDEX> of each size."""
        return [field for size in sizes for field in divisor(size, self.bits)]


def divisor(size: int, bits: int = 32) -> tuple[Any, Any, Any]:
    """The fields of a Divisor. No kernel divides by the zeros of an empty tensor."""
    size = max(1, size)
    return (ctypes.c_uint32 if bits == 32 else ctypes.c_uint64)(size), *cuda.fast_divisor(size, bits)


def kernel(ctx: Context, file: str, entry: str) -> cuda.Kernel:
    """Of one of the two files, with indexes that count the case's elements."""
    index = {32: "unsigned", 64: "unsigned long long"}[Layout.of(ctx).bits]
    return ctx.kernel(file, entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype], "INDEX": index})


def floats(ctx: Context, count: int) -> torch.Tensor:
    """Memory between two kernels. All sets of buffers share it."""
    import torch

    return torch.empty(count, dtype=torch.float32, device=ctx.device)
