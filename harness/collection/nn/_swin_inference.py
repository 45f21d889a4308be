"""Inference with a Swin Transformer in few kernels: between two products at most one kernel reads and writes pixels.

Products with their biases are the library's. Attention is the catalogue's packed kernel, whose bias is looked up ahead.
One kernel joins windows, adds the residual and normalises; another call of it adds the residual, normalises, and cuts
the next block's windows. GELU is part of its product: cuBLASLt has it only in its tanh form, whose results are off by
up to 5e-4 from the exact one. In halves that is about what rounding a number near 1 may change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.collection.models.swin import PatchEmbedding, PatchMerging, Swin, SwinBlock
from harness.collection.nn._attention import window_attention
from harness.collection.nn._inference import (
    Int8Product,
    Integer,
    Quantised,
    RowOrder,
    dequantise,
    gelu_quantise,
    lanes_of,
    on_gpu,
    quantised,
    residual_norm,
)
from harness.collection.nn._kernels import on
from harness.collection.nn._rows import layer_norm
from harness.collection.nn._swin_scales import BlockScales, Pair, Scales, linears
from harness.collection.ops.quantise import quantize
from harness.model import Case
from harness.ops import Context, Launch, Tensors

Gelu = Literal["tanh", "exact"]
Part = Callable[[Tensor], Tensor]


class SwinInference:
    """Images (B, 3, H, W) in halves to logits (B, classes), with the weights of a model, which it refers to.

    gelu: 'tanh' lets the product do it, 'exact' takes a kernel of torch. scales: what calibrated() gave; with them the
    products of blocks are in int8, and GELU is exact. The model loses the weights of products in int8. second: what the
    second product of an MLP gives then; other products of blocks give int8. merging: what the product between two
    stages gives, None for one in halves. Gradients aren't there.
    """

    def __init__(
        self,
        model: Swin,
        gelu: Gelu = "tanh",
        scales: Scales | None = None,
        *,
        second: Integer = "int8",
        merging: Integer | None = None,
    ) -> None:
        self._model = model
        embedding, *parts = model.features
        assert isinstance(embedding, PatchEmbedding), "a Swin Transformer begins with patches"
        self._embedding = embedding
        self._stages: list[tuple[_Merging | None, list[_Block]]] = []
        of_blocks = iter(scales.blocks if scales else ())
        of_mergings = iter(scales.mergings if scales and merging else ())
        between: _Merging | None = None
        for part in parts:
            if isinstance(part, PatchMerging):
                pair = next(of_mergings, None)
                between = _Int8Merging(part, pair, merging) if pair and merging else _HalfMerging(part)
                continue
            blocks: list[_Block] = [
                _Int8Block(one, next(of_blocks), second) if scales else _HalfBlock(one, gelu) for one in part
            ]
            self._stages.append((between, blocks))

    def __call__(self, images: Tensor) -> Tensor:
        """The logits."""
        if not len(images):
            return images.new_empty(0, self._model.head.out_features)
        x, norms = self._embedded(images), [*(None for _ in self._stages[1:]), self._model.norm]
        normal = None
        for (merging, blocks), norm in zip(self._stages, norms, strict=True):
            x, normal = _through(blocks, x if merging is None else merging(x), norm)
        assert normal is not None, "the last stage has a norm behind it"
        head = self._model.head
        return functional.linear(normal.mean((1, 2)), head.weight, head.bias)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that a call reads."""
        integers = [product.weight for part in self._parts for product in part.products]
        return sum(one.numel() * one.element_size() for one in (*self._model.parameters(), *integers))

    def parts(self) -> Iterator[tuple[bool, Part]]:
        """Each block, and each product between stages, as a function of images in halves, in the model's order.

        The first of each pair says whether it is a block.
        """
        for merging, blocks in self._stages:
            if merging is not None:
                yield False, partial(_merged, merging)
            for block in blocks:
                yield True, partial(_block, block)

    @property
    def _parts(self) -> Iterator[_Merging | _Block]:
        for merging, blocks in self._stages:
            if merging is not None:
                yield merging
            yield from blocks

    def _embedded(self, images: Tensor) -> Tensor:
        """Patches of pixels as rows of a product, which leaves channels last, unlike a convolution."""
        patch, norm = self._embedding["0"], self._embedding["2"]
        count, channels, height, width = images.shape
        side = patch.kernel_size[0]
        cut = images.view(count, channels, height // side, side, width // side, side)
        rows = cut.permute(0, 2, 4, 1, 3, 5).reshape(count, height // side, width // side, -1)
        embedded = functional.linear(rows, patch.weight.flatten(1), patch.bias)
        return layer_norm(embedded, norm.weight, norm.bias, norm.eps)


def _block(block: _Block, x: Tensor) -> Tensor:
    return _through([block], x, None)[0]


def _merged(merging: _Merging, x: Tensor) -> Tensor:
    made = merging(x)
    return residual_norm(None, made)[0] if isinstance(made, Quantised) else made


def _through(
    blocks: Sequence[_Block], x: Tensor | Quantised, norm: nn.LayerNorm | None
) -> tuple[Tensor, Tensor | None]:
    """The blocks of a stage. Gives what they make of x, and that normalised where there is a norm behind them."""
    first = blocks[0]
    residual, added = (None, x) if isinstance(x, Quantised) else (x, None)
    h, y = residual_norm(residual, added, first.norm1, y_order=first.order, y_scale=first.windows_scale)
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        assert y is not None, "a block takes normalised windows"
        attended = block.attended(y)
        h, y = residual_norm(h, attended, block.norm2, x_order=block.order, y_scale=block.pixels_scale)
        assert y is not None, "a block's second half takes normalised pixels"
        made = block.mlp(y)
        if following is None:
            h, y = residual_norm(h, made, norm)
        else:
            order, scale = following.order, following.windows_scale
            h, y = residual_norm(h, made, following.norm1, y_order=order, y_scale=scale)
    return h, y


# ---- Between stages.


class _Merging(Protocol):
    """Four pixels as one, with twice the channels: images in halves to images. products: in int8."""

    products: Sequence[Int8Product]

    def __call__(self, x: Tensor) -> Tensor | Quantised: ...


def _four(x: Tensor) -> Tensor:
    """The channels of four pixels one after the other, column by column, in one copy."""
    count, height, width, channels = x.shape
    four = x.view(count, height // 2, 2, width // 2, 2, channels).permute(0, 1, 3, 4, 2, 5)
    return four.reshape(count, height // 2, width // 2, 4 * channels)


class _HalfMerging:
    """The norm and the product in halves."""

    products: Sequence[Int8Product] = ()

    def __init__(self, merging: PatchMerging) -> None:
        self._merging = merging

    def __call__(self, x: Tensor) -> Tensor:
        norm = self._merging.norm
        normal = layer_norm(_four(x), norm.weight, norm.bias, norm.eps)
        return functional.linear(normal, self._merging.reduction.weight)


class _Int8Merging:
    """The product in int8. What it gives becomes halves where the next stage normalises it."""

    def __init__(self, merging: PatchMerging, scales: Pair, out: Integer) -> None:
        self._norm, reduction = merging.norm, merging.reduction
        self._scale, y_scale = scales
        self._product = Int8Product(reduction.weight.detach(), self._scale, y_scale if out == "int8" else None)
        self._bias = reduction.weight.new_zeros(reduction.out_features)
        self.products: Sequence[Int8Product] = (self._product,)
        _forget(reduction)

    def __call__(self, x: Tensor) -> Quantised:
        four, norm = _four(x), self._norm
        if lanes_of(four.shape[-1]) is None:  # rows that are too long for the kernel
            y: Tensor | None = _quantise(layer_norm(four, norm.weight, norm.bias, norm.eps), self._scale)
        else:
            _, y = residual_norm(four, None, norm, y_scale=self._scale)
        assert y is not None, "there is a norm"
        return Quantised(self._product(y), self._product.y_scale, self._bias)


def _forget(linear: nn.Linear) -> None:
    """Give the memory of a weight back that is in int8 elsewhere."""
    linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)


# ---- Blocks.


class _Block(Protocol):
    """The products of a block, each half from normalised numbers to what is added to the residual.

    windows_scale, pixels_scale: scales of the int8 that `attended` and `mlp` take, or None where they take halves.
    products: the products that are in int8.
    """

    order: RowOrder
    norm1: nn.LayerNorm
    norm2: nn.LayerNorm
    windows_scale: Tensor | None
    pixels_scale: Tensor | None
    products: Sequence[Int8Product]

    def attended(self, windows: Tensor) -> Tensor | Quantised: ...
    def mlp(self, pixels: Tensor) -> Tensor | Quantised: ...


class _Parts:
    """What a block has whatever its numbers are. The bias of positions is looked up here, ahead of all calls."""

    def __init__(self, block: SwinBlock) -> None:
        attention = block.attn
        self.order = RowOrder(block.window, block.shift)
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.qkv, self.proj, self.first, self.second = linears(block)
        dtype, operators = self.qkv.weight.dtype, attention.operators
        bias = operators.position_bias(attention.relative_position_bias_table, attention.relative_position_index)
        mask = None if block.mask is None else block.mask.to(dtype)
        self.attend = partial(window_attention, bias=bias.detach().to(dtype), mask=mask)


class _HalfBlock(_Parts):
    """A block in halves."""

    windows_scale: Tensor | None = None
    pixels_scale: Tensor | None = None
    products: Sequence[Int8Product] = ()

    def __init__(self, block: SwinBlock, gelu: Gelu) -> None:
        super().__init__(block)
        self._gelu = gelu

    def attended(self, windows: Tensor) -> Tensor:
        return _linear(self.proj, self.attend(_linear(self.qkv, windows)))

    def mlp(self, pixels: Tensor) -> Tensor:
        return _linear(self.second, self._activated(pixels))

    def _activated(self, pixels: Tensor) -> Tensor:
        weight, bias = self.first.weight, self.first.bias
        if self._gelu == "exact" or not on_gpu(pixels):
            form = "none" if self._gelu == "exact" else "tanh"
            return functional.gelu(functional.linear(pixels, weight, bias), approximate=form)
        # No other function of torch lets cuBLASLt do GELU before it writes a product.
        rows = torch._addmm_activation(bias, pixels.flatten(0, -2), weight.t(), use_gelu=True)
        return rows.view(*pixels.shape[:-1], len(weight))


class _Int8Block(_Parts):
    """A block whose four products are in int8, and between them what has to be in halves."""

    def __init__(self, block: SwinBlock, scales: BlockScales, second: Integer) -> None:
        super().__init__(block)
        self._dtype = self.qkv.weight.dtype
        self.windows_scale: Tensor | None
        self.pixels_scale: Tensor | None
        (self.windows_scale, _), (self._attended_scale, _), (self.pixels_scale, _), (self._gelu_scale, _) = scales.pairs
        *others, (given, made) = scales.pairs
        pairs = (*others, (given, made if second == "int8" else None))
        self.products: Sequence[Int8Product] = [
            Int8Product(linear.weight.detach(), *pair) for linear, pair in zip(linears(block), pairs, strict=True)
        ]
        for linear in linears(block):
            _forget(linear)

    def attended(self, windows: Tensor) -> Quantised:
        qkv = dequantise(self._product(0, self.qkv, windows), self._dtype)
        return self._product(1, self.proj, _quantise(self.attend(qkv), self._attended_scale))

    def mlp(self, pixels: Tensor) -> Quantised:
        first = self._product(2, self.first, pixels)
        return self._product(3, self.second, gelu_quantise(first, self._gelu_scale, self._dtype))

    def _product(self, place: int, linear: nn.Linear, x: Tensor) -> Quantised:
        product = self.products[place]
        return Quantised(product(x), product.y_scale, linear.bias)


def _linear(linear: nn.Linear, x: Tensor) -> Tensor:
    return functional.linear(x, linear.weight, linear.bias)


def _quantise(x: Tensor, scale: Tensor) -> Tensor:
    """Halves over a scale as int8, by the catalogue's kernel."""
    if not on_gpu(x):
        return quantised(x, scale)
    y = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    with on(x.device):
        launch = _quantiser(x.dtype, x.device, x.numel() // x.shape[-1], x.shape[-1])
        launch(Tensors(x=x, scale=scale, y=y))
    return y


@lru_cache(maxsize=1024)
def _quantiser(dtype: torch.dtype, device: torch.device, rows: int, columns: int) -> Launch:
    shape, name = (("M", rows), ("C", columns)), str(dtype).removeprefix("torch.")
    case = Case(quantize.OP.name, "tuned", name, shape, (("scales", "tensor"),))
    prepare = quantize.OP.variants["tuned"].prepare
    return prepare(Context(case, dtype, device, torch.Generator(), quantize.OP))
