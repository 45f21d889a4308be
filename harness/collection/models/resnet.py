"""ResNet-50 v1.5 (He et al., 2015; version 1.5 has the stride in the 3 x 3 convolution), as torchvision has it.

B: images. C: channels. H, W: pixels from top to bottom and from left to right. The layout in memory, NCHW or NHWC, is
the user's choice: `model.to(memory_format=...)`, and the same for the images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from harness.collection.models.images import ImageBatch, batch, loss
from harness.collection.models.sizes import CHANNELS, ResNetConfig

__all__ = ["Bottleneck", "ImageBatch", "ResNet", "ResNetOperators", "batch", "bn_add_relu", "loss"]

BatchNormAddRelu = Callable[[nn.BatchNorm2d, Tensor, Tensor | None], Tensor]
"""Gives relu(norm(x) + residual) for a batch norm, x (B, C, H, W), and a residual of this shape or None.

x and the residual have the memory format of the images.
"""


def bn_add_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """Torch's operators. Addition and ReLU happen in place, since no backward needs what batch norm returned."""
    y = norm(x)
    if residual is not None:
        y += residual
    return functional.relu_(y)


@dataclass(frozen=True, slots=True)
class ResNetOperators:
    """The operators of a ResNet beside its convolutions. The shortcuts have a batch norm without ReLU: nn.BatchNorm2d.

    An operator that takes the place of bn_add_relu updates running_mean, running_var and num_batches_tracked of the
    batch norm in training (`norm.training`), and uses the first two outside it.
    """

    bn_add_relu: BatchNormAddRelu = bn_add_relu


class Bottleneck(nn.Module):
    """Three convolutions, 1 x 1, 3 x 3 and 1 x 1, and a shortcut: (B, C, H, W) to (B, 4 width, H / stride, W / stride).

    The shortcut is the input itself, or a 1 x 1 convolution of it where the shapes of input and output differ.
    """

    def __init__(self, channels: int, width: int, stride: int, operators: ResNetOperators) -> None:
        super().__init__()
        self.operators = operators
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample: nn.Module = nn.Identity()
        if channels != 4 * width or stride != 1:
            shortcut = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        """The output's shape is given above."""
        bn_add_relu = self.operators.bn_add_relu
        y = bn_add_relu(self.bn1, self.conv1(x), None)
        y = bn_add_relu(self.bn2, self.conv2(y), None)
        return bn_add_relu(self.bn3, self.conv3(y), self.downsample(x))


class ResNet(nn.Module):
    """Images (B, 3, H, W) to logits (B, classes)."""

    def __init__(self, config: ResNetConfig, operators: ResNetOperators | None = None) -> None:
        super().__init__()
        self.operators = operators or ResNetOperators()
        self.conv1 = nn.Conv2d(CHANNELS, config.width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(config.width)
        self.layer1, self.layer2, self.layer3, self.layer4 = self._stages(config)
        self.fc = nn.Linear(config.features, config.classes)
        self._initialise(config.zero_last_gamma)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes) of images (B, 3, H, W).

        Images of 224 x 224 have 56 x 56 pixels in layer1, and each stage after it halves both sides.
        """
        x = self.operators.bn_add_relu(self.bn1, self.conv1(images), None)
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))

    def _stages(self, config: ResNetConfig) -> Iterator[nn.Sequential]:
        """Every stage but the first begins with a stride of 2. Every stage has twice the width of the stage before."""
        channels = config.width
        for stage, depth in enumerate(config.depths):
            width = config.width * 2**stage
            blocks = []
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(channels, width, stride, self.operators))
                channels = 4 * width
            yield nn.Sequential(*blocks)

    def _initialise(self, zero_last_gamma: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Bottleneck) and zero_last_gamma:
                nn.init.zeros_(module.bn3.weight)


MODEL, BLOCK, OPERATORS = ResNet, Bottleneck, ResNetOperators
"""What steps make of this file: the model, the part of which it has several, and its operators."""
