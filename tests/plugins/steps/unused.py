"""A step of a model in which a layer is never used, so that its weights have no gradient."""

import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.spare = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 16)

    def forward(self, x):
        return self.two(functional.gelu(self.one(x)))


def model():
    return Model()


def batch():
    return torch.randn(8, 8), torch.randint(0, 4, (8,))


def loss(model, x, labels):
    return functional.cross_entropy(model(x), labels)
