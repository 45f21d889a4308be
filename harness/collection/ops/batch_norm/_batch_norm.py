"""What batch norm and its backward share: sizes, layouts of images, and declarations of tensors.

The choice `layout` says how images (N, C, H, W) lie in memory: 'nchw', or 'nhwc' (torch's channels_last). Kernels see
contiguous memory (outer, channels, inner), which is (N, C, H * W) or (N * H * W, C, 1). Element i belongs to channel
i // inner % channels in both layouts.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.elementwise import CUDA_TYPE, INDEX_TYPE
from harness.model import Case
from harness.ops import Choice, Context, Symbols, Tensor

if TYPE_CHECKING:
    import torch

EPSILON = 1e-5
"""Number added to the variance before its root: torch's default."""
MOMENTUM = 0.1
"""Share of the batch in the new running statistics: torch's default."""

SYMBOLS = {"N": "batch", "C": "channels", "H": "height", "W": "width"}
CHOICES = {"layout": Choice("how images lie in memory", values=("nchw", "nhwc"))}
LIMIT_32 = 2**31 - 2**12
"""Elements that 32-bit indexes can count: a bit is left to the fast division, and a block reaches past the end."""
TURNS = (1, 2, 4, 8, 16, 32, 64)
"""Packs of a thread that adds up channels, which a search may try: few of them for few images."""
MOST_SLOTS = 8192
"""Partial sums of a channel that a search may try; a second kernel adds them."""
MASK = Tensor("mask", ("cdiv(N * C * H * W, 32)",), "int32")
"""One bit an element, in the order of memory; `_bits` says which bit."""


def image_shape(symbols: Symbols) -> tuple[int, int, int]:
    """(outer, channels, inner) of a tensor of images."""
    n, c, h, w = (symbols[name] for name in "NCHW")
    return (n * h * w, c, 1) if symbols["layout"] == "nhwc" else (n, c, h * w)


def images(name: str) -> Tensor:
    """Declaration of a tensor (outer, channels, inner) of the case's dtype."""
    return Tensor(name, image_shape)


def of_channels(name: str, inplace: bool = False) -> Tensor:
    """Declaration of a tensor (C) of float32."""
    return Tensor(name, ("C",), "float32", inplace)


def as_user_has_it(symbols: Symbols, tensor: torch.Tensor) -> torch.Tensor:
    """The (N, C, H, W) view of a tensor that `images` declares; its memory format is channels_last for 'nhwc'."""
    n, c, h, w = (symbols[name] for name in "NCHW")
    return tensor.view(n, h, w, c).permute(0, 3, 1, 2) if symbols["layout"] == "nhwc" else tensor.view(n, c, h, w)


def in_declared_order(symbols: Symbols, tensor: torch.Tensor) -> torch.Tensor:
    """A view of a user's (N, C, H, W) whose dimensions stand in the order that `layout` gives to the memory."""
    return tensor.permute(0, 2, 3, 1) if symbols["layout"] == "nhwc" else tensor


def elements(symbols: Symbols) -> int:
    """Number of elements of a tensor of images."""
    return math.prod(symbols[name] for name in "NCHW")


@dataclass(frozen=True, slots=True)
class ImageSizes:
    """Sizes (outer, channels, inner) of a tensor of images, as kernels see it."""

    outer: int
    channels: int
    inner: int

    @classmethod
    def of(cls, ctx: Context) -> ImageSizes:
        """The sizes of the case's images."""
        return cls.of_case(ctx.case)

    @classmethod
    def of_case(cls, case: Case) -> ImageSizes:
        """The same, of a case alone."""
        return cls(*image_shape(case.values))

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return self.outer * self.channels * self.inner

    @property
    def samples(self) -> int:
        """Number of elements of a channel."""
        return self.outer * self.inner

    @property
    def bits(self) -> int:
        """Width of an index that counts the elements: 32 or 64."""
        return 32 if self.elements < LIMIT_32 else 64

    def counter(self, value: int) -> ctypes.c_uint32 | ctypes.c_uint64:
        """A number of elements as kernels take it: an INDEX."""
        return ctypes.c_uint32(value) if self.bits == 32 else ctypes.c_uint64(value)

    def divisors(self, *sizes: int) -> list[Any]:
        """The fields of the Divisor<INDEX> of each size."""
        return [field for size in sizes for field in divisor(size, self.bits)]


def divisor(size: int, bits: int = 32) -> tuple[Any, Any, Any]:
    """The fields of a Divisor. An empty tensor has a size of 0, by which no kernel divides: 1 stands for it."""
    size = max(1, size)
    return (ctypes.c_uint32 if bits == 32 else ctypes.c_uint64)(size), *cuda.fast_divisor(size, bits)


def kernel(ctx: Context, file: str, entry: str) -> cuda.Kernel:
    """A kernel of one of the two files, with indexes that can count the case's elements."""
    index = INDEX_TYPE[ImageSizes.of(ctx).bits]
    return ctx.kernel(file, entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype], "INDEX": index})


def floats(ctx: Context, count: int) -> torch.Tensor:
    """Memory for what one kernel tells the next, (count) of float32. All sets of buffers share it."""
    import torch

    return torch.empty(count, dtype=torch.float32, device=ctx.device)
