"""Plans of products of few rows with weights. Twin of few_rows.cuh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from harness.collection.ops.chip import RESERVED, WARP, Chip
from harness.collection.ops.elementwise import PACK_BYTES, blocks, widened
from harness.ops import Plan

if TYPE_CHECKING:
    import torch

EPSILON = 1e-5
"""What the RMSNorm in front adds to mean squares."""
EVERY_PLAN: Mapping[str, tuple[int, ...]] = {
    "warps": (4, 8, 16),
    "ahead": (1, 2, 3, 4),
    "blocks": (1, 2, 4),
    "fetch": (0, 1, 2, 4, 8),
}
"""What a search may try, as FewRows has it."""
_UNIT = 64  # columns that a warp takes at a time
_PAIRS, _EIGHT, _MOST_ROWS = 8, 8, 16  # pairs of rows of weights of a tile; rows of x of a block
_STEP = 32  # columns by which rows of x in shared memory are longer than their units
_HALF, _FLOAT = 2, 4  # bytes
_PITCH = 20  # floats of a row of sums in shared memory
_WARPS, _AHEAD = 8, 4  # of the rule
_FETCHED = 2**17  # bytes that a block has come to the L2 at most, by the rule


@dataclass(frozen=True, slots=True)
class FewRows:
    """How threads share a product.

    rows: of x that a block multiplies, 8 or 16. warps: of a block. ahead: units that a warp has under way. blocks: of
    a multiprocessor at most. fetch: tiles of a block that come to the L2 before x is there.
    """

    rows: int
    warps: int
    ahead: int
    blocks: int
    fetch: int

    @classmethod
    def of(cls, rows: int, columns: int, plan: Plan, chip: Chip) -> Self | None:
        """The plan for x of (rows, columns); None where shared memory is too small for it."""
        for at_once in (_MOST_ROWS, _EIGHT) if rows > _EIGHT else (_EIGHT,):
            made = cls(at_once, *(int(plan[name]) for name in EVERY_PLAN))
            used = made.shared(rows, columns) + (2 * _PITCH + 1) * made.warps * at_once * _FLOAT
            if used <= chip.shared and made.blocks * (used + RESERVED) <= chip.shared + RESERVED:
                return made
        return None

    def shared(self, rows: int, columns: int) -> int:
        """Dynamic bytes of shared memory: rows of x, and the weights of a norm."""
        return (min(rows, self.rows) + 1) * (blocks(columns, _UNIT) * _UNIT + _STEP) * _HALF

    def grid(self, rows: int, pairs: int, chip: Chip) -> tuple[int, int]:
        """Blocks for each part of the rows, which have about as many tiles each, and parts of the rows."""
        tiles, parts = blocks(pairs, _PAIRS), blocks(rows, self.rows)
        turns = blocks(tiles * parts, chip.multiprocessors * self.blocks)
        return blocks(tiles, turns), parts

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {"ROWS": self.rows, "WARPS": self.warps, "AHEAD": self.ahead, "FETCH": self.fetch}


def rule(columns: int, pairs: int, chip: Chip) -> Plan | None:
    """The plan where no table has one; None where rows aren't whole packs of 16 bytes.

    A multiprocessor has one block, beside which there is room for a block of the next kernel; or two blocks, where all
    blocks are then there at a time.
    """
    if columns % (PACK_BYTES // _HALF):
        return None
    turns = blocks(blocks(columns, _UNIT), _WARPS)
    ahead = blocks(turns, blocks(turns, _AHEAD))
    tiles = blocks(pairs, _PAIRS)
    at_once = 2 if chip.multiprocessors < tiles <= 2 * chip.multiprocessors else 1
    of_tile = 2 * _PAIRS * columns * _HALF
    return {"warps": _WARPS, "ahead": ahead, "blocks": at_once, "fetch": max(1, _FETCHED // of_tile)}


def product(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """X (M, K) times a weight (N, K), and how far off each element may be; in the type of x, float32 at least.

    A product may be rounded by a unit in the last place, and its terms are added in float32 in any order.
    """
    import torch

    (wide,) = widened(weight)
    made = x @ wide.mT
    unit, float32 = torch.finfo(weight.dtype).eps, torch.finfo(torch.float32).eps
    lengths = x.norm(dim=-1, keepdim=True) * wide.norm(dim=-1)
    return made, made.abs() * unit + lengths * (x.shape[-1] ** 0.5 * float32)


def normalised_product(x: torch.Tensor, gamma: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of RMSNorm(x).

    Each normalised element is rounded, so each term has an error of its own: together twice the root of the terms'
    squares, in units in the last place.
    """
    import torch

    normalised = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * gamma
    made, allowed = product(normalised, weight)
    (wide,) = widened(weight)
    terms = (normalised.square() @ wide.square().mT).sqrt()
    return made, allowed + 2 * torch.finfo(weight.dtype).eps * terms
