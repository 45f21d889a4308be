"""Bit masks in torch: the twin of kernels/include/bitmask.cuh, which says which bit belongs to which element."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WORDS = "cdiv(N, 32)"
"""Words of the mask of N elements, as a tensor's declaration says it; their dtype is int32."""


def bytes_of_bits(count: int) -> int:
    """The fewest bytes that hold `count` bits, which an op with a mask of so many elements has to move."""
    return -(-count // 8)


def unpack(words: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` bits of int32 `words` as booleans, element i from bit i % 32 of word i // 32."""
    import torch

    places = torch.arange(8, device=words.device, dtype=torch.uint8)
    return ((words.view(torch.uint8).unsqueeze(1) >> places) & 1).view(-1)[:count].bool()


def pack(mask: torch.Tensor) -> torch.Tensor:
    """The booleans (count,) as int32 words; bits past the last element are zero."""
    import torch

    padded = torch.zeros(-(-mask.numel() // 32) * 32, device=mask.device, dtype=torch.uint8)
    padded[: mask.numel()] = mask
    weights = torch.tensor([1 << i for i in range(8)], device=mask.device, dtype=torch.uint8)
    return (padded.view(-1, 8) * weights).sum(1, dtype=torch.uint8).view(torch.int32)
