"""The plain streaming kernel. The limits of memory are measured with it, and the copy op has it as variants."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness import cuda

if TYPE_CHECKING:
    import torch

BLOCK = 256
PACK_BYTES = 16
SOURCE = Path(__file__).with_name("stream.cu")


class StreamKernel:
    """Streams `reads` arrays (0 to 3) into `writes` (0 or 1), `unroll` packs of 16 bytes a thread.

    evict_first: mark every access so that the cache gives its line up first.
    It is called with arrays of one size, aligned to 16 bytes. Only whole packs are streamed, not the bytes after them.
    """

    def __init__(self, reads: int, writes: int, unroll: int, evict_first: bool = False) -> None:
        mix = {"READS": reads, "WRITES": writes, "UNROLL": unroll}
        self.kernel = cuda.load(SOURCE, "stream", mix | {"EVICT_FIRST": int(evict_first), "BLOCK": BLOCK})
        self._per_block = BLOCK * unroll

    def __call__(self, sources: Sequence[torch.Tensor], destinations: Sequence[torch.Tensor]) -> None:
        """Launch once. A read-only stream has no destination; its kernel gets a source's address and never writes."""
        sized = (*sources, *destinations)[0]
        packs = sized.numel() * sized.element_size() // PACK_BYTES
        inputs = [*sources, *[None] * (3 - len(sources))]
        output = destinations[0] if destinations else sources[0]
        self.kernel(-(-packs // self._per_block), BLOCK, *inputs, output, ctypes.c_int64(packs))
