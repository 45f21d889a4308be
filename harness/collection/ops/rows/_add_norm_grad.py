"""What the kernel of add_rms_norm_grad is compiled for, which works on rows in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from harness.collection.ops.chip import RESERVED, WARP, Chip
from harness.collection.ops.elementwise import PACK_BYTES, blocks

_ROWS = 3  # of dy, x and dsum in a stage
_KEPT_ELEMENTS = 32  # sums of columns that a thread keeps at most
_BLOCK = 256  # threads of a block, if so few are enough
_MOST_THREADS = 512  # of a block, and of a multiprocessor: a thread may have up to 128 registers
_MOST_RESIDENT = 8  # blocks of a multiprocessor: each one's sums are written, and read again
_MOST_STAGES = 4
_STATIC = 1024  # bytes of shared memory for sums and barriers, at most


@dataclass(frozen=True, slots=True)
class AddNormGradPlan:
    """What the kernel is compiled for and launched with.

    threads: of a block. resident: blocks of a multiprocessor. kept: packs of a row that a thread has. stages: rows for
    which a block has room. stage_bytes: of one of them.
    """

    threads: int
    resident: int
    kept: int
    stages: int
    stage_bytes: int

    @classmethod
    def of(cls, columns: int, itemsize: int, chip: Chip) -> Self | None:
        """The plan for rows of whole packs; None for rows that are too long, and for rows of other lengths."""
        size = PACK_BYTES // itemsize
        packs, most = columns // size, _KEPT_ELEMENTS // size
        if columns % size or packs > most * _MOST_THREADS:
            return None
        kept = blocks(packs, _BLOCK) if packs <= most * _BLOCK else blocks(packs, _MOST_THREADS)
        threads = blocks(blocks(packs, kept), WARP) * WARP
        stage_bytes = _ROWS * packs * PACK_BYTES
        for resident in range(min(_MOST_RESIDENT, _MOST_THREADS // threads), 0, -1):
            stages = min(_MOST_STAGES, ((chip.shared + RESERVED) // resident - RESERVED - _STATIC) // stage_bytes)
            # Two blocks that work one row after the other are better than one that has its next row at hand.
            if stages >= 2 or (stages and resident == 1):
                return cls(threads, resident, kept, stages, stage_bytes)
        return None

    @property
    def shared(self) -> int:
        """Bytes of shared memory for the stages."""
        return self.stages * self.stage_bytes

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {"THREADS": self.threads, "BLOCKS": self.resident, "KEPT": self.kept, "STAGES": self.stages}
