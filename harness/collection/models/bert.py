"""BERT (Devlin et al., 2018) with both heads of its pre-training, with the names of transformers' parameters.

B: sequences. T: tokens of a sequence. E: size of a token's vector. P: predicted tokens of a sequence. V: tokens that
there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.collection.models.sizes import BertConfig

EPSILON = 1e-12
"""What LayerNorm adds to variances."""
PADDING = 0
"""The token that fills short sequences. Its embedding gets no gradient from them."""
IGNORED = -100
"""The label of a position that the loss leaves out."""
_MASKED_SHARE = 0.15  # of a sequence's tokens, which the language model predicts


def dense_dropout_add(dense: nn.Linear, x: Tensor, residual: Tensor, p: float) -> Tensor:
    """Dropout of a product with its bias, and a residual: (B, T, E)."""
    return functional.dropout(dense(x), p) + residual


@dataclass(frozen=True, slots=True)
class BertOperators:
    """The operators of a BERT beside its matrix products. p is a probability of dropout, and 0 outside training.

    layer_norm(norm, x), over the last dimension. softmax(x, dim). gelu(x). dropout(x, p).
    dense_dropout_add(dense, x, residual, p): the function of this name, with a product in it whose bias may be added
    later.

    attention(q, k, v, mask, p) is the attention of a layer. q, k, v are (B, heads, T, size of a head), views of
    (B, T, E). mask is added to the scores, (B, 1, 1, T), or None. It returns (B, T, E). An attention of None stands for
    two products with softmax and dropout between them.
    """

    layer_norm: Callable[[nn.LayerNorm, Tensor], Tensor] = nn.LayerNorm.forward
    softmax: Callable[[Tensor, int], Tensor] = torch.softmax
    gelu: Callable[[Tensor], Tensor] = functional.gelu
    dropout: Callable[[Tensor, float], Tensor] = functional.dropout
    dense_dropout_add: Callable[[nn.Linear, Tensor, Tensor, float], Tensor] = dense_dropout_add
    attention: Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor] | None = None


class BertBatch(NamedTuple):
    """Sequences for a training step.

    tokens, types (sentence, 0 or 1) and mask (whether it is no padding): (B, T). positions: which tokens are to be
    predicted, (B, P); labels: what they are, or IGNORED. follows: whether the second sentence follows the first, (B).
    """

    tokens: Tensor
    types: Tensor
    mask: Tensor
    positions: Tensor
    labels: Tensor
    follows: Tensor


class BertForPreTraining(nn.Module):
    """Tokens (B, T) to logits of the predicted tokens (B, P, V), and of the second sentence following (B, 2)."""

    def __init__(self, config: BertConfig, operators: BertOperators | None = None) -> None:
        super().__init__()
        self.operators = operators or BertOperators()
        size = config.hidden
        layers = nn.ModuleList(BertLayer(config, self.operators) for _ in range(config.layers))
        self.bert = nn.ModuleDict(
            {
                "embeddings": BertEmbeddings(config, self.operators),
                "encoder": nn.ModuleDict({"layer": layers}),
                "pooler": nn.ModuleDict({"dense": nn.Linear(size, size)}),
            }
        )
        self.cls = nn.ModuleDict(
            {"predictions": BertPredictions(config, self.operators), "seq_relationship": nn.Linear(size, 2)}
        )
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(
        self, tokens: Tensor, types: Tensor, mask: Tensor | None = None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Predicts all tokens without positions, and has no padding without a mask. BertBatch tells what they are."""
        embeddings = self.bert["embeddings"]
        x = embeddings(tokens, types)
        if mask is not None:
            lowest = torch.finfo(x.dtype).min
            mask = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, lowest)[:, None, None]
        for layer in self.bert["encoder"]["layer"]:
            x = layer(x, mask)
        first = torch.tanh(self.bert["pooler"]["dense"](x[:, 0]))
        if positions is not None:
            x = x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))
        return self.cls["predictions"](x, embeddings.word_embeddings.weight), self.cls["seq_relationship"](first)


class BertEmbeddings(nn.Module):
    """The sum of a token's embedding, its place's and its sentence's: (B, T) to (B, T, E)."""

    def __init__(self, config: BertConfig, operators: BertOperators) -> None:
        super().__init__()
        self.operators, self.p, size = operators, config.dropout, config.hidden
        self.word_embeddings = nn.Embedding(config.vocabulary, size, padding_idx=PADDING)
        self.position_embeddings = nn.Embedding(config.positions, size)
        self.token_type_embeddings = nn.Embedding(config.types, size)
        self.LayerNorm = nn.LayerNorm(size, eps=EPSILON)

    def forward(self, tokens: Tensor, types: Tensor) -> Tensor:
        """Places are counted from 0."""
        places = self.position_embeddings.weight[: tokens.shape[1]]
        x = self.word_embeddings(tokens) + self.token_type_embeddings(types) + places
        return self.operators.dropout(self.operators.layer_norm(self.LayerNorm, x), self.p if self.training else 0.0)


class BertLayer(nn.Module):
    """Attention and two products, each with dropout, added to its input and normalised: (B, T, E) to the same."""

    def __init__(self, config: BertConfig, operators: BertOperators) -> None:
        super().__init__()
        self.operators, self.heads, self.dropout = operators, config.heads, config.dropout
        size, between = config.hidden, config.intermediate
        projections = nn.ModuleDict({name: nn.Linear(size, size) for name in ("query", "key", "value")})
        self.attention = nn.ModuleDict({"self": projections, "output": _dense_and_norm(size, size)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(size, between)})
        self.output = _dense_and_norm(between, size)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The mask is added to the scores; it is (B, 1, 1, T)."""
        ours, p = self.operators, self.dropout if self.training else 0.0
        q, k, v = (dense(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for dense in self._projections)
        attended = (ours.attention or self._attend)(q, k, v, mask, p)
        end = self.attention["output"]
        x = ours.layer_norm(end["LayerNorm"], ours.dense_dropout_add(end["dense"], attended, x, p))
        y = ours.gelu(self.intermediate["dense"](x))
        return ours.layer_norm(self.output["LayerNorm"], ours.dense_dropout_add(self.output["dense"], y, x, p))

    @property
    def _projections(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        return tuple(self.attention["self"].values())

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float) -> Tensor:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores + mask
        probabilities = self.operators.dropout(self.operators.softmax(scores, -1), p)
        return (probabilities @ v).transpose(1, 2).flatten(2)


class BertPredictions(nn.Module):
    """The head of the masked language model: (B, P, E) to (B, P, V). Its last weight is the words' embedding."""

    def __init__(self, config: BertConfig, operators: BertOperators) -> None:
        super().__init__()
        self.operators = operators
        self.transform = _dense_and_norm(config.hidden, config.hidden)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """The words' embedding has a weight (V, E), which is given as `words`."""
        y = self.operators.gelu(self.transform["dense"](x))
        return functional.linear(self.operators.layer_norm(self.transform["LayerNorm"], y), words, self.bias)


def _dense_and_norm(size: int, outputs: int) -> nn.ModuleDict:
    return nn.ModuleDict({"dense": nn.Linear(size, outputs), "LayerNorm": nn.LayerNorm(outputs, eps=EPSILON)})


def batch(config: BertConfig, size: int, generator: torch.Generator, device: torch.device | str) -> BertBatch:
    """Makes `size` sequences of random tokens where the generator is, and moves them to the device.

    A sequence has two sentences of one length, together at least half of `config.tokens`; padding fills the rest. 15%
    of its tokens are predicted, at most `config.predictions`.
    """
    where = generator.device

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, device=where)

    places = torch.arange(config.tokens, device=where)
    lengths = integers((config.tokens + 1) // 2, config.tokens + 1, size, 1)
    mask = places < lengths
    tokens = integers(PADDING + 1, config.vocabulary, size, config.tokens).where(mask, PADDING)
    types = (mask & (places >= lengths // 2)).long()
    # Random places in a random order; the places of the padding come last.
    order = (torch.rand(mask.shape, generator=generator, device=where) - 2.0 * mask).argsort(1)
    predicted = places[: config.predictions] < (lengths * _MASKED_SHARE).ceil()
    labels = integers(PADDING + 1, config.vocabulary, size, config.predictions).where(predicted, IGNORED)
    positions, follows = order[:, : config.predictions].contiguous(), integers(0, 2, size)
    return BertBatch(*(one.to(device) for one in (tokens, types, mask, positions, labels, follows)))


def loss(model: nn.Module, given: BertBatch) -> Tensor:
    """The sum of two mean cross entropies: of the predicted tokens, and of whether the second sentence follows.

    Halves are summed in float32: their sums overflow.
    """
    logits = model(given.tokens, given.types, given.mask, given.positions)
    words, follows = (one.to(torch.promote_types(one.dtype, torch.float32)) for one in logits)
    language = functional.cross_entropy(words.flatten(0, 1), given.labels.flatten(), ignore_index=IGNORED)
    return language + functional.cross_entropy(follows, given.follows)


MODEL, BLOCK, OPERATORS = BertForPreTraining, BertLayer, BertOperators
"""What steps make of this file: the model, the part of which it has several, and its operators."""
