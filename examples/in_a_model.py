"""Our kernels in a model: `python examples/in_a_model.py`. They run on a GPU; on a CPU the same functions call torch.

The block is one residual layer of a transformer: normalise, multiply, add a bias, drop out, add the input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness import nn


class Block(torch.nn.Module):
    """x + dropout(W norm(x) + bias), with the last three steps in one kernel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.weight = torch.nn.Parameter(torch.randn(width, width) / width**0.5)
        self.bias = torch.nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """The output has the shape of x: (rows, width)."""
        normed = nn.layer_norm(x, self.norm.weight, self.norm.bias)
        return nn.bias_dropout_residual(normed @ self.weight, self.bias, x, p=0.1)


def train(steps: int, device: str) -> list[float]:
    """The loss of each step. The block learns to give back half of what it gets."""
    torch.manual_seed(0)
    block = Block(64).to(device)
    optimizer = nn.AdamW(block.parameters(), lr=1e-2)
    x = torch.randn(256, 64, device=device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (block(x) - x / 2).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    losses = train(50, "cuda" if torch.cuda.is_available() else "cpu")
    print(f"loss: {losses[0]:.3f} at the first step, {losses[-1]:.3f} at the last step")
