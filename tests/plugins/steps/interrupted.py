"""A step of a model of which torch.compile leaves out a part: it asks for a number in between."""

import math

import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.one(x)
        return self.two(x if x.sum().item() < math.inf else x.relu())


def model():
    return Model()


def batch():
    return torch.randn(8, 8), torch.randint(0, 4, (8,))


def loss(model, x, labels):
    return functional.cross_entropy(model(x), labels)
