"""The configurations of models, and what they cost: parameters, and operations of a forward pass. It needs no torch.

Only matrix products and convolutions are counted as operations, a multiplication and an addition counted as two.
Everything else of a model (normalisation, activations, softmax) is left out, as is usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from harness.errors import UsageError

CHANNELS = 3
"""Channels of an image: red, green and blue."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution without bias: channels in and out, pixels of its kernel's side, pixels of its output's side."""

    channels: int
    outputs: int
    kernel: int
    side: int

    @property
    def weights(self) -> int:
        """Elements of its weight."""
        return self.kernel**2 * self.channels * self.outputs


@dataclass(frozen=True, slots=True)
class ResNetConfig:
    """A ResNet with bottlenecks, version 1.5: the 3 x 3 convolution of a bottleneck has the stride.

    depths: bottlenecks of each of the four stages. width: channels of the first stage, inside a bottleneck.
    classes: what an image can be. image: pixels of an image's side. zero_last_gamma: whether the last batch norm of a
    bottleneck begins with a gamma of 0, so that the bottleneck is the identity at first.
    """

    depths: tuple[int, int, int, int] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000
    image: int = 224
    zero_last_gamma: bool = False

    module: ClassVar[str] = "resnet"
    decay: ClassVar[float] = 1e-4

    @property
    def rate(self) -> float:
        """A learning rate with which losses fall from the first step on, without a warm-up."""
        return 3e-3

    @property
    def features(self) -> int:
        """Channels of the last stage's output."""
        return 4 * 8 * self.width

    def convolutions(self) -> Iterator[Convolution]:
        """All convolutions, in the order of the parameters."""
        side = _halved(self.image)
        yield Convolution(CHANNELS, self.width, 7, side)
        side, channels = _halved(side), self.width  # after max pooling
        for stage, depth in enumerate(self.depths):
            width = self.width * 2**stage
            for block in range(depth):
                before = side
                if stage > 0 and block == 0:
                    side = _halved(side)
                yield Convolution(channels, width, 1, before)
                yield Convolution(width, width, 3, side)
                yield Convolution(width, 4 * width, 1, side)
                if block == 0:
                    yield Convolution(channels, 4 * width, 1, side)
                channels = 4 * width

    def parameters(self) -> int:
        """Trained numbers. Each convolution has a batch norm behind it, with a gamma and a beta for each channel."""
        convolutions = sum(one.weights + 2 * one.outputs for one in self.convolutions())
        return convolutions + _linear(self.features, self.classes)

    def flops(self) -> int:
        """Operations of a forward pass of one image."""
        convolutions = sum(2 * one.weights * one.side**2 for one in self.convolutions())
        return convolutions + 2 * self.features * self.classes


class _OfTokens:
    """What configurations of language models share."""

    __slots__ = ()
    hidden: int
    layers: int
    vocabulary: int

    @property
    def rate(self) -> float:
        """A learning rate with which losses fall from the first step on: smaller for wider models."""
        return 1e-4 * 768 / self.hidden

    @property
    def blocks(self) -> int:
        """Layers that follow on each other."""
        return self.layers

    @property
    def classes(self) -> int:
        """What a label can be."""
        return self.vocabulary


@dataclass(frozen=True, slots=True)
class BertConfig(_OfTokens):
    """A BERT with both heads of its pre-training: masked language model, and next sentence.

    layers, hidden (size of a token's vector), heads, intermediate (size between the two products of a layer's end),
    vocabulary (tokens that there are), positions (tokens of the longest sequence), types (sentences of a sequence),
    dropout: its probability. tokens: how many a sequence has. predictions: tokens of a sequence that are predicted; the
    head of the masked language model is applied only to them.
    """

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    intermediate: int = 3072
    vocabulary: int = 30522
    positions: int = 512
    types: int = 2
    dropout: float = 0.1
    tokens: int = 128
    predictions: int = 20

    module: ClassVar[str] = "bert"
    decay: ClassVar[float] = 1e-2

    def __post_init__(self) -> None:
        if self.tokens > self.positions:
            raise UsageError(f"{self.tokens} tokens, but {self.positions} positions", "ask for fewer tokens")
        if self.predictions > self.tokens:
            reason = f"{self.predictions} predictions in {self.tokens} tokens"
            raise UsageError(reason, "ask for fewer predictions, or for more tokens")
        if self.hidden % self.heads:
            reason = f"vectors of {self.hidden} can't be shared by {self.heads} heads"
            raise UsageError(reason, "let the number of heads divide the size of a vector")

    def parameters(self) -> int:
        """Trained numbers. The words' embedding counts once, though the head of the language model uses it as well."""
        size, norm = self.hidden, 2 * self.hidden
        embeddings = (self.vocabulary + self.positions + self.types) * size + norm
        attention = 4 * _linear(size, size) + norm
        layer = attention + _linear(size, self.intermediate) + _linear(self.intermediate, size) + norm
        pooler = _linear(size, size)
        language_model = _linear(size, size) + norm + self.vocabulary
        return embeddings + self.layers * layer + pooler + language_model + _linear(size, 2)

    def flops(self) -> int:
        """Operations of a forward pass of one sequence."""
        size, tokens = self.hidden, self.tokens
        dense = tokens * (4 * size**2 + 2 * size * self.intermediate)
        attention = 2 * tokens**2 * size  # queries by keys, then probabilities by values
        language_model = self.predictions * (size**2 + size * self.vocabulary)
        next_sentence = size**2 + 2 * size
        return 2 * (self.layers * (dense + attention) + language_model + next_sentence)


@dataclass(frozen=True, slots=True)
class SwinConfig:
    """A Swin Transformer. A stage has half of the pixels of the stage before along both sides, and twice its channels.

    width: channels of the first stage. depths, heads: blocks, and heads of attention, of each stage. window, patch:
    pixels of their sides, a window's in the pixels of its stage. classes, image: as in ResNetConfig. drop_path:
    probability that training leaves out a branch of the last block; it grows linearly from 0 for the first block.

    Raises UsageError where windows don't tile the image of a stage: padding isn't implemented.
    """

    width: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7
    patch: int = 4
    classes: int = 1000
    image: int = 224
    drop_path: float = 0.2

    module: ClassVar[str] = "swin"
    decay: ClassVar[float] = 5e-2

    def __post_init__(self) -> None:
        smallest = self.patch * self.window * 2 ** (len(self.depths) - 1)
        if self.image % smallest:
            reason = f"windows of {self.window} can't tile the stages of an image of {self.image}"
            raise UsageError(reason, f"give the image a multiple of {smallest} pixels")

    @property
    def rate(self) -> float:
        """A learning rate with which losses fall from the first step on: smaller for wider models."""
        return 1e-4 * 96 / self.width

    @property
    def blocks(self) -> int:
        """Blocks that follow on each other."""
        return sum(self.depths)

    @property
    def features(self) -> int:
        """Channels of the last stage."""
        return self.channels(len(self.depths) - 1)

    def channels(self, stage: int) -> int:
        """Channels of a stage, counted from 0."""
        return self.width << stage

    def side(self, stage: int) -> int:
        """Pixels of the side of a stage's image."""
        return (self.image // self.patch) >> stage

    def drop_paths(self, stage: int) -> tuple[float, ...]:
        """The probability of dropping a branch, for each block of a stage."""
        first, last = sum(self.depths[:stage]), sum(self.depths) - 1
        return tuple(self.drop_path * (first + block) / last for block in range(self.depths[stage]))

    def parameters(self) -> int:
        """Trained numbers."""
        embedding = _linear(CHANNELS * self.patch**2, self.width) + 2 * self.width
        stages = range(len(self.depths))
        blocks = sum(self.depths[stage] * self._parameters_of_block(stage) for stage in stages)
        merging = sum(8 * self.channels(stage) ** 2 + 8 * self.channels(stage) for stage in stages[:-1])
        return embedding + blocks + merging + 2 * self.features + _linear(self.features, self.classes)

    def _parameters_of_block(self, stage: int) -> int:
        size = self.channels(stage)
        biases = (2 * self.window - 1) ** 2 * self.heads[stage]
        products = _linear(size, 3 * size) + _linear(size, size) + _linear(size, 4 * size) + _linear(4 * size, size)
        return biases + products + 2 * 2 * size

    def flops(self) -> int:
        """Operations of a forward pass of one image."""
        stages = range(len(self.depths))
        embedding = self.side(0) ** 2 * CHANNELS * self.patch**2 * self.width
        blocks = sum(self.depths[stage] * self._products_of_block(stage) for stage in stages)
        merging = sum(self.side(stage + 1) ** 2 * 8 * self.channels(stage) ** 2 for stage in stages[:-1])
        return 2 * (embedding + blocks + merging + self.features * self.classes)

    def _products_of_block(self, stage: int) -> int:
        """Multiplications of a block: 12 products by a channel, and two by a pixel of the window."""
        size = self.channels(stage)
        return self.side(stage) ** 2 * size * (12 * size + 2 * self.window**2)


@dataclass(frozen=True, slots=True)
class LlamaConfig(_OfTokens):
    """A Llama whose head is the embedding of its tokens.

    layers, hidden (size of a token's vector), heads (of queries), groups (heads of keys and values, each for several of
    queries), intermediate (size between the products of a layer's end), vocabulary (tokens that there are), theta (the
    base of the angles of places). tokens: how many a sequence has in training.

    Raises UsageError where heads don't divide the vector, or groups the heads.
    """

    layers: int = 16
    hidden: int = 2048
    heads: int = 32
    groups: int = 8
    intermediate: int = 8192
    vocabulary: int = 128256
    theta: float = 5e5
    tokens: int = 2048

    module: ClassVar[str] = "llama"
    decay: ClassVar[float] = 0.1

    def __post_init__(self) -> None:
        if self.hidden % (2 * self.heads) or self.heads % self.groups:
            reason = f"vectors of {self.hidden}, {self.heads} heads and {self.groups} groups don't fit"
            raise UsageError(reason, "let twice the heads divide the size of a vector, and the groups the heads")

    @property
    def head(self) -> int:
        """Numbers of a head."""
        return self.hidden // self.heads

    @property
    def _products(self) -> int:
        """Weights of a layer's products."""
        return self.hidden * (2 * self.hidden + 2 * self.groups * self.head + 3 * self.intermediate)

    def parameters(self) -> int:
        """Trained numbers. The embedding counts once, though the head uses it as well."""
        return self.layers * (self._products + 2 * self.hidden) + self.hidden * (self.vocabulary + 1)

    def flops(self) -> int:
        """Operations of a forward pass of one sequence. A token attends to itself and to those before it."""
        tokens = self.tokens
        attention = tokens * (tokens + 1) * self.hidden  # queries by keys, then probabilities by values
        return 2 * (self.layers * (tokens * self._products + attention) + tokens * self.hidden * self.vocabulary)

    def flops_of_products(self) -> int:
        """The operations of `flops` that layers' products have, without attention and the head."""
        return 2 * self.layers * self.tokens * self._products

    def flops_of_token(self, context: int) -> int:
        """Operations of the forward pass of one token behind `context` others, whose keys and values are there."""
        attention = 2 * (context + 1) * self.hidden
        return 2 * (self.layers * (self._products + attention) + self.hidden * self.vocabulary)

    def numbers_of_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.groups * self.head


def _halved(side: int) -> int:
    """Pixels that a stride of 2 leaves, padded by half of the kernel."""
    return -(-side // 2)


def _linear(size: int, outputs: int) -> int:
    """Parameters of a matrix product with a bias."""
    return (size + 1) * outputs


_LARGE = (2, 2, 18, 2)

Config = ResNetConfig | BertConfig | SwinConfig | LlamaConfig
"""The configuration of a model: beside its sizes, the file of its model, and the weight decay and the learning rate of
its training."""
MODELS: Mapping[str, Config] = MappingProxyType(
    {
        "resnet50": ResNetConfig(),
        "bert_base": BertConfig(),
        "swin_tiny": SwinConfig(),
        "swin_small": SwinConfig(depths=_LARGE, drop_path=0.3),
        "swin_base": SwinConfig(width=128, depths=_LARGE, heads=(4, 8, 16, 32), drop_path=0.5),
        "swin_large": SwinConfig(width=192, depths=_LARGE, heads=(6, 12, 24, 48)),
        "llama_1b": LlamaConfig(),
        # These are small enough for a CPU to train within a test, and have every part of the large ones.
        "resnet_toy": ResNetConfig(depths=(1, 2, 1, 1), width=8, classes=10, image=32),
        "bert_toy": BertConfig(
            layers=2,
            hidden=32,
            heads=4,
            intermediate=64,
            vocabulary=99,
            positions=32,
            tokens=16,
            predictions=4,
        ),
        "llama_toy": LlamaConfig(layers=2, hidden=32, heads=4, groups=2, intermediate=64, vocabulary=99, tokens=16),
        "swin_toy": SwinConfig(width=16, depths=(2, 2), heads=(2, 4), classes=10, image=56),
    }
)
"""Configurations by name. Swin was published with these probabilities of drop path. llama_1b has Llama 3.2's sizes."""
