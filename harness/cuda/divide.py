"""Division by a number known at launch, as a multiplication: the host's half of kernels/include/fastdiv.cuh."""

from __future__ import annotations

import ctypes
from typing import Self


class Divisor(ctypes.Structure):
    """A number to divide by, as a kernel takes it by value. Twin of Divisor<unsigned> in fastdiv.cuh."""

    _fields_ = (("size", ctypes.c_uint32), ("multiplier", ctypes.c_uint32), ("shift", ctypes.c_uint32))

    @classmethod
    def of(cls, size: int) -> Self:
        """The divisor of this size, at least 1 and below 2**31."""
        multiplier, shift = fast_divisor(size, 32)
        return cls(size, multiplier.value, shift.value)


def fast_divisor(divisor: int, bits: int) -> tuple[ctypes.c_uint32 | ctypes.c_uint64, ctypes.c_uint32]:
    """Multiplier and shift for which `(mulhi(n, multiplier) + n) >> shift` is n // divisor, for n < 2**(bits - 1).

    bits: 32 or 64. Source: Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994).
    Raises ValueError for a divisor outside 1 .. 2**(bits - 1) - 1.
    """
    if not 1 <= divisor < 2 ** (bits - 1):
        raise ValueError(f"divisor {divisor} isn't in 1 .. 2**{bits - 1} - 1")
    shift = (divisor - 1).bit_length()
    multiplier = (2**bits * (2**shift - divisor)) // divisor + 1
    word = ctypes.c_uint32 if bits == 32 else ctypes.c_uint64
    return word(multiplier), ctypes.c_uint32(shift)
