"""A ResNet's ladder, and the operators of its rungs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.collection.models import ResNetConfig
from harness.collection.steps.training._rungs import EVERY, FUSED, UNSCALE, Rung, above, above_ours, on

if TYPE_CHECKING:
    import torch

    from harness.collection.models.resnet import ResNetOperators

RESNETS = ("resnet50", "resnet_toy")

_FUSED_NORM = on(
    UNSCALE,
    "fused_norm",
    "on unscale: torch's fused optimizer; batch norm, residual and ReLU in one kernel",
    "O12",
    fused=True,
    norm=True,
)

RESNET = (*EVERY, *above(FUSED), _FUSED_NORM, *above_ours(_FUSED_NORM))


def ours(_rung: Rung) -> ResNetOperators:
    """Our operators."""
    from harness.collection.nn._resnet_operators import resnet_operators

    return resnet_operators()


def of_torch(_rung: Rung, _config: ResNetConfig, _device: torch.device) -> dict[str, Any]:
    """Nothing: no rung has other functions of torch than the model itself."""
    return {}
