"""A step of a model with convolutions, batch norm and a shortcut."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x
        return self.relu(y)


def model():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(Block(), Block()), nn.Flatten(), nn.Linear(8 * 36, 4))


def batch():
    return torch.randn(8, 3, 8, 8), torch.randint(0, 4, (8,))


def loss(model, images, labels):
    return functional.cross_entropy(model(images), labels)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
