"""Swin Transformer (Liu et al., 2021), with the names of torchvision's parameters.

B: images. H, W: pixels of a stage's image. C: its channels. T: pixels of a window, its side squared. Images are
(B, H, W, C). N: windows of all images. Windows are (N, T, C): the windows of an image row by row, one image after the
other, and the pixels of a window row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.collection.models.images import ImageBatch, batch, loss
from harness.collection.models.sizes import CHANNELS, SwinConfig

__all__ = ["ImageBatch", "Swin", "SwinBlock", "SwinOperators", "batch", "loss", "window_partition", "window_reverse"]

SEPARATED = -100.0
"""What the mask adds to the score of two pixels that aren't neighbours in the image, as the published code does."""


def window_partition(x: Tensor, window: int, shift: int) -> Tensor:
    """Images (B, H, W, C), rolled by -shift along H and W, to windows (N, T, C)."""
    images, height, width, channels = x.shape
    if shift:
        x = x.roll((-shift, -shift), (1, 2))
    x = x.view(images, height // window, window, width // window, window, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window**2, channels)


def window_reverse(windows: Tensor, height: int, width: int, window: int, shift: int) -> Tensor:
    """Windows (N, T, C) to images (B, H, W, C): the inverse of window_partition."""
    channels = windows.shape[-1]
    x = windows.view(-1, height // window, width // window, window, window, channels)
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, height, width, channels)
    return x.roll((shift, shift), (1, 2)) if shift else x


def position_bias(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a table (distances, heads) by an index (T, T) as a bias (heads, T, T)."""
    return table[index.flatten()].view(*index.shape, -1).permute(2, 0, 1).contiguous()


@dataclass(frozen=True, slots=True)
class SwinOperators:
    """The operators of a Swin Transformer beside its matrix products.

    layer_norm(norm, x), over the last dimension. window_partition, window_reverse, position_bias: as the functions of
    these names. softmax(x, dim). gelu(x).

    Two more do the work of several of these, and None stands for calling these. norm_partition(norm, x, window, shift)
    is layer_norm, then window_partition. window_attention(qkv, bias, mask) is attention within windows: two products
    with softmax between them. qkv (N, T, 3C) has queries, keys and values one after the other, and each of them has its
    heads one after the other. bias is (heads, T, T); mask is (windows of an image, T, T) or None; both are added to the
    scores. It returns (N, T, C).
    """

    layer_norm: Callable[[nn.LayerNorm, Tensor], Tensor] = nn.LayerNorm.forward
    window_partition: Callable[[Tensor, int, int], Tensor] = window_partition
    window_reverse: Callable[[Tensor, int, int, int, int], Tensor] = window_reverse
    position_bias: Callable[[Tensor, Tensor], Tensor] = position_bias
    softmax: Callable[[Tensor, int], Tensor] = torch.softmax
    gelu: Callable[[Tensor], Tensor] = functional.gelu
    norm_partition: Callable[[nn.LayerNorm, Tensor, int, int], Tensor] | None = None
    window_attention: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None


class Swin(nn.Module):
    """Images (B, 3, H, W) to logits (B, classes)."""

    def __init__(self, config: SwinConfig, operators: SwinOperators | None = None) -> None:
        super().__init__()
        self.operators = operators or SwinOperators()
        parts: list[nn.Module] = [PatchEmbedding(config, self.operators)]
        for stage in range(len(config.depths)):
            if stage > 0:
                parts.append(PatchMerging(config.channels(stage - 1), self.operators))
            blocks = range(config.depths[stage])
            parts.append(nn.Sequential(*(SwinBlock(config, stage, block, self.operators) for block in blocks)))
        self.features = nn.Sequential(*parts)
        self.norm = nn.LayerNorm(config.features)
        self.head = nn.Linear(config.features, config.classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """The mean over all pixels of the last stage is what the head is given."""
        return self.head(self.operators.layer_norm(self.norm, self.features(images)).mean((1, 2)))


class PatchEmbedding(nn.ModuleDict):
    """Images (B, 3, H, W) to (B, H / patch, W / patch, C): a product for each patch of pixels."""

    def __init__(self, config: SwinConfig, operators: SwinOperators) -> None:
        patch = nn.Conv2d(CHANNELS, config.width, config.patch, stride=config.patch)
        super().__init__({"0": patch, "2": nn.LayerNorm(config.width)})
        self.operators = operators

    def forward(self, images: Tensor) -> Tensor:
        """Channels come last from here on."""
        return self.operators.layer_norm(self["2"], self["0"](images).permute(0, 2, 3, 1).contiguous())


class PatchMerging(nn.Module):
    """Images (B, H, W, C) to (B, H / 2, W / 2, 2C): the channels of four pixels become the channels of one."""

    def __init__(self, channels: int, operators: SwinOperators) -> None:
        super().__init__()
        self.operators = operators
        self.reduction = nn.Linear(4 * channels, 2 * channels, bias=False)
        self.norm = nn.LayerNorm(4 * channels)

    def forward(self, x: Tensor) -> Tensor:
        """The four pixels come column by column."""
        four = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduction(self.operators.layer_norm(self.norm, torch.cat(four, -1)))


class SwinBlock(nn.Module):
    """Attention within windows and two products, each added to its input: (B, H, W, C) to the same.

    Every second block rolls the image by half of a window first, unless the image is one window.
    """

    def __init__(self, config: SwinConfig, stage: int, block: int, operators: SwinOperators) -> None:
        super().__init__()
        self.operators, self.window = operators, config.window
        channels, side = config.channels(stage), config.side(stage)
        self.shift = config.window // 2 if block % 2 and side > config.window else 0
        self.drop_path = config.drop_paths(stage)[block]
        self.norm1 = nn.LayerNorm(channels)
        self.attn = WindowAttention(channels, config.heads[stage], config.window, operators)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = nn.ModuleDict({"0": nn.Linear(channels, 4 * channels), "3": nn.Linear(4 * channels, channels)})
        mask = shift_mask(side, config.window, self.shift) if self.shift else None
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Both halves of the block."""
        ours, (_, height, width, _) = self.operators, x.shape
        if ours.norm_partition:
            windows = ours.norm_partition(self.norm1, x, self.window, self.shift)
        else:
            windows = ours.window_partition(ours.layer_norm(self.norm1, x), self.window, self.shift)
        attended = self.attn(windows, self.mask)
        x = x + self._dropped(ours.window_reverse(attended, height, width, self.window, self.shift))
        return x + self._dropped(self.mlp["3"](ours.gelu(self.mlp["0"](ours.layer_norm(self.norm2, x)))))

    def _dropped(self, branch: Tensor) -> Tensor:
        """Stochastic depth: in training, a branch is 0 for some of the images, and larger for the other images."""
        if not self.training or self.drop_path == 0:
            return branch
        kept = 1 - self.drop_path
        return branch * branch.new_empty(len(branch), 1, 1, 1).bernoulli_(kept).div_(kept)


class WindowAttention(nn.Module):
    """Attention among the pixels of a window, with a bias for their distance: (N, T, C) to the same."""

    def __init__(self, channels: int, heads: int, window: int, operators: SwinOperators) -> None:
        super().__init__()
        self.operators, self.heads = operators, heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.relative_position_bias_table = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        self.register_buffer("relative_position_index", relative_position_index(window), persistent=False)

    def forward(self, windows: Tensor, mask: Tensor | None) -> Tensor:
        """The mask is added to the scores of the windows of an image: it is (windows of an image, T, T)."""
        bias = self.operators.position_bias(self.relative_position_bias_table, self.relative_position_index)
        attend = self.operators.window_attention or self._attend
        return self.proj(attend(self.qkv(windows), bias, mask))

    def _attend(self, qkv: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
        count, tokens, size = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3 // self.heads
        q, k, v = qkv.view(count, tokens, 3, self.heads, size).permute(2, 0, 3, 1, 4)
        scores = (q * size**-0.5) @ k.transpose(-2, -1) + bias
        if mask is not None:
            of_images = scores.view(-1, len(mask), self.heads, tokens, tokens)
            scores = (of_images + mask[:, None]).view(count, self.heads, tokens, tokens)
        return (self.operators.softmax(scores, -1) @ v).transpose(1, 2).reshape(count, tokens, self.heads * size)


def relative_position_index(window: int) -> Tensor:
    """The row of the table of biases for each two pixels of a window: (T, T), by their distance down and across."""
    return torch.tensor(_rows_of_distances(window))


@cache
def _rows_of_distances(window: int) -> list[list[int]]:
    """The same as numbers. All blocks have the same, and tensors without memory are slow to compute with."""
    pixels = [divmod(pixel, window) for pixel in range(window**2)]
    far = window - 1
    return [[(down - y + far) * (2 * window - 1) + across - x + far for y, x in pixels] for down, across in pixels]


def shift_mask(side: int, window: int, shift: int) -> Tensor:
    """The mask that keeps attention in windows of a rolled image among pixels that are neighbours in the image itself.

    It is (windows of an image, T, T): 0, or SEPARATED for two pixels that only rolling brought together. A side is cut
    into three parts: all windows but the last, and the last window before and after the border of the image itself.
    """
    place = torch.arange(side)
    part = (place >= side - window).long() + (place >= side - shift).long()
    region = window_partition((3 * part[:, None] + part)[None, :, :, None], window, 0).squeeze(-1)
    return (region[:, None] != region[:, :, None]) * SEPARATED


MODEL, BLOCK, OPERATORS = Swin, SwinBlock, SwinOperators
"""What steps make of this file: the model, the part of which it has several, and its operators."""
