"""A step with an autograd function of its own, which makes the step itself, and clips gradients in it."""

import torch
from torch import nn


class Cube(torch.autograd.Function):  # type: ignore[misc] # torch has no types
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * 3 * x**2


class Model(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 1)

    def forward(self, x):
        return self.two(Cube.apply(self.norm(self.one(x))))


def model():
    return Model()


def batch():
    x = torch.randn(16, 8)
    return {"x": x, "y": x.sum(1, keepdim=True)}


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss
