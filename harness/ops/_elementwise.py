"""What element-wise kernels share on the host: their types, packs and grids."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PACK_BYTES = 16
BLOCK = 256
CUDA_TYPE = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
BOTH = ("cuda", "cpu")


def blocks(threads: int, block: int = BLOCK) -> int:
    """Blocks of `block` threads that hold `threads`."""
    return -(-threads // block)


def aligned(*tensors: torch.Tensor) -> bool:
    """Whether packs may be loaded from and stored to all of them: each begins on 16 bytes."""
    return not any(tensor.data_ptr() % PACK_BYTES for tensor in tensors)
