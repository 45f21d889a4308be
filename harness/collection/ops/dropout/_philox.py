"""Philox4x32-10 in torch: the twin of philox.cuh, to check and to replay what the kernels draw.

Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GROUP = {16: 8, 24: 4}
"""Elements that share a draw, by the bits of their numbers."""
_LOW = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_BUMPS = (0x9E3779B9, 0xBB67AE85)


def philox(counter: Sequence[torch.Tensor], key: tuple[int, int]) -> list[torch.Tensor]:
    """The four random words of each counter. All are int64 tensors of one shape that hold 32 unsigned bits."""
    x, y, z, w = counter
    low, high = key
    for _ in range(_ROUNDS):
        # 64 bits of the product, as a signed number; the shift is masked back to an unsigned half.
        a, b = x * _MULTIPLIERS[0], z * _MULTIPLIERS[1]
        x, y, z, w = (b >> 32 & _LOW) ^ y ^ low, b & _LOW, (a >> 32 & _LOW) ^ w ^ high, a & _LOW
        low, high = low + _BUMPS[0] & _LOW, high + _BUMPS[1] & _LOW
    return [x, y, z, w]


def numbers(seed: int, call: int, elements: torch.Tensor, bits: int) -> torch.Tensor:
    """The random numbers of the elements with these indexes (int64), each of `bits` bits.

    bits: 16 for the narrow stream, whose groups of eight elements share a draw; 24 for the wide one's groups of four.
    """
    per_group = GROUP[bits]
    drawn = draws(seed, call, elements // per_group, bits)
    return drawn.gather(-1, (elements % per_group).unsqueeze(-1)).squeeze(-1)


def draws(seed: int, call: int | torch.Tensor, groups: torch.Tensor, bits: int) -> torch.Tensor:
    """The numbers of all elements of the groups with these indexes (int64), in one more dimension.

    call: a number, or a tensor (1,) of int64 that has it; then the host doesn't wait for the number.
    """
    import torch

    upper = [groups * 0 + (call & _LOW), groups * 0 + (call >> 32 & _LOW)]
    words = torch.stack(philox([groups & _LOW, groups >> 32 & _LOW, *upper], (seed & _LOW, seed >> 32 & _LOW)), -1)
    return words >> 8 if bits == 24 else torch.stack([words & 0xFFFF, words >> 16], -1).flatten(-2)
