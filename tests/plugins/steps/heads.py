"""A step of a model with queries, keys and values of their own, several heads, and attention that is written out."""

import math

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, TOKENS, WORDS = 32, 4, 8, 64


class Attention(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.drop, self.softmax, self.seen = nn.Dropout(0.1), functional.softmax, TOKENS

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(torch.arange(TOKENS, device=x.device) >= self.seen, -math.inf)
        return (self.drop(self.softmax(scores, -1)) @ v).transpose(1, 2).flatten(2)


class Block(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.proj = nn.LayerNorm(WIDTH), Attention(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.proj(self.attention(self.norm(x)))


def model():
    blocks = nn.Sequential(*(Block() for _ in range(2)))
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), blocks, nn.Linear(WIDTH, WORDS))


def batch():
    words = torch.randint(0, WORDS, (8, TOKENS))
    return words, words.roll(1, 1)


def loss(model, words, labels):
    return functional.cross_entropy(model(words).flatten(0, 1), labels.flatten())
