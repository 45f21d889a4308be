"""The gradient scaler of mixed precision, with our kernel where torch has its own."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState

from harness.collection.nn._adamw import AdamW
from harness.collection.nn._operators import are_distributed
from harness.collection.nn._unscale import unscale_


class GradScaler(torch.amp.GradScaler):
    """The scaler torch.amp.GradScaler, with one launch that unscales and checks all gradients of a type and device.

    With our AdamW, gradients in float32 are unscaled once, before its step. If there are any in float16, all are only
    checked then, and the step divides them by the scale in float32. A step with an overflow is skipped on the device.
    With other optimizers all is as in torch, and so it is for distributed gradients. Its arguments, methods and errors
    are torch's.

    >>> scaler = nn.GradScaler("cpu", init_scale=4.0)
    >>> scaler.scale(torch.ones(1))
    tensor([4.])
    """

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Unscale the gradients unless they are, and let the optimizer make its step if all are finite."""
        if self._enabled and isinstance(optimizer, AdamW):
            ready = self._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY
            # What is unscaled in float16 before the step would lose its small numbers.
            if ready and not any(grad.dtype == torch.float16 for grad in _grads(optimizer)):
                self.unscale_(optimizer)
        result: float | None = super().step(optimizer, *args, **kwargs)
        return result

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        """What torch calls to unscale and check; its flags by device."""
        by_device: defaultdict[torch.device, list[Tensor]] = defaultdict(list)
        for grad in _grads(optimizer):
            if grad.is_sparse or are_distributed((grad,)):
                by_torch: dict[torch.device, Tensor] = super()._unscale_grads_(
                    optimizer, inv_scale, found_inf, allow_fp16
                )
                return by_torch
            if grad.dtype == torch.float16 and not allow_fp16:
                raise ValueError("Attempting to unscale FP16 gradients.")
            by_device[grad.device].append(grad)
        flags = {}
        for device, grads in by_device.items():
            flags[device] = found_inf.to(device, copy=True)
            unscale_(grads, inv_scale.to(device), flags[device])
        return flags


def _grads(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [param.grad for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
