"""A step of a model that torch.compile can't compile: it has an operator that lies about its shape."""

import torch
from torch import nn
from torch.nn import functional


@torch.library.custom_op("uncompilable::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@twice.register_fake
def _(x):
    """A compiler is told another shape than the operator gives."""
    return x.new_empty(x.shape[0] + 1, x.shape[1])


twice.register_autograd(lambda ctx, dy: 2 * dy)


class Model(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.two(twice(self.one(x)))


def model():
    return Model()


def batch():
    return torch.randn(8, 8), torch.randint(0, 4, (8,))


def loss(model, x, labels):
    return functional.cross_entropy(model(x), labels)
