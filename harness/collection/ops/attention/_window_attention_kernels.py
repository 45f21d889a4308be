"""The kernels of attention over windows: what they work on, how blocks share it, and their launches.

Twin of attention.cuh, attention_rows.cuh, attention_items.cuh and attention_tiles.cuh.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from harness import cuda
from harness.collection.ops.chip import WARP, Chip
from harness.collection.ops.elementwise import BLOCK, CUDA_TYPE, LIMIT_32, aligned, blocks
from harness.ops import Context

if TYPE_CHECKING:
    import torch

_TILE = 16  # queries
_MOST_KEYS = 64  # whose scores a warp that holds K and V has in registers
_HELD = 2048  # elements of K that a warp holds in registers at most; the same number of V
_FREE = 49 * 32  # elements of K that leave room for more such warps
_HOLDING = 16, 12
"""Warps of a block that hold K and V, for which there are enough registers: of few elements in packs; of others."""
_SMALL = 32  # size of a head
_LOADING = 18, 12  # warps of a block that don't hold K and V: small heads, and larger heads
_ENOUGH = 0.9  # of the teams that would fit without tables: the time is the time of so many warps
_ENOUGH_OF_PARTS = 12  # warps of a block that has tables of a part of the queries
_PARTS = (2, 3, 4)
_MOST_TOKENS = 256  # whose tiles a block of 16 warps has
_MOST_COLUMNS = 64  # of a head
_TABLE_BYTES = 512  # of shared memory for a tile of 16 x 8 scores
_TABLES = {False: (2, 1), True: (4, 2, 3, 1)}
"""Heads whose tables a block keeps, the best first, by whether heads are neighbours in memory: then more share an
access. Pieces of two heads begin where lines of memory begin; pieces of three heads don't."""
_FEW = 8  # items for which it isn't worth it to make tables
_FEWEST = 3  # items of a multiprocessor for which it isn't worth it to stay: each item has a block of its own
_WARPS_OF_FEW = 5  # of such a block at most: then several of them are on a multiprocessor
_WASTE = 0.1  # of the multiprocessors that may stay idle, so that each block has shares of one segment only
_IN_TURN = True
"""Whether the blocks of a segment take its images in turn; each has a row of them one after another if not."""
_WORD, _PACK = 4, 8  # bytes of two halves; halves of a pack
_FLOAT, _ROW_WARPS = 4, BLOCK // WARP  # bytes; warps of a block, each with a row of scores


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """What a call works on. masks: 0 without any. packed: whether the heads of a token are neighbours in memory."""

    windows: int
    heads: int
    tokens: int
    head: int
    bias: bool
    masks: int
    packed: bool

    @property
    def images(self) -> int:
        """Windows that share a mask."""
        return self.windows // max(1, self.masks)

    @property
    def items(self) -> int:
        """Pairs of a window and a head."""
        return self.windows * self.heads

    @property
    def has_tiles(self) -> bool:
        """Whether tiles fit these sizes. Rows come in words at least."""
        return self.head % 2 == 0 and 0 < self.head <= _MOST_COLUMNS and 0 < self.tokens <= _MOST_TOKENS

    @property
    def width(self) -> int:
        """Elements of a row of tiles: a head, and zeros."""
        return blocks(self.head, _TILE) * _TILE

    @property
    def row_bytes(self) -> int:
        """Shared memory of a block of the kernel `scalar`: weights, and Q, K and V with rows of two elements more."""
        return _ROW_WARPS * self.tokens * _FLOAT + 3 * self.tokens * (self.head + 2) * 2

    def macros(self, dtype: str) -> dict[str, str | int]:
        """Macros of attention.cuh."""
        return {
            "SCALAR": CUDA_TYPE[dtype],
            "TOKENS": self.tokens,
            "HEAD": self.head,
            "BIAS": int(self.bias),
            "MASK": int(self.masks > 0),
            "PACKED": int(self.packed),
        }

    def obstacle(self) -> str | None:
        """Why no kernel can run these sizes; None if one can."""
        if self.items * self.tokens >= LIMIT_32:
            return "counts rows of scores in 32 bits: for fewer than 2^31 of them"
        if self.row_bytes > cuda.shared_memory():
            room = f"{self.row_bytes / 1024:.0f} KB of {cuda.shared_memory() / 1024:.0f}"
            return f"a window of {self.tokens} tokens with heads of {self.head} doesn't fit into shared memory: {room}"
        return None


class TileNumbers(NamedTuple):
    """What a plan is made of. tables, teams, parts: as in attention_tiles.cuh. stay: if blocks take several items."""

    tables: int
    teams: int
    parts: int
    stay: bool


@dataclass(frozen=True, slots=True)
class TilePlan:
    """How warps of attention_tiles.cuh share the work; its macros say what the fields are. grid: blocks.

    segment: items that share a set of tables, or, without tables, a head, a mask and a part of the queries. ways:
    blocks that take the images of a segment in turn; 1 where blocks have equal shares of the items, one after another.
    """

    team: int
    teams: int
    parts: int
    hold: bool
    stages: int
    tables: int
    shared: int
    grid: int
    segment: int
    ways: int

    @classmethod
    def plain(cls, sizes: AttentionSizes, chip: Chip, parts: int = 1) -> Self | None:
        """An item a block, a warp a tile, no tables, and nothing under way; None where tiles don't fit."""
        return cls.made(sizes, chip, TileNumbers(tables=0, teams=1, parts=parts, stay=False))

    @classmethod
    def of(cls, sizes: AttentionSizes, chip: Chip) -> Self | None:
        """The plan of the rule for these sizes; None where tiles don't fit them."""
        if sizes.items <= _FEWEST * chip.multiprocessors:
            return cls.plain(sizes, chip, blocks(sizes.tokens, _TILE * _WARPS_OF_FEW))
        most = cls._with_most_teams(sizes, chip, 0, 1)
        if most is None:
            return None
        counts = _counts_of_tables(sizes, chip)
        for tables in counts:
            plan = cls._with_most_teams(sizes, chip, tables, 1)
            if plan and plan.stages == most.stages and plan.teams >= _ENOUGH * most.teams:
                return plan
        for parts in _PARTS if 1 in counts and not most.hold else ():
            plan = cls._with_most_teams(sizes, chip, 1, parts)
            if plan and plan.threads >= _ENOUGH_OF_PARTS * WARP:
                return plan
        return most

    @classmethod
    def _with_most_teams(cls, sizes: AttentionSizes, chip: Chip, tables: int, parts: int) -> Self | None:
        """The plan of blocks that stay which has the most teams; a whole next item is on its way if there is room."""
        numbers = (TileNumbers(tables, teams, parts, stay=True) for teams in range(1, max(_LOADING) + 1))
        every = (cls.made(sizes, chip, each) for each in numbers)
        return max(filter(None, every), key=lambda plan: (parts == 1 and plan.stages, plan.teams), default=None)

    @classmethod
    def made(cls, sizes: AttentionSizes, chip: Chip, numbers: TileNumbers) -> Self | None:
        """The plan of these numbers; None where there is no room, or where they don't go together."""
        if not sizes.has_tiles:
            return None
        tables, teams, parts, stay = numbers
        elements, tiles = sizes.tokens * sizes.width, blocks(sizes.tokens, _TILE)
        hold = stay and parts == 1 and sizes.tokens <= _MOST_KEYS and elements <= _HELD
        team = 1 if hold else blocks(tiles, parts)
        in_words = sizes.head % _PACK != 0
        warps = _HOLDING[elements > _FREE or in_words] if hold else _LOADING[sizes.width > _SMALL]
        alone = not stay and (tables or teams > 1)
        if alone or (parts - 1) * team >= tiles or teams > max(1, warps // team):
            return None
        of_table = _table_bytes(sizes.tokens, hold) // tiles * (tiles if hold else team)
        queries = (sizes.tokens if parts == 1 else team * _TILE) * sizes.width
        for stages in (2,) if hold else (2, 1) if stay else (1,):
            of_team = 2 * (4 * elements if hold else stages * (queries + 2 * elements))
            shared = tables * of_table + teams * of_team
            if shared <= chip.shared:
                break
        else:
            return None
        segment, items = sizes.images * max(1, tables), sizes.items * parts
        segments = items // max(1, segment)
        grid = min(items, _grid(segments, chip.multiprocessors)) if stay else items
        ways = grid // segments if stay and segments and grid % segments == 0 else 1
        ways = _ways(sizes.images, tables, ways, teams)
        return cls(team, teams, parts, hold, stages, tables, shared, grid, segment, ways)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.team * self.teams * WARP

    @property
    def macros(self) -> dict[str, str | int]:
        """Macros of attention_tiles.cuh."""
        held = {"HOLD": int(self.hold), "STAGES": self.stages, "TABLES": self.tables, "SHARED": self.shared}
        return {"TEAM": self.team, "TEAMS": self.teams, "PARTS": self.parts, **held}


def _table_bytes(tokens: int, hold: bool) -> int:
    """Shared memory of a head's table: tiles of all bands, as attention_fragments.cuh cuts the keys."""
    bands, of_band = bands_of(tokens, hold)
    columns = blocks(tokens, _TILE // 2) if bands == 1 else bands * 2 * of_band
    return blocks(tokens, _TILE) * columns * _TABLE_BYTES


def bands_of(tokens: int, hold: bool) -> tuple[int, int]:
    """Bands of keys, and pairs of tiles of 8 keys in each of them."""
    pairs = blocks(tokens, _TILE)
    of_band = pairs if hold or pairs == 1 else 3 if pairs % 3 == 0 else 2
    return blocks(pairs, of_band), of_band


def _counts_of_tables(sizes: AttentionSizes, chip: Chip) -> list[int]:
    """Numbers of heads whose tables a block may keep, the best first; each divides the heads. None goes, too."""

    def is_worth_it(tables: int) -> bool:
        return sizes.images * tables >= _FEW or sizes.items <= _FEW * chip.multiprocessors

    counts = _TABLES[sizes.packed] if sizes.bias or sizes.masks else ()
    return [tables for tables in counts if sizes.heads % tables == 0 and is_worth_it(tables)]


def _grid(segments: int, multiprocessors: int) -> int:
    """Blocks: one a multiprocessor, or a few less where then each has parts of one segment, or whole segments, only."""
    if segments > multiprocessors:
        each = blocks(segments, multiprocessors)
        even = segments // each if segments % each == 0 else 0
    else:
        even = segments * (multiprocessors // max(1, segments))
    return even if even >= (1 - _WASTE) * multiprocessors else multiprocessors


def _ways(images: int, tables: int, ways: int, teams: int) -> int:
    """`ways` if so many blocks may take a segment's images in turn without more work for any block; otherwise 1."""
    heads = max(1, tables)
    in_turn, in_a_row = heads * blocks(images, ways), blocks(images * heads, ways)
    return ways if _IN_TURN and ways <= images and blocks(in_turn, teams) <= blocks(in_a_row, teams) else 1


class Kernels:
    """The kernels of an op for one case. `operands` of a call: what the op's kernels take before their sizes."""

    def __init__(self, ctx: Context, sizes: AttentionSizes) -> None:
        self._ctx, self._sizes = ctx, sizes
        self._macros = sizes.macros(ctx.case.dtype)
        self._counts = ctypes.c_uint32(sizes.heads), ctypes.c_uint32(max(1, sizes.masks))

    def softmax(self, scores: torch.Tensor) -> Any:
        """Compile `<op>_softmax`; give a function of bias and mask that takes the softmax of `scores` in place."""
        sizes, kernel = self._sizes, self._load("softmax", {})
        heads, count = self._counts
        rows = sizes.items * sizes.tokens
        grid = blocks(rows * WARP)
        arguments = ctypes.c_uint32(rows), count, heads, *cuda.fast_divisor(sizes.heads, 32)
        return lambda bias, mask: kernel(grid, BLOCK, scores, bias, mask, *arguments)

    def scalar(self) -> Any:
        """Compile `<op>_scalar`; give a function of the operands."""
        sizes, kernel = self._sizes, self._load("scalar", {})
        shared, counts = sizes.row_bytes, self._counts
        return lambda *operands: kernel(sizes.items, BLOCK, *operands, *counts, shared=shared)

    def tiles(self, plan: TilePlan | None) -> Any:
        """Compile `<op>_tiles` for a plan, and `<op>_scalar` for what tiles don't fit; give a function of the operands.

        The last operand is the output, and bias and mask come before it.
        """
        scalar, sizes = self.scalar(), self._sizes
        if plan is None:
            return scalar
        kernel = self._load("tiles", plan.macros)
        segment, groups = max(1, plan.segment), max(1, sizes.heads // max(1, plan.tables) * plan.parts)
        divisors = [(ctypes.c_uint32(n), *cuda.fast_divisor(n, 32)) for n in (segment, groups)]
        arguments = (
            ctypes.c_uint32(sizes.items * plan.parts),
            *self._counts,
            ctypes.c_uint32(plan.ways),
            *divisors[0],
            *divisors[1],
        )

        def launch(*operands: torch.Tensor) -> None:
            *packs, bias, mask, out = operands
            pairs = sizes.tokens % 2 or not (bias.data_ptr() % _WORD or mask.data_ptr() % _WORD)
            if pairs and aligned(*packs, out):
                kernel(plan.grid, plan.threads, *operands, *arguments, shared=plan.shared)
            else:
                scalar(*operands)

        return launch

    def _load(self, entry: str, macros: dict[str, str | int]) -> cuda.Kernel:
        op = self._ctx.op.name
        return self._ctx.kernel(f"{op}.cu", f"{op}_{entry}", self._macros | macros)
