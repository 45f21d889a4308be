"""The check of inference with a Swin Transformer: weights with which each operator matters, and bounds on the logits.

A model that was just made has weights that hide mistakes: biases of 0, norms that neither scale nor shift, and scores
so small that all pixels of a window count alike. Here all of these are random, and of the size of trained weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.collection.ops.gemm._int8 import SNR, Inaccuracy
from harness.ops import Context, Expected

if TYPE_CHECKING:
    import torch

QKV_GAIN, PROJECTION_GAIN = 1.5, 2.0
"""How much larger weights are than weights that keep the size of numbers: scores differ, and attention counts."""
TYPICAL, LARGEST = 3.0, 12.0
"""How far off logits in halves may be, in units in the last place of a typical one: typically, and one of them."""
LEAST_SNR = 22.0
"""What logits of int8 must have at least, in decibels. Quantising costs less than that; a lost bias of attention or a
scale that belongs to another tensor costs more."""


def enliven(model: torch.nn.Module, seed: int, device: torch.device) -> None:
    """Give a Swin Transformer its random weights, which depend on the seed and the kind of device only."""
    import torch
    from torch import nn

    generator = torch.Generator(device).manual_seed(seed)

    def draw(tensor: torch.Tensor, deviation: float, mean: float = 0.0) -> None:
        tensor.normal_(generator=generator).mul_(deviation).add_(mean)

    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                gain = QKV_GAIN if name.endswith(".qkv") else PROJECTION_GAIN if name.endswith(".proj") else 1.0
                draw(module.weight, gain / module.weight[0].numel() ** 0.5)
                if module.bias is not None:
                    draw(module.bias, 0.5)
            elif isinstance(module, nn.LayerNorm):
                draw(module.weight, 0.25, 1.0)
                draw(module.bias, 0.25)
            elif hasattr(module, "relative_position_bias_table"):
                draw(module.relative_position_bias_table, 1.0)


def judge(ctx: Context, got: torch.Tensor, want: torch.Tensor, *, int8: bool) -> Iterator[Expected | str]:
    """What the logits must be. want: the logits of the same weights and images in higher precision.

    In halves the typical error is bounded as well as the largest: it is the same for all batches, and finds what is
    lost in a few windows or heads. Logits of int8 are held to their signal to noise instead.
    """
    import torch

    errors = Inaccuracy()
    errors.add(got, want)
    for name, value in errors.figures.items():
        ctx.report(name, value)
    if int8:
        found = errors.figures.get(SNR, 0.0)
        if not got.isfinite().all() or found < LEAST_SNR:
            yield f"logits: {found:.1f} dB of signal to noise, at least {LEAST_SNR:g} are wanted"
        return
    unit = torch.finfo(ctx.dtype).eps * float(want.double().square().mean().sqrt())
    yield Expected("logits", got, want, LARGEST * unit)
    typical = (got.to(want.dtype) - want).square().mean().sqrt().view(1)
    yield Expected("typical error of the logits", typical, torch.zeros_like(typical), TYPICAL * unit)
