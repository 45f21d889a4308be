"""Inference with a Swin Transformer in few kernels: between two products at most one kernel reads and writes pixels.

Products with their biases are the library's. Attention is the catalogue's packed kernel, whose bias is looked up ahead.
One kernel joins windows, adds the residual and normalises; another call of it adds the residual, normalises, and cuts
the next block's windows. GELU is part of its product: cuBLASLt has it only in its tanh form, whose results are off by
up to 5e-4 from the exact one. In halves that is about what rounding a number near 1 may change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.collection.models.swin import PatchEmbedding, PatchMerging, Swin, SwinBlock
from harness.collection.nn._attention import window_attention
from harness.collection.nn._inference import (
    LARGEST,
    LEAST_SCALE,
    Int8Product,
    Quantised,
    RowOrder,
    dequantise,
    gelu_quantise,
    on_gpu,
    quantised,
    residual_norm,
)
from harness.collection.nn._kernels import on
from harness.collection.nn._rows import layer_norm
from harness.collection.ops.quantise import quantize
from harness.model import Case
from harness.ops import Context, Launch, Tensors

Gelu = Literal["tanh", "exact"]


class SwinInference:
    """Images (B, 3, H, W) in halves to logits (B, classes), with the weights of a model, which it refers to.

    gelu: 'tanh' lets the product do it, 'exact' takes a kernel of torch. scales: what calibrated() gave; with them the
    products of blocks are in int8, and GELU is exact. Gradients aren't there.
    """

    def __init__(self, model: Swin, gelu: Gelu = "tanh", scales: Sequence[BlockScales] = ()) -> None:
        self._model = model
        embedding, *parts = model.features
        assert isinstance(embedding, PatchEmbedding), "a Swin Transformer begins with patches"
        self._embedding = embedding
        self._stages: list[tuple[PatchMerging | None, list[_Block]]] = []
        left, merging = iter(scales), None
        for part in parts:
            if isinstance(part, PatchMerging):
                merging = part
                continue
            blocks: list[_Block] = [_Int8Block(one, next(left)) if scales else _HalfBlock(one, gelu) for one in part]
            self._stages.append((merging, blocks))

    def __call__(self, images: Tensor) -> Tensor:
        """The logits."""
        if not len(images):
            return images.new_empty(0, self._model.head.out_features)
        x, norms = self._embedded(images), [*(None for _ in self._stages[1:]), self._model.norm]
        normal = None
        for (merging, blocks), norm in zip(self._stages, norms, strict=True):
            x, normal = _through(blocks, x if merging is None else _merged(merging, x), norm)
        assert normal is not None, "the last stage has a norm behind it"
        head = self._model.head
        return functional.linear(normal.mean((1, 2)), head.weight, head.bias)

    def close(self) -> None:
        """Give back what the library holds for products."""
        for _, blocks in self._stages:
            for block in blocks:
                block.close()

    def _embedded(self, images: Tensor) -> Tensor:
        """Patches of pixels as rows of a product, which leaves channels last, unlike a convolution."""
        patch, norm = self._embedding["0"], self._embedding["2"]
        count, channels, height, width = images.shape
        side = patch.kernel_size[0]
        cut = images.view(count, channels, height // side, side, width // side, side)
        rows = cut.permute(0, 2, 4, 1, 3, 5).reshape(count, height // side, width // side, -1)
        embedded = functional.linear(rows, patch.weight.flatten(1), patch.bias)
        return layer_norm(embedded, norm.weight, norm.bias, norm.eps)


def _merged(merging: PatchMerging, x: Tensor) -> Tensor:
    """Four pixels as one, column by column, in one copy; then the norm and the product."""
    count, height, width, channels = x.shape
    four = x.view(count, height // 2, 2, width // 2, 2, channels).permute(0, 1, 3, 4, 2, 5)
    rows, norm = four.reshape(count, height // 2, width // 2, 4 * channels), merging.norm
    return functional.linear(layer_norm(rows, norm.weight, norm.bias, norm.eps), merging.reduction.weight)


def _through(blocks: Sequence[_Block], x: Tensor, norm: nn.LayerNorm | None) -> tuple[Tensor, Tensor | None]:
    """The blocks of a stage. Gives what they make of x, and that normalised where there is a norm behind them."""
    first = blocks[0]
    _, y = residual_norm(x, None, first.norm1, y_order=first.order, y_scale=first.windows_scale)
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        assert y is not None, "a block takes normalised windows"
        attended = block.attended(y)
        x, y = residual_norm(x, attended, block.norm2, x_order=block.order, y_scale=block.pixels_scale)
        assert y is not None, "a block's second half takes normalised pixels"
        made = block.mlp(y)
        if following is None:
            x, y = residual_norm(x, made, norm)
        else:
            order, scale = following.order, following.windows_scale
            x, y = residual_norm(x, made, following.norm1, y_order=order, y_scale=scale)
    return x, y


class _Block(Protocol):
    """The products of a block, each half from normalised numbers to what is added to the residual.

    windows_scale, pixels_scale: scales of the int8 that `attended` and `mlp` take, or None where they take halves.
    """

    order: RowOrder
    norm1: nn.LayerNorm
    norm2: nn.LayerNorm
    windows_scale: Tensor | None
    pixels_scale: Tensor | None

    def attended(self, windows: Tensor) -> Tensor | Quantised: ...
    def mlp(self, pixels: Tensor) -> Tensor | Quantised: ...
    def close(self) -> None: ...


class _Parts:
    """What a block has whatever its numbers are. The bias of positions is looked up here, ahead of all calls."""

    def __init__(self, block: SwinBlock) -> None:
        attention = block.attn
        self.order = RowOrder(block.window, block.shift)
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.qkv, self.proj, self.first, self.second = _linears(block)
        dtype, operators = self.qkv.weight.dtype, attention.operators
        bias = operators.position_bias(attention.relative_position_bias_table, attention.relative_position_index)
        mask = None if block.mask is None else block.mask.to(dtype)
        self.attend = partial(window_attention, bias=bias.detach().to(dtype), mask=mask)


class _HalfBlock(_Parts):
    """A block in halves."""

    windows_scale: Tensor | None = None
    pixels_scale: Tensor | None = None

    def __init__(self, block: SwinBlock, gelu: Gelu) -> None:
        super().__init__(block)
        self._gelu = gelu

    def attended(self, windows: Tensor) -> Tensor:
        return _linear(self.proj, self.attend(_linear(self.qkv, windows)))

    def mlp(self, pixels: Tensor) -> Tensor:
        return _linear(self.second, self._activated(pixels))

    def close(self) -> None:
        """There is nothing to give back."""

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

    def __init__(self, block: SwinBlock, scales: BlockScales) -> None:
        super().__init__(block)
        self._dtype = self.qkv.weight.dtype
        self.windows_scale: Tensor | None
        self.pixels_scale: Tensor | None
        self._products = [
            Int8Product(linear.weight.detach(), given, made)
            for linear, (given, made) in zip(_linears(block), scales.pairs, strict=True)
        ]
        (self.windows_scale, _), (self._attended_scale, _), (self.pixels_scale, _), (self._gelu_scale, _) = scales.pairs

    def attended(self, windows: Tensor) -> Quantised:
        qkv = dequantise(self._product(0, self.qkv, windows), self._dtype)
        return self._product(1, self.proj, _quantise(self.attend(qkv), self._attended_scale))

    def mlp(self, pixels: Tensor) -> Quantised:
        first = self._product(2, self.first, pixels)
        return self._product(3, self.second, gelu_quantise(first, self._gelu_scale, self._dtype))

    def close(self) -> None:
        for product in self._products:
            product.close()

    def _product(self, place: int, linear: nn.Linear, x: Tensor) -> Quantised:
        product = self._products[place]
        return Quantised(product(x), product.y_scale, linear.bias)


def _linear(linear: nn.Linear, x: Tensor) -> Tensor:
    return functional.linear(x, linear.weight, linear.bias)


def _linears(block: SwinBlock) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
    return block.attn.qkv, block.attn.proj, block.mlp["0"], block.mlp["3"]


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


# ---- Static scales, from what a model's products are given and make.


@dataclass(frozen=True, slots=True)
class BlockScales:
    """Scales of a block's four products, in their order: of what each is given, and of what it makes without a bias."""

    pairs: tuple[tuple[Tensor, Tensor], ...]


def calibrated(model: Swin, batches: Sequence[Tensor]) -> list[BlockScales]:
    """Scales for each block, which take the largest number that these images lead to to 127."""
    blocks = [block for block in model.modules() if isinstance(block, SwinBlock)]
    largest = {linear: [0.0, 0.0] for block in blocks for linear in _linears(block)}
    with torch.inference_mode(), _watched(largest):
        for images in batches:
            model(images)
    return [BlockScales(tuple(_scales(linear, largest[linear]) for linear in _linears(block))) for block in blocks]


def _scales(linear: nn.Linear, largest: Sequence[float]) -> tuple[Tensor, Tensor]:
    scales = (max(value / LARGEST, LEAST_SCALE) for value in largest)
    device = linear.weight.device
    given, made = (torch.full((1,), scale, dtype=torch.float32, device=device) for scale in scales)
    return given, made


@contextmanager
def _watched(largest: dict[nn.Linear, list[float]]) -> Iterator[None]:
    """Keep the largest sizes of what goes into these layers, and of what comes out, up to date."""

    def watch(linear: Any, given: tuple[Tensor, ...], made: Tensor) -> None:
        sizes = given[0].abs().amax(), (made - linear.bias).abs().amax()
        largest[linear] = [max(old, float(new)) for old, new in zip(largest[linear], sizes, strict=True)]

    hooks = [linear.register_forward_hook(watch) for linear in largest]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
