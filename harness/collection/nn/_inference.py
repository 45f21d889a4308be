"""Kernels of inference: what lies between two products of a Swin Transformer, and products in int8.

Where no kernel of ours can do it, as on a CPU, torch does the same: the same roundings in the same places. So a
quantised model can be tried without a GPU.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness import cuda
from harness.collection.models.swin import window_partition, window_reverse
from harness.collection.nn._kernels import capturing, on
from harness.collection.ops.chip import WARP
from harness.collection.ops.elementwise import CUDA_TYPE, PACK_BYTES, blocks
from harness.collection.ops.rows._norm import EPS
from harness.cuda.cublaslt import MANY, Gemm, Matmul
from harness.paths import data

Integer = Literal["int8", "int32"]
LARGEST = 127.0
"""What the largest size of a tensor is quantised to."""
LEAST_SCALE = 1e-12
"""The scale of a tensor of zeros: with 0 there would be no numbers for it."""
EIGHT = 8
"""Neighbours that a thread loads at once. Twin of eights.cuh."""
_HALVES = (torch.float16, torch.bfloat16)
_KINDS = {torch.int8: 2, torch.int32: 3}
"""Integers that residual_layer_norm.cu takes as x, with its macro X."""
_THREADS, _UNIT_THREADS = 128, 256
_FEW, _MOST = 4, 6  # eights of a row that a lane has at best, and at most
_MOST_ROWS = 2**31 // WARP  # threads are counted in 32 bits
_UNIT = 2 * EIGHT  # neighbours that a thread of dequantize_int8.cu has
_MOST_UNITS = 2**31


@dataclass(frozen=True, slots=True)
class RowOrder:
    """An order of the pixels of images: row by row (window 0), or by windows that were shifted."""

    window: int = 0
    shift: int = 0

    @property
    def macro(self) -> int:
        """What a kernel has for it."""
        return self.shift if self.window else -1


IN_IMAGES = RowOrder()


@dataclass(frozen=True, slots=True)
class Quantised:
    """Integers, which stand for numbers * scale + bias. scale: (1), float32. bias: (C), or None for zeros.

    numbers: int8, or int32 where they are the sums of a product.
    """

    numbers: Tensor
    scale: Tensor
    bias: Tensor | None = None


def quantised(values: Tensor, scale: Tensor) -> Tensor:
    """Values over a scale as int8: the nearest integers, of two equally near ones the even one. They saturate."""
    return (values.float() / scale).round().clamp(-128, 127).to(torch.int8)


def on_gpu(tensor: Tensor) -> bool:
    """Whether kernels may run on it."""
    return bool(tensor.device.type == "cuda")


def lanes_of(channels: int) -> int | None:
    """Lanes of a warp that share a row of so many channels; None where the kernel can't have such rows."""
    eights, lanes = channels // EIGHT, 1
    while lanes < WARP and eights > _FEW * lanes:
        lanes *= 2
    fits = channels > 0 and channels % (EIGHT * lanes) == 0 and eights <= _MOST * lanes
    return lanes if fits else None


# ---- Sums with a residual, and LayerNorm. Twin of residual_layer_norm.cu.


def residual_norm(  # noqa: PLR0913 - an operator takes what its kernel takes
    residual: Tensor | None,
    x: Tensor | Quantised | None = None,
    norm: nn.LayerNorm | None = None,
    *,
    x_order: RowOrder = IN_IMAGES,
    y_order: RowOrder = IN_IMAGES,
    y_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(h, y): h = residual + x, and y = norm(h). Without x h is the residual; without a norm y is None.

    residual, h: images (B, side, side, C) in halves. x, y: images, or windows (N, window * window, C), as their orders
    say. y_scale: the scale of y, which is int8 then. Without a residual h is x, which must be integers as images with a
    bias, whose type h has.
    """
    images, dtype = _of_h(residual, x)
    call = ResidualNormCall(images.shape[1], images.shape[-1], x_order, y_order)
    vectors = [] if norm is None else [norm.weight, norm.bias]
    if not on_gpu(images) or call.obstacle(images, dtype) or not _as_kernels_take(dtype, residual, x, *vectors):
        return _residual_norm_by_torch(call, residual, x, norm, y_scale)
    h = residual if x is None else torch.empty(images.shape, dtype=dtype, device=images.device)
    assert h is not None, "without a residual there is an x"
    y = None if norm is None else call.room(images, torch.int8 if y_scale is not None else dtype)
    kind = 0 if x is None else _KINDS[x.numbers.dtype] if isinstance(x, Quantised) else 1
    macros = call.macros(dtype, kind, 0 if norm is None else 1 if y_scale is None else 2)
    if residual is None:
        macros["RESIDUAL"] = 0
    if norm is not None and norm.eps != EPS:
        macros["EPS"] = f"{float(norm.eps)!r}f"
    numbers, scale, bias = (x.numbers, x.scale, x.bias) if isinstance(x, Quantised) else (x, None, None)
    gamma, beta = (None, None) if norm is None else (norm.weight, norm.bias)
    rows = images.numel() // call.channels
    with on(images.device):
        kernel = cuda.load(_file("residual_layer_norm.cu"), "residual_layer_norm", macros)
        grid = blocks(rows * int(macros["LANES"]), _THREADS)
        kernel(
            *(grid, _THREADS, numbers, scale, bias, residual, gamma, beta, y_scale),
            *(None if x is None else h, y, ctypes.c_uint32(rows)),
        )
    return h, y


def _of_h(residual: Tensor | None, x: Tensor | Quantised | None) -> tuple[Tensor, torch.dtype]:
    """A tensor with the shape of h, and the type of h."""
    if residual is not None:
        return residual, residual.dtype
    assert isinstance(x, Quantised), "without a residual, x is integers"
    assert x.bias is not None, "without a residual, x has a bias"
    return x.numbers, x.bias.dtype


def _as_kernels_take(dtype: torch.dtype, *tensors: Tensor | Quantised | None) -> bool:
    """Whether tensors are contiguous, begin on whole packs, and have the type: integers have a bias of the type."""
    for each in tensors:
        if isinstance(each, Quantised):
            numbers = each.numbers
            if numbers.dtype not in _KINDS or not _as_kernels_take(numbers.dtype, numbers):
                return False
            if not _as_kernels_take(dtype, each.bias):
                return False
        elif each is not None and (each.dtype != dtype or each.data_ptr() % PACK_BYTES or not each.is_contiguous()):
            return False
    return True


@dataclass(frozen=True, slots=True)
class ResidualNormCall:
    """Sizes of a call of residual_norm(): images of side * side pixels, and the orders of x and y."""

    side: int
    channels: int
    x_order: RowOrder = IN_IMAGES
    y_order: RowOrder = IN_IMAGES

    def obstacle(self, images: Tensor, dtype: torch.dtype | None = None) -> str | None:
        """Why the kernel can't do it; None if it can. dtype: of h, if it isn't that of the images."""
        if (dtype or images.dtype) not in _HALVES:
            return f"takes halves, not {dtype or images.dtype}"
        if lanes_of(self.channels) is None:
            return f"takes no rows of {self.channels} channels"
        if not 0 < images.numel() // self.channels < _MOST_ROWS:
            return f"counts in 32 bits: for 1 to {_MOST_ROWS} pixels"
        if self.x_order.window and self.y_order.window not in (0, self.x_order.window):
            return "takes windows of one size"
        return None if images.is_contiguous() else "takes contiguous tensors"

    def macros(self, dtype: torch.dtype, x: int, y: int) -> dict[str, str | int]:
        """Macros of the kernel. x, y: 0 if there is none, 1 for halves, 2 for int8, 3 for int32."""
        lanes = lanes_of(self.channels)
        assert lanes is not None, "the kernel was asked for in spite of an obstacle"
        return {
            "SCALAR": CUDA_TYPE[str(dtype).removeprefix("torch.")],
            "CHANNELS": self.channels,
            "LANES": lanes,
            "THREADS": _THREADS,
            "SIDE": self.side,
            "WINDOW": max(self.x_order.window, self.y_order.window, 1),
            "X": x,
            "Y": y,
            "SHIFT_X": self.x_order.macro,
            "SHIFT_Y": self.y_order.macro,
        }

    def room(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """An empty y."""
        window = self.y_order.window
        shape = (-1, window * window, self.channels) if window else images.shape
        return torch.empty(images.shape, dtype=dtype, device=images.device).view(shape)


def _residual_norm_by_torch(
    call: ResidualNormCall,
    residual: Tensor | None,
    x: Tensor | Quantised | None,
    norm: nn.LayerNorm | None,
    y_scale: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    (_, dtype), side = _of_h(residual, x), call.side
    h = residual
    if x is not None:
        added = dequantised(x) if isinstance(x, Quantised) else x.float()
        if call.x_order.window:
            added = window_reverse(added, side, side, call.x_order.window, call.x_order.shift)
        h = (added if residual is None else residual.float() + added).to(dtype)
    assert h is not None, "without a residual there is an x"
    if norm is None:
        return h, None
    y = functional.layer_norm(h.float(), h.shape[-1:], norm.weight.float(), norm.bias.float(), norm.eps)
    if call.y_order.window:
        y = window_partition(y, call.y_order.window, call.y_order.shift)
    return h, y.to(dtype) if y_scale is None else quantised(y, y_scale)


# ---- Products in int8, and what follows those whose results are int8 too. Twin of dequantize_int8.cu.


def dequantised(x: Quantised) -> Tensor:
    """What the numbers stand for, in float32."""
    values = x.numbers.float() * x.scale
    return values if x.bias is None else values + x.bias.float()


def dequantise(x: Quantised, dtype: torch.dtype) -> Tensor:
    """What the numbers stand for, in halves: the kernel of dequantised()."""
    assert x.bias is not None, "the kernel adds a bias"
    if _without_kernel(x, dtype):
        return dequantised(x).to(dtype)
    y = torch.empty(x.numbers.shape, dtype=dtype, device=x.numbers.device)
    _by_units("dequantize_int8_tuned", dtype, x.numbers, x.scale, x.bias, y)
    return y


def gelu_quantise(x: Quantised, y_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """GELU, in its exact form, of what the numbers stand for, over y_scale as int8. dtype: of the bias."""
    assert x.bias is not None, "the kernel adds a bias"
    if _without_kernel(x, dtype):
        return quantised(functional.gelu(dequantised(x)), y_scale)
    y = torch.empty_like(x.numbers)
    _by_units("dequantize_int8_gelu_tuned", dtype, x.numbers, x.scale, x.bias, y_scale, y)
    return y


def _without_kernel(x: Quantised, dtype: torch.dtype) -> bool:
    units = x.numbers.numel() // _UNIT
    fits = x.numbers.shape[-1] % _UNIT == 0 and dtype in _HALVES and units < _MOST_UNITS
    fits = fits and x.numbers.dtype == torch.int8
    return not on_gpu(x.numbers) or not fits or not _as_kernels_take(dtype, x)


def unit_macros(dtype: torch.dtype, columns: int) -> dict[str, str | int]:
    """Macros of dequantize_int8.cu."""
    scalar = CUDA_TYPE[str(dtype).removeprefix("torch.")]
    return {"SCALAR": scalar, "COLUMNS": columns, "THREADS": _UNIT_THREADS}


def _by_units(entry: str, dtype: torch.dtype, numbers: Tensor, *others: Tensor) -> None:
    units = numbers.numel() // _UNIT
    with on(numbers.device):
        kernel = cuda.load(_file("dequantize_int8.cu"), entry, unit_macros(dtype, numbers.shape[-1]))
        kernel(blocks(units, _UNIT_THREADS), _UNIT_THREADS, numbers, *others, ctypes.c_uint32(units))


class Int8Product:
    """A linear layer in int8 without its bias: x (..., K) with a scale to y (..., N) with another one, both static.

    y_scale: of the results, which are rounded to int8; None for sums as they are, in int32, whose scale follows from
    the other scales. The weight has one scale for all of it. cuBLASLt makes the product, by the fastest of the
    algorithms that it proposes; they are timed at the first call with so many rows, which no graph may capture, of
    the first of equal products. A CPU makes the same sums.

    Raises RuntimeError for such a call in a graph, and for x on another device than the weight.
    """

    def __init__(self, weight: Tensor, x_scale: Tensor, y_scale: Tensor | None) -> None:
        scale = (weight.abs().amax().float() / LARGEST).clamp_min(LEAST_SCALE).view(1)
        self.weight = quantised(weight, scale)
        self.x_scale, self.y_scale = x_scale, x_scale * scale if y_scale is None else y_scale
        self.out: Integer = "int32" if y_scale is None else "int8"
        self._alpha = None if y_scale is None else x_scale * scale / y_scale
        self._products: dict[int, Matmul] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """The result, in int8 or in int32."""
        if x.device != self.weight.device:
            raise RuntimeError(f"x lies on {x.device}, the weight on {self.weight.device}; move x there")
        if not on_gpu(x):
            sums = x.double() @ self.weight.double().t()
            if self._alpha is None:
                return sums.to(torch.int32)
            return (sums * self._alpha).round().clamp(-128, 127).to(torch.int8)
        outputs, inputs = self.weight.shape
        rows = x.numel() // inputs
        y = torch.empty((*x.shape[:-1], outputs), dtype=getattr(torch, self.out), device=x.device)
        with on(x.device):
            if rows not in self._products:
                if capturing():
                    raise RuntimeError(f"a graph is captured; call the product with {rows} rows once before that")
                self._products[rows] = _matmul(x.get_device(), int8_gemm(rows, outputs, inputs, self.out))
            self._products[rows](x, self.weight, y, alpha=self._alpha)
        return y


@cache
def _matmul(_device: int, product: Gemm) -> Matmul:
    """The product on a device, the current one. Equal layers share it: to search for an algorithm takes long."""
    return Matmul(product, MANY)


def int8_gemm(rows: int, outputs: int, inputs: int, out: Integer = "int8") -> Gemm:
    """The product of rows of int8 with a weight, as cuBLASLt makes it: int8 with one factor for all, or the sums."""
    return Gemm(rows, outputs, inputs, "int8", out, alpha="device" if out == "int8" else "one")


@cache
def _file(name: str) -> Path:
    """The file with a kernel."""
    return data("kernels") / "quantise" / name
