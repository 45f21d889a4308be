"""What element-wise kernels share on the host: their types, packs and grids."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.model import Case
from harness.ops import ANY_DEVICE

if TYPE_CHECKING:
    import torch

PACK_BYTES = 16
BLOCK = 256
CUDA_TYPE = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
WORD_TYPE = {2: "unsigned short", 4: "unsigned"}
"""The type of an element by its bytes, for kernels that only move elements."""
INDEX_TYPE = {32: "unsigned", 64: "unsigned long long"}
"""The type of an index by its bits."""
ANY = (ANY_DEVICE,)
"""Devices of a variant that is plain torch."""
BOTH = ("cuda", "cpu")
"""Devices of a variant in torch that takes other ways on a GPU, such as streams and autocast."""
LIMIT_32 = 2**31
"""Elements that indexes of 32 bits can't count: one bit is left to the fast division, which adds."""


def needs_32_bits(case: Case) -> str | None:
    """Why a kernel whose indexes have 32 bits can't run the case; None if it can. Elements are the product of sizes."""
    if math.prod(case.symbols.values()) < LIMIT_32:
        return None
    return "counts elements in 32 bits: for fewer than 2^31 of them"


def blocks(threads: int, block: int = BLOCK) -> int:
    """The fewest blocks of `block` threads that hold `threads`."""
    return -(-threads // block)


def power_of_2_from(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def aligned(*tensors: torch.Tensor) -> bool:
    """Whether packs may be loaded from and stored to all of these tensors: each begins on 16 bytes."""
    return not any(tensor.data_ptr() % PACK_BYTES for tensor in tensors)


def widened(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors as a reference computes with them: float32 in float64, halves in float32."""
    import torch

    return [tensor.to(torch.float64 if tensor.dtype == torch.float32 else torch.float32) for tensor in tensors]


def split(elements: int, size: int, x_offset: int, y_offset: int) -> tuple[int, int, int]:
    """(head, packs, misaligned): elements before the first pack, full packs, and bytes by which x's packs are off.

    Packs begin on a 16-byte boundary of y. x is read from the two aligned words around each pack, which must both lie
    inside the tensor. If they don't, the head has one more pack, or there is one pack less.
    size: bytes an element; offsets: addresses modulo 16.
    """
    pack = PACK_BYTES // size
    head = (-y_offset % PACK_BYTES) // size
    misaligned = (x_offset + head * size) % PACK_BYTES
    if misaligned > head * size:
        head += pack
    packs = max(0, (elements - head) // pack)
    unread = (elements - head - packs * pack) * size
    if misaligned and packs and PACK_BYTES - misaligned > unread:
        packs -= 1
    return min(head, elements), packs, misaligned
