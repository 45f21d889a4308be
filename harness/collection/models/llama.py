"""Llama (Touvron et al., 2023; with grouped queries as Llama 3), with the names of transformers' parameters.

B: sequences. T: tokens of a sequence. E: size of a token's vector. H, K: heads of queries, and of keys and values.
D: size of a head. F: size between the products of a layer's end. V: tokens that there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.collection.models.sizes import LlamaConfig

EPSILON = 1e-5
"""What RMSNorm adds to mean squares."""


def rms_norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """RMSNorm over the last dimension, in the type of x, whichever type its weight has."""
    return functional.rms_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.eps)


def add_rms_norm(norm: nn.RMSNorm, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """The norm of a sum, and the sum: each (B, T, E)."""
    residual = residual + x
    return rms_norm(norm, residual), residual


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries (B, T, H, D) and keys (B, T, K, D), turned by the angles of their places: cos and sin, (T, D / 2).

    Number i of a head's first half is turned together with number i of its second half, as transformers does it. Sums
    are in float32 at least.
    """
    return _turned(q, cos, sin), _turned(k, cos, sin)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The gate's SiLU times the other product: (B, T, F)."""
    return functional.silu(gate) * up


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by two products and a softmax, as LlamaOperators describes it."""
    groups = q.shape[1] // k.shape[1]
    k, v = (one.repeat_interleave(groups, 1) for one in (k, v))
    # The last queries have the last keys: all tokens are new in training, and the last one in decoding.
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril(k.shape[-2] - q.shape[-2])
    scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)


def linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The mean cross entropy of all tokens, from vectors (N, E), the head's weight (V, E), and labels (N).

    Logits are summed in float32 at least.
    """
    logits = functional.linear(x, weight)
    return functional.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels)


@dataclass(frozen=True, slots=True)
class LlamaOperators:
    """The operators of a Llama beside its matrix products: each has the shapes of the function of its name above.

    attention(q, k, v): q is (B, H, T, D), k and v are (B, K, T, D), views
    of (B, T, H D) and (B, T, K D); it returns (B, T, E), and no token sees a later one.
    """

    rms_norm: Callable[[nn.RMSNorm, Tensor], Tensor] = rms_norm
    add_rms_norm: Callable[[nn.RMSNorm, Tensor, Tensor], tuple[Tensor, Tensor]] = add_rms_norm
    rope: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = rope
    swiglu: Callable[[Tensor, Tensor], Tensor] = swiglu
    attention: Callable[[Tensor, Tensor, Tensor], Tensor] = attention
    linear_cross_entropy: Callable[[Tensor, Tensor, Tensor], Tensor] = linear_cross_entropy


class LlamaBatch(NamedTuple):
    """Sequences for a training step: tokens and the tokens that follow them, (B, T)."""

    tokens: Tensor
    labels: Tensor


class Llama(nn.Module):
    """Tokens (B, T) to logits (B, T, V); with labels (B, T), to the mean cross entropy, a scalar.

    The head's weight is the embedding of the tokens.
    """

    def __init__(self, config: LlamaConfig, operators: LlamaOperators | None = None) -> None:
        super().__init__()
        self.operators, self.config = operators or LlamaOperators(), config
        layers = nn.ModuleList(LlamaLayer(config, self.operators) for _ in range(config.layers))
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(config.vocabulary, config.hidden),
                "layers": layers,
                "norm": nn.RMSNorm(config.hidden, eps=EPSILON),
            }
        )
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.hidden**-0.5)  # as usual, 0.02 for 2048 numbers

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        """Places are counted from 0."""
        x = self.vectors(tokens)
        if labels is None:
            return functional.linear(x, self.head)
        return self.operators.linear_cross_entropy(x.flatten(0, 1), self.head, labels.flatten())

    @property
    def head(self) -> Tensor:
        """The weight (V, E) that makes logits of vectors."""
        weight: Tensor = self.model["embed_tokens"].weight
        return weight

    def vectors(self, tokens: Tensor) -> Tensor:
        """What logits are made of: (B, T) to (B, T, E)."""
        x: Tensor = self.model["embed_tokens"](tokens)
        cos, sin = angles(self.config, torch.arange(tokens.shape[1], device=x.device))
        residual: Tensor | None = None
        for layer in self.model["layers"]:
            x, residual = layer(x, residual, cos, sin)
        last, _ = self.operators.add_rms_norm(self.model["norm"], x, residual)
        return last


class LlamaLayer(nn.Module):
    """Attention, and two products joined by a gate: each is normalised before, and added to the residual after.

    The sum is left to the norm that follows, so a layer gives two tensors: what to add, and what to add it to.
    """

    def __init__(self, config: LlamaConfig, operators: LlamaOperators) -> None:
        super().__init__()
        self.operators, self.size, between = operators, config.head, config.intermediate
        outputs = {"q": config.heads, "k": config.groups, "v": config.groups}
        products = {f"{name}_proj": _product(config.hidden, count * self.size) for name, count in outputs.items()}
        self.self_attn = nn.ModuleDict(products | {"o_proj": _product(config.heads * self.size, config.hidden)})
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": _product(config.hidden, between),
                "up_proj": _product(config.hidden, between),
                "down_proj": _product(between, config.hidden),
            }
        )
        self.input_layernorm = nn.RMSNorm(config.hidden, eps=EPSILON)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, eps=EPSILON)

    def forward(self, x: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """What to add, and what to add it to. x: (B, T, E); residual: likewise, None for the first layer.

        cos, sin: of the angles of places, (T, D / 2).
        """
        x, residual = self.normalised(x, residual)
        q, k, v = self.projected(x, cos, sin)
        return self.rest(self.operators.attention(*(one.transpose(1, 2) for one in (q, k, v))), residual)

    def normalised(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """What attention is given, and the residual."""
        if residual is None:
            return self.operators.rms_norm(self.input_layernorm, x), x
        return self.operators.add_rms_norm(self.input_layernorm, x, residual)

    def projected(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: (B, T, H, D), and twice (B, T, K, D)."""
        q, k, v = (self.self_attn[f"{name}_proj"](x).unflatten(-1, (-1, self.size)) for name in "qkv")
        return *self.operators.rope(q, k, cos, sin), v

    def rest(self, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """What follows attention: what to add, and what to add it to."""
        x = self.self_attn["o_proj"](attended)
        x, residual = self.operators.add_rms_norm(self.post_attention_layernorm, x, residual)
        gate, up = self.mlp["gate_proj"](x), self.mlp["up_proj"](x)
        return self.mlp["down_proj"](self.operators.swiglu(gate, up)), residual


def _product(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def angles(config: LlamaConfig, places: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles that `rope` turns by: for places (T), twice (T, D / 2) in float32."""
    powers = torch.arange(0, config.head, 2, dtype=torch.float32, device=places.device) / config.head
    turns = places.float()[:, None] * config.theta**-powers
    return turns.cos(), turns.sin()


def batch(config: LlamaConfig, size: int, generator: torch.Generator, device: torch.device | str) -> LlamaBatch:
    """Makes `size` sequences of random tokens where the generator is, and moves them to the device."""
    shape, where = (size, config.tokens + 1), generator.device
    tokens = torch.randint(config.vocabulary, shape, generator=generator, device=where).to(device)
    return LlamaBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def loss(model: nn.Module, given: LlamaBatch) -> Tensor:
    """The mean cross entropy of the tokens that follow."""
    found: Tensor = model(given.tokens, given.labels)
    return found


MODEL, BLOCK, OPERATORS = Llama, LlamaLayer, LlamaOperators
"""What steps make of this file: the model, the part of which it has several, and its operators."""
