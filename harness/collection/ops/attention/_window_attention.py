"""What the two ops of attention over windows share: their mask, what outputs must be, and the plan of their kernels.

A window takes mask w % G, where an image has G windows. Source of the shapes and of the mask: Swin Transformer (Liu et
al., 2021). Twin of attention.cuh, attention_rows.cuh and attention_tiles.cuh.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from harness import cuda
from harness.collection.ops.chip import WARP, Chip
from harness.collection.ops.elementwise import BLOCK, CUDA_TYPE, LIMIT_32, aligned, blocks
from harness.expressions import ExpressionError
from harness.model import Case, Work
from harness.ops import Choice, Context, Expected, Extremes, Symbols, Tensors

if TYPE_CHECKING:
    import torch

DTYPES = ("float16", "bfloat16")
MASK = Choice("what is added to all scores of a window beside the bias: nothing, or Swin's mask", ("none", "shift"))
APART = -100.0
"""What Swin's mask adds to a query and a key that were no neighbours before the shift."""


def extremes(scores: float, apart: dict[str, int], *values: str) -> Extremes:
    """The extreme values of an op. scores: the largest number of halves. values: inputs that weights multiply."""
    infinities = [f"{name}.{kind}" for name in values for kind in ("infinity", "minus_infinity", "masked")]
    return Extremes(
        exempt=dict.fromkeys(
            infinities, "a weight that rounds to 0 in halves makes NaN of it, and infinity in float64"
        ),
        largest={"float16": scores, "bfloat16": scores, "mask": math.inf},
        why="scores are halves in torch's ways; and rounding decides which of two large scores is the larger one",
        apart=apart,
    )


_ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of one rounding."""
_SCORES = 2**25
"""Scores of which the check computes the reference at a time."""

# The numbers of the kernels of tiles.
_TILE = 16  # queries
_MOST_KEYS = 64  # whose scores a warp that holds K and V has in registers
_HELD = 2048  # elements of K that a warp holds in registers at most; the same number of V
_FREE = 49 * 32  # elements of K that leave room for more such warps
_HOLDING = 16, 12  # warps of a block that hold K and V, for which there are enough registers: few elements, and many
_SMALL = 32  # size of a head
_LOADING = 18, 12  # warps of a block that don't hold K and V: small heads, and larger heads
_ENOUGH = 0.9  # of the teams that would fit without tables: the time is the time of so many warps
_MOST_TOKENS = 256  # whose tiles a block of 16 warps has
_HEADS = (16, 32, 48, 64)
_TABLE_BYTES = 512  # of shared memory for a tile of 16 x 8 scores
_TABLES = {False: (2, 1), True: (4, 2, 3, 1)}
"""Heads whose tables a block keeps, the best first, by whether heads are neighbours in memory: then more share an
access. Pieces of two heads begin where lines of memory begin; pieces of three heads don't."""
_FEW = 8  # items for which it isn't worth it to make tables
_WASTE = 0.1  # of the multiprocessors that may stay idle, so that each block has parts of one segment only
_IN_TURN = True
"""Whether the blocks of a segment take its images in turn; each has a row of them one after another if not."""
_FLOAT, _ROW_WARPS = 4, BLOCK // WARP  # bytes; warps of a block, each with a row of scores


# ---- Inputs and the reference.


def masks(s: Symbols) -> int:
    """The number of masks, 0 without any. Raises ExpressionError where the windows don't make whole images."""
    if s["mask"] == "none":
        return 0
    if s["W"] % s["G"]:
        raise ExpressionError(f"W = {s['W']} isn't a multiple of G = {s['G']}: each image has G windows")
    return int(s["G"])


def shift_mask(windows: int, tokens: int) -> torch.Tensor:
    """The masks (windows, tokens, tokens) of an image that was rolled by half a window: 0, or APART.

    Windows and tokens that aren't squares of a number are taken as one row.
    """
    import torch

    def sides(count: int) -> tuple[int, int]:
        side = math.isqrt(count)
        return (side, side) if side * side == count else (1, count)

    regions = torch.zeros(1, 1, dtype=torch.int64)
    for of_windows, of_tokens in zip(sides(windows), sides(tokens), strict=True):
        place = torch.arange(of_windows * of_tokens)
        # The last window has pixels from both ends of the image; all other windows are whole.
        last, wrapped = (of_windows - 1) * of_tokens, of_windows * of_tokens - of_tokens // 2
        cut = ((place >= last).long() + (place >= wrapped).long()).view(of_windows, of_tokens)
        regions = (3 * regions[:, None, :, None] + cut[None, :, None, :]).flatten(2).flatten(0, 1)
    return torch.where(regions[:, :, None] == regions[:, None, :], 0.0, APART)


def random(ctx: Context, *shape: int) -> torch.Tensor:
    """Normal random numbers of the case's type."""
    import torch

    return torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=ctx.dtype)


def made_mask(ctx: Context, tokens: int) -> torch.Tensor:
    """The case's masks; an empty tensor without any."""
    import torch

    count = masks(ctx.case.values)
    if not count:
        return torch.empty(0, tokens, tokens, device=ctx.device, dtype=ctx.dtype)
    return shift_mask(count, tokens).to(ctx.device, ctx.dtype)


def flex_obstacle(case: Case) -> str | None:
    """Why FlexAttention can't do a case; None if it can."""
    size = case.symbols["D"]
    if size < 16 or size & (size - 1):
        return f"FlexAttention takes heads of 16, 32, 64 and so on, not of {size}"
    return None


def work(s: Symbols, tokens: int, moved: Work) -> Work:
    """The work that moves these bytes. tokens: of a window. Rows and columns that only fill tiles aren't counted."""
    return Work(moved.read, moved.written, flops=(("case", 4 * s["W"] * s["H"] * tokens**2 * s["D"]),))


def by_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, mask: torch.Tensor | None
) -> torch.Tensor:
    """Attention as Swin Transformer writes it; q, k, v: (W, H, T, D), bias: (H, T, T), mask: (G, T, T)."""
    import torch

    windows, heads, tokens, size = q.shape
    scores = q * size**-0.5 @ k.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias.unsqueeze(0)
    if mask is not None:
        scores = scores.view(-1, len(mask), heads, tokens, tokens) + mask.unsqueeze(1).unsqueeze(0)
        scores = scores.view(windows, heads, tokens, tokens)
    return torch.softmax(scores, dim=-1) @ v


def expected(
    ctx: Context, got: torch.Tensor, inputs: Tensors, bias: torch.Tensor | None, mask: torch.Tensor | None
) -> Iterator[Expected]:
    """What the output must be, some windows at a time, and how far off each element may be.

    got: (W, H, T, D), as are q, k and v of `inputs`. Allowed is one rounding of each score before bias and mask, of
    each weight and of the result, and a tenth more for all that is done in float32, where a sum of a score and what is
    added loses up to 2^-22 of the latter. (A mask beyond 2^53 leaves nothing of a score in float64 either.)
    """
    import torch

    windows, heads, tokens, size = got.shape
    images = len(mask) if mask is not None else 1
    step = max(1, _SCORES // max(1, heads * tokens**2 * images)) * images
    rounding = _ROUNDING[ctx.case.dtype]
    for first in range(0, windows, step):
        here = slice(first, first + step)
        q, k, v = (part[here].double() for part in (inputs.q, inputs.k, inputs.v))
        scores = q @ k.transpose(-2, -1) * size**-0.5
        sizes, plain = scores.abs(), scores.clone()
        if bias is not None:
            scores += bias.double()
        if mask is not None:
            scores.view(-1, images, heads, tokens, tokens).add_(mask.double().unsqueeze(1))
        added = (scores - plain).abs()
        sizes += torch.where(added < 2.0**53, added * (2.0**-22 / rounding), 0.0)
        weights = torch.softmax(scores, dim=-1)
        want = weights @ v
        # A score that is off by e changes a weight by its share e, and the sum of all weights, too.
        # A weight of 0 has no error, however large its score is below the others.
        shares = torch.where(weights > 0, weights * sizes, 0.0)
        off = shares @ v.abs() + shares.sum(-1, keepdim=True) * want.abs() + weights @ v.abs() + want.abs()
        allowed = 1.1 * rounding * off + torch.finfo(got.dtype).smallest_normal
        yield Expected("out", got[here], want, allowed, start=first * heads * tokens * size)


# ---- Kernels.


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
        """Whether tiles fit these sizes."""
        return self.head in _HEADS and 0 < self.tokens <= _MOST_TOKENS

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


@dataclass(frozen=True, slots=True)
class TilePlan:
    """How warps of attention_tiles.cuh share the work; its macros say what the fields are. grid: blocks.

    segment: items that share a set of tables, or, without tables, a head and a mask. ways: blocks that take the images
    of a segment in turn; 1 where blocks have equal parts of the items, one after another.
    """

    team: int
    teams: int
    hold: bool
    tables: int
    shared: int
    grid: int
    segment: int
    ways: int

    @classmethod
    def plain(cls, sizes: AttentionSizes, chip: Chip) -> Self | None:
        """A window and a head a block, a warp a tile, no tables, and nothing under way; None where tiles don't fit."""
        shared = 6 * sizes.tokens * sizes.head * 2
        if not sizes.has_tiles or shared > chip.shared:
            return None
        return cls(blocks(sizes.tokens, _TILE), 1, False, 0, shared, sizes.items, sizes.images, 1)

    @classmethod
    def of(cls, sizes: AttentionSizes, chip: Chip, asked: tuple[int, int] | None = None) -> Self | None:
        """The plan for these sizes; None where tiles don't fit them. asked: tables and teams, if not by the rule."""
        if not sizes.has_tiles:
            return None
        elements = sizes.tokens * sizes.head
        hold = sizes.tokens <= _MOST_KEYS and elements <= _HELD
        team = 1 if hold else blocks(sizes.tokens, _TILE)
        warps = _HOLDING[elements > _FREE] if hold else _LOADING[sizes.head > _SMALL]
        of_team, of_table = elements * 2 * (4 if hold else 6), _table_bytes(sizes.tokens, hold)
        if of_team > chip.shared:
            return None
        most = min(max(1, warps // team), chip.shared // of_team)
        for tables in (asked[0],) if asked else _counts_of_tables(sizes, chip):
            room = min(most, (chip.shared - tables * of_table) // of_team)
            if room >= _ENOUGH * most:
                break
        teams = asked[1] if asked else room
        if teams > room:
            return None
        segment = sizes.images * max(1, tables)
        segments = sizes.items // max(1, segment)
        grid = min(sizes.items, _grid(segments, chip.multiprocessors))
        ways = grid // segments if segments and grid % segments == 0 else 1
        shared = tables * of_table + teams * of_team
        return cls(team, teams, hold, tables, shared, grid, segment, _ways(sizes.images, tables, ways, teams))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.team * self.teams * WARP

    @property
    def macros(self) -> dict[str, str | int]:
        """Macros of attention_tiles.cuh."""
        held = {"HOLD": int(self.hold), "TABLES": self.tables, "SHARED": self.shared}
        return {"TEAM": self.team, "TEAMS": self.teams, **held}


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


def _counts_of_tables(sizes: AttentionSizes, chip: Chip) -> Iterator[int]:
    """Numbers of heads whose tables a block may keep, the best first; each divides the heads, and 0 always goes."""
    if sizes.bias or sizes.masks:
        for tables in _TABLES[sizes.packed]:
            worth = sizes.images * tables >= _FEW or sizes.items <= _FEW * chip.multiprocessors
            if sizes.heads % tables == 0 and worth:
                yield tables
    yield 0


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
        segment, groups = max(1, plan.segment), max(1, sizes.heads // max(1, plan.tables))
        divisors = [(ctypes.c_uint32(n), *cuda.fast_divisor(n, 32)) for n in (segment, groups)]
        arguments = (
            ctypes.c_uint32(sizes.items),
            *self._counts,
            ctypes.c_uint32(plan.ways),
            *divisors[0],
            *divisors[1],
        )

        def launch(*operands: torch.Tensor) -> None:
            *packs, _, _, out = operands
            if aligned(*packs, out):
                kernel(plan.grid, plan.threads, *operands, *arguments, shared=plan.shared)
            else:
                scalar(*operands)

        return launch

    def _load(self, entry: str, macros: dict[str, str | int]) -> cuda.Kernel:
        op = self._ctx.op.name
        return self._ctx.kernel(f"{op}.cu", f"{op}_{entry}", self._macros | macros)
