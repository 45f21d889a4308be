"""A candidate in KernelBench's form, with a kernel in Triton: `harness judge examples/judged_model.py`.

KernelBench has the reference in a file of its own, which --reference names. Here both stand in one file. On a CPU,
where Triton has no kernel to run, the candidate calls torch, and the page says so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Model(nn.Module):
    """The reference: GELU in its tanh form, scaled."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The function of each element."""
        return nn.functional.gelu(x, approximate="tanh") * self.scale


class ModelNew(Model):
    """The candidate: the same in one kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The function of each element."""
        if not x.is_cuda:
            return super().forward(x)
        y = torch.empty_like(x)
        kernel()[((x.numel() + BLOCK - 1) // BLOCK,)](x, y, x.numel(), self.scale, block=BLOCK)
        return y


BLOCK = 1024
"""Elements of a program."""
_kernels: list[Any] = []


def kernel() -> Any:
    """The kernel, which is made at the first call: Triton is imported only where a GPU is."""
    if not _kernels:
        import triton
        import triton.language as tl

        @triton.jit
        def scaled_gelu(x, y, count, scale, block: tl.constexpr):  # type: ignore[no-untyped-def]
            place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
            value = tl.load(x + place, mask=place < count).to(tl.float32)
            # tanh(u) = 2 sigmoid(2 u) - 1, so half of 1 + tanh(u) is sigmoid(2 u).
            gate = tl.sigmoid(1.5957691216057308 * (value + 0.044715 * value * value * value))
            tl.store(y + place, (value * gate * scale).to(y.dtype.element_ty), mask=place < count)

        _kernels.append(scaled_gelu)
    return _kernels[0]


def get_inputs() -> list[torch.Tensor]:
    """The arguments of `forward`."""
    return [torch.randn(4096, 1024)]


def get_init_inputs() -> list[float]:
    """The arguments of the classes."""
    return [0.5]
