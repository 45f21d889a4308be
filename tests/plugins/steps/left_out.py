"""A step of a model that torch.compile leaves out."""

import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 4)

    @torch.compiler.disable
    def forward(self, x):
        return self.one(x)


def model():
    return Model()


def batch():
    return torch.randn(8, 8), torch.randint(0, 4, (8,))


def loss(model, x, labels):
    return functional.cross_entropy(model(x), labels)
