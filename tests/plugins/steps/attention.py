"""A step of a model with attention, dropout, LayerNorm and a softmax that is written out."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = (one.unsqueeze(1) for one in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.drop(self.proj(functional.scaled_dot_product_attention(q, k, v).squeeze(1)))


class Model(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head((x * functional.softmax(x, -1)).mean(1))


def model():
    return Model()


def batch():
    return torch.randn(8, 5, 16), torch.randint(0, 4, (8,))


def loss(model, words, labels):
    return functional.cross_entropy(model(words), labels)


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=3e-3)
