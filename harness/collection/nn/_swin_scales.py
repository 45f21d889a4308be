"""Static scales of a Swin Transformer's products in int8, from what they are given and make for some images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.collection.models.swin import PatchMerging, Swin, SwinBlock
from harness.collection.nn._inference import LARGEST, LEAST_SCALE

Pair = tuple[Tensor, Tensor]
"""Scales of what a product is given, and of what it makes without a bias."""


@dataclass(frozen=True, slots=True)
class BlockScales:
    """Scales of a block's four products, in their order."""

    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Scales:
    """Scales of the products of blocks, and of the products between stages, in the model's order."""

    blocks: Sequence[BlockScales]
    mergings: Sequence[Pair]


def calibrated(model: Swin, batches: Sequence[Tensor]) -> Scales:
    """The scales that take the largest number that these images lead to to 127."""
    blocks = [linears(block) for block in model.modules() if isinstance(block, SwinBlock)]
    mergings = [part.reduction for part in model.modules() if isinstance(part, PatchMerging)]
    largest = {linear: [0.0, 0.0] for linear in (*(one for four in blocks for one in four), *mergings)}
    with torch.inference_mode(), _watched(largest):
        for images in batches:
            model(images)
    return Scales(
        [BlockScales(tuple(_scales(linear, largest[linear]) for linear in four)) for four in blocks],
        [_scales(linear, largest[linear]) for linear in mergings],
    )


def _scales(linear: nn.Linear, largest: Sequence[float]) -> Pair:
    scales = (max(value / LARGEST, LEAST_SCALE) for value in largest)
    device = linear.weight.device
    given, made = (torch.full((1,), scale, dtype=torch.float32, device=device) for scale in scales)
    return given, made


@contextmanager
def _watched(largest: dict[nn.Linear, list[float]]) -> Iterator[None]:
    """Keep the largest sizes of what goes into these layers, and of what comes out, up to date."""

    def watch(linear: Any, given: tuple[Tensor, ...], made: Tensor) -> None:
        without = made if linear.bias is None else made - linear.bias
        sizes = given[0].abs().amax(), without.abs().amax()
        largest[linear] = [max(old, float(new)) for old, new in zip(largest[linear], sizes, strict=True)]

    hooks = [linear.register_forward_hook(watch) for linear in largest]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def linears(block: SwinBlock) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
    """A block's four products: QKV, the projection, and both of the MLP."""
    return block.attn.qkv, block.attn.proj, block.mlp["0"], block.mlp["3"]
