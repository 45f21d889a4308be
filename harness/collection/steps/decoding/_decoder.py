"""A Llama that makes the logits of one more token, and keeps keys and values of the tokens before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.collection.models.llama import Llama, LlamaOperators, angles


class Decoder(nn.Module):  # type: ignore[misc] # torch has no types
    """Tokens (B), each behind `context` others of its sequence, to logits (B, V).

    keys, values: of all layers, each (B, K, context + 1, D) as in `harness.collection.models.llama`. The last place is
    the new token's: a call writes it. The places before it hold random numbers, as if other tokens had been there.
    """

    def __init__(self, model: Llama, size: int, context: int, generator: torch.Generator) -> None:
        super().__init__()
        self.model, config = model, model.config
        weight = model.head
        shape = (size, config.groups, context + 1, config.head)

        def kept() -> list[Tensor]:
            options = {"device": generator.device, "dtype": weight.dtype}
            return [torch.randn(shape, generator=generator, **options) for _ in range(config.layers)]

        self.keys, self.values = kept(), kept()
        self.angles = angles(config, torch.tensor([context], device=weight.device))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(one.numel() * one.element_size() for one in self.model.parameters())

    def forward(self, tokens: Tensor) -> Tensor:
        """One more token of each sequence."""
        model = self.model
        x: Tensor = model.model["embed_tokens"](tokens)[:, None]
        residual: Tensor | None = None
        for layer, keys, values in zip(model.model["layers"], self.keys, self.values, strict=True):
            x, residual = layer.normalised(x, residual)
            q, k, v = layer.projected(x, *self.angles)
            keys[:, :, -1:], values[:, :, -1:] = k.transpose(1, 2), v.transpose(1, 2)
            x, residual = layer.rest(model.operators.attention(q.transpose(1, 2), keys, values), residual)
        x, _ = model.operators.add_rms_norm(model.model["norm"], x, residual)
        return functional.linear(x[:, 0], model.head)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one query a head to all keys, by a kernel that torch chooses. It takes groups of queries."""
    y = functional.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2).flatten(2)


WITH_SDPA = LlamaOperators(attention=sdpa)
