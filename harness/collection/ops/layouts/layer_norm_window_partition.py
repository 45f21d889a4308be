"""LayerNorm over channels, the cyclic shift and the partition into windows: row S17. Twin of the .cu of this name.

It is what a block of Swin Transformer begins with. gamma and beta are (C); the epsilon is layer_norm's, 1e-5.
Statistics aren't outputs: this is the form for inference.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from harness.collection.ops.chip import WARP
from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, INDEX_TYPE, PACK_BYTES, blocks, power_of_2_from
from harness.collection.ops.layouts import _windows as windows
from harness.collection.ops.layouts import window_partition
from harness.collection.ops.rows import _norm as norm
from harness.collection.ops.rows import layer_norm
from harness.model import Traffic
from harness.ops import ITEMSIZE, Compile, Context, Expected, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

_FILE = "layer_norm_window_partition.cu"

# Elements.
_ELEMENTS = 8  # of a row that a lane has at most, while more lanes of a warp can share the row
_FEWEST_LANES = 16  # whose halves are a sector
_MOST_ELEMENTS = 64  # of a row that a lane keeps in registers

# Chunks.
_CHUNK_BYTES = (16, 8, 4, 2)
_LANE_BLOCK = 128  # threads, where a row has lanes of a warp
_FEW, _MOST = 4, 12  # chunks of a row that a lane has at best, and at most
_TOGETHER = 4  # rows that lanes work on at once at most
_KEPT = {16: 6, 8: 8, 4: 16, 2: 16}  # chunks of all these rows that a lane keeps at most, by bytes of a chunk
_BLOCK_REGISTERS = 16, 32  # of a row that a thread of a block keeps at most: if the row isn't too long, and if it is
_BLOCK_CHUNKS = 8, 16  # the same in chunks
_MOST_THREADS = 1024  # of a block
# (threads that a multiprocessor is to hold at least, up to so many registers for rows). More threads hide more of the
# time that loads take, as long as the compiler needn't spill registers.
_RESIDENT = ((1024, 24), (768, 32), (640, 48), (512, math.inf))
_SECTOR = 32  # bytes that memory moves at least: narrower teams would move parts of them

# Tiles.
_SHORTEST_ROW = 64  # bytes of a row: tiles of shorter rows would keep too few bytes under way
# Lanes that share a row, by its words at most, for halves and for floats; longer rows have whole warps.
_TEAMS = {2: {32: 1, 64: 2, 128: 4}, 4: {16: 1, 32: 2, 64: 4, 128: 8}}
_WARPS = 8  # of a block, where rows have whole warps
_TILES = 4  # of a block there, which share gamma and beta: there are few rows in a tile
_PIECE_BYTES = 4096  # that threads write together at most, unless a row is longer
_MOST_SHARED = 72 * 1024  # bytes of a block, so that a multiprocessor has several blocks


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What y must be, by pixels in the order of the windows: as layer_norm's."""
    s, before = ctx.s, t.before
    x = before.x.reshape(-1, s.C)[windows.pixels_of_windows(s, before.x.device)]
    rows = Tensors(before=Tensors(x=x, gamma=before.gamma, beta=before.beta), y=t.y.view(-1, s.C))
    return norm.forward_expected(ctx, rows, norm.layer_normalised)


_IN_FLOAT32 = "variances are sums of squares in float32"
OP = Op(
    "layer_norm_window_partition",
    "LayerNorm over the channels of images (B, H, W, C), rolled and cut into windows",
    symbols=windows.SYMBOLS,
    defaults=windows.DEFAULTS,
    inputs=(Tensor("x", windows.image_shape), Tensor("gamma", ("C",)), Tensor("beta", ("C",))),
    outputs=(Tensor("y", windows.windows_shape),),
    check=check,
    extremes=replace(norm.EXTREMES, largest=dict.fromkeys(("float32", "bfloat16"), 2.0**50), why=_IN_FLOAT32),
)


def _by_torch(s: Any, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    import torch

    return windows.to_windows(torch.nn.functional.layer_norm(x, (s.C,), gamma, beta, norm.EPS), s)


def _eager_traffic(s: Symbols, itemsize: int) -> Traffic:
    """LayerNorm moves the images once more than the partition alone."""
    return _one_more(windows.eager_traffic(s, itemsize), s, itemsize)


def _unfused_traffic(s: Symbols, itemsize: int) -> Traffic:
    image = windows.image_bytes(s, itemsize)
    return _one_more(Traffic(image, image), s, itemsize)


def _one_more(moved: Traffic, s: Symbols, itemsize: int) -> Traffic:
    image = windows.image_bytes(s, itemsize)
    return Traffic(moved.read + image + 2 * s["C"] * itemsize, moved.written + image)


@OP.variant(
    "eager",
    "layer_norm, then roll, view, permute and contiguous",
    role="baseline",
    rows=("S17",),
    devices=ANY,
    returns=True,
    traffic=_eager_traffic,
)
def eager(ctx: Context) -> Launch:
    """What a block of Swin Transformer does."""
    s = ctx.s
    return lambda t: (_by_torch(s, t.x, t.gamma, t.beta),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor's kernels for exactly this shape."""
    s = ctx.s
    function = compiled(lambda x, gamma, beta: _by_torch(s, x, gamma, beta))
    return lambda t: (function(t.x, t.gamma, t.beta),)


@OP.variant(
    "unfused",
    "layer_norm/tuned, then window_partition/tuned",
    role="published",
    rows=("S17",),
    traffic=_unfused_traffic,
)
def unfused(ctx: Context) -> Launch:
    """The text before, with the best kernel for each step, from "layer_norm.cu" and "window_partition.cu"."""
    import torch

    s, case = ctx.s, ctx.case
    pixels = s.B * s.H * s.W
    rows, cut = layer_norm.OP, window_partition.OP
    of_rows = replace(case, op=rows.name, variant="tuned", shape=(("M", pixels), ("N", s.C)))
    of_windows = replace(case, op=cut.name, variant="tuned", choices=(("direction", "forward"),))
    normalise = rows.variants["tuned"].prepare(replace(ctx, case=of_rows, op=rows))
    partition = cut.variants["tuned"].prepare(replace(ctx, case=of_windows, op=cut))
    # All sets of buffers share these.
    normal = torch.empty(pixels * s.C, dtype=ctx.dtype, device=ctx.device)
    mean, rstd = (torch.empty(pixels, dtype=torch.float32, device=ctx.device) for _ in range(2))

    def launch(t: Tensors) -> None:
        normalise(Tensors(x=t.x, gamma=t.gamma, beta=t.beta, y=normal, mean=mean, rstd=rstd))
        partition(Tensors(x=normal, y=t.y))

    return launch


def fused_lanes(channels: int) -> tuple[int, int]:
    """(lanes that share a row, elements that each has) of the kernel `fused`; 0 elements where they are too many."""
    lanes = min(WARP, max(_FEWEST_LANES, power_of_2_from(blocks(channels, _ELEMENTS))))
    each = blocks(channels, lanes)
    return lanes, each if each <= _MOST_ELEMENTS else 0


@OP.variant(
    "fused",
    "one kernel: lanes of a warp share a row, which they keep in registers, an element an access",
    role="published",
    rows=("S17",),
)
def fused(ctx: Context) -> Launch:
    """The text after, in a plain form; any number of channels at any address."""
    lanes, each = fused_lanes(ctx.s.C)
    if not each:
        return _long(ctx)
    return _by_elements(ctx, "fused", lanes, {"LANES": lanes, "EACH": each})


def _long(ctx: Context) -> Launch:
    """The kernel for rows that are too long for registers."""
    return _by_elements(ctx, "long", WARP, {})


def _by_elements(ctx: Context, name: str, lanes: int, macros: dict[str, str | int]) -> Launch:
    """A launch of the kernel of this name, of which so many lanes share a row."""
    sizes = _pixels(ctx)
    kernel = ctx.kernel(_FILE, f"layer_norm_window_partition_{name}", _macros(ctx) | macros | {"THREADS": BLOCK})
    grid, channels = blocks(sizes.units * lanes), ctypes.c_uint32(ctx.s.C)
    return lambda t: kernel(grid, BLOCK, *_tensors(t), sizes.index(sizes.units), channels, *sizes.arguments)


@dataclass(frozen=True, slots=True)
class WindowRowPlan:
    """Which threads share a row, and how much of it each has. Twin of step 2 of layer_norm_window_partition.cu.

    width: bytes of a chunk. count: chunks of a row that a thread has. lanes: threads of a warp that share a row; 0
    where the block does. together: rows that a team works on at once. whole: whether no thread lacks a chunk.
    """

    width: int
    count: int
    lanes: int
    threads: int
    together: int
    whole: bool

    @classmethod
    def of(cls, row: int, width: int) -> Self | None:
        """The plan for rows of so many chunks; None where a block can't keep one."""
        narrowest = min(max(1, _SECTOR // width), power_of_2_from(row))
        lanes = min(WARP, max(narrowest, power_of_2_from(blocks(row, _FEW))))
        count = blocks(row, lanes)
        if count <= _MOST:
            together = max(1, min(_TOGETHER, _KEPT[width] // count))
            return cls(width, count, lanes, _LANE_BLOCK, together, whole=row == count * lanes)
        for registers, chunks in zip(_BLOCK_REGISTERS, _BLOCK_CHUNKS, strict=True):
            threads = blocks(blocks(row, min(chunks, registers * 4 // width)), WARP) * WARP
            if threads <= _MOST_THREADS:
                count = blocks(row, threads)
                return cls(width, count, 0, threads, 1, whole=row == count * threads)
        return None

    @property
    def macros(self) -> dict[str, str | int]:
        """Macros of the kernel."""
        registers = self.count * self.together * max(1, self.width // 4)
        # Gamma and beta take registers too, since the compiler loads their chunks ahead.
        resident = next(threads for threads, up_to in _RESIDENT if registers + 2 * self.count <= up_to)
        return {
            "BYTES": self.width,
            "COUNT": self.count,
            "LANES": self.lanes,
            "THREADS": self.threads,
            "TOGETHER": self.together,
            "WHOLE": int(self.whole),
            "RESIDENT": max(self.threads, resident),
        }

    def grid(self, rows: int) -> int:
        """Blocks for so many rows."""
        return blocks(rows, self.threads // self.lanes * self.together) if self.lanes else rows


@dataclass(frozen=True, slots=True)
class WindowTilePlan:
    """Rows that a block normalises in shared memory. Twin of Tile in layer_norm_tiles.cuh.

    words: of a unit, which a thread reads at once; a row is an odd number of units. team: lanes of a warp that
    share a row. step: rows at most that are written as one piece. group: threads that write a piece. tiles: that a
    block has one after the other.
    """

    channels: int
    itemsize: int
    words: int
    team: int
    warps: int
    step: int
    group: int
    tiles: int

    @classmethod
    def of(cls, channels: int, itemsize: int, window: int) -> Self | None:
        """The plan for rows of so many elements; None where they are very short or long, or do well with chunks."""
        row = channels * itemsize
        team = next((lanes for most, lanes in _TEAMS[itemsize].items() if row // 4 <= most), WARP)
        short = team < WARP
        # Chunks of 8 bytes are enough for floats, and for rows with many of them.
        widest = 8 if short and itemsize == 2 else 4
        if row < _SHORTEST_ROW or row % (2 * widest) == 0:
            return None
        step = blocks(window, blocks(window * row, _PIECE_BYTES)) if short else 1
        plan = cls(
            channels,
            itemsize,
            words=1 if row % 8 else 2,
            team=team,
            warps=2 * team if short else _WARPS,
            step=step,
            group=WARP if step * row >= WARP * PACK_BYTES else WARP // 2,
            tiles=1 if short else _TILES,
        )
        return plan if plan.shared + channels * 8 <= _MOST_SHARED else None

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.threads // self.team

    @property
    def shared(self) -> int:
        """Bytes of a tile in shared memory. The pack behind it may be read."""
        return self.rows * self.channels * self.itemsize + PACK_BYTES

    @property
    def macros(self) -> dict[str, str | int]:
        """Macros of the kernel."""
        return {
            "TILE_CHANNELS": self.channels,
            "TILE_WORDS": self.words,
            "TILE_TEAM": self.team,
            "TILE_WARPS": self.warps,
            "TILE_STEP": self.step,
            "TILE_GROUP": self.group,
            "TILE_COUNT": self.tiles,
            "RESIDENT": _RESIDENT[0][0],
        }

    def grid(self, rows: int) -> int:
        """Blocks for so many rows."""
        return blocks(rows, self.rows * self.tiles)


@OP.variant(
    "tuned",
    "one kernel: rows in registers, or in shared memory if they aren't whole packs of 16 bytes",
    rows=("S17",),
)
def tuned(ctx: Context) -> Launch:
    """Rows that aren't whole packs come in tiles where WindowTilePlan has a plan, if packs are aligned.

    Other rows have chunks, which are as wide as rows and addresses allow. A row that is too long for a block is read
    again.
    """
    itemsize = ITEMSIZE[ctx.case.dtype]
    row = ctx.s.C * itemsize
    widest = next(width for width in _CHUNK_BYTES if row % width == 0)
    launches = {width: _planned(ctx, width) or _long(ctx) for width in dict.fromkeys((widest, itemsize))}
    tiled = _tiled(ctx)

    def launch(t: Tensors) -> None:
        if tiled and not (t.x.data_ptr() | t.y.data_ptr()) % PACK_BYTES:
            tiled(t)
            return
        fits = not any(tensor.data_ptr() % widest for tensor in _tensors(t))
        launches[widest if fits else itemsize](t)

    return launch


def _tiled(ctx: Context) -> Launch | None:
    """The kernel of `tuned` for tiles; None where there is no plan for them."""
    plan = WindowTilePlan.of(ctx.s.C, ITEMSIZE[ctx.case.dtype], ctx.s.window)
    if plan is None:
        return None
    sizes = _pixels(ctx)
    kernel = ctx.kernel(_FILE, "layer_norm_window_partition_tiles", _macros(ctx) | plan.macros)
    grid, threads, shared = plan.grid(sizes.units), plan.threads, plan.shared
    return lambda t: kernel(grid, threads, *_tensors(t), sizes.index(sizes.units), *sizes.arguments, shared=shared)


def _planned(ctx: Context, width: int) -> Launch | None:
    """The kernel of `tuned` with chunks of so many bytes; None where a row is too long for it."""
    plan = WindowRowPlan.of(ctx.s.C * ITEMSIZE[ctx.case.dtype] // width, width)
    if plan is None:
        return None
    sizes = _pixels(ctx)
    kernel = ctx.kernel(_FILE, "layer_norm_window_partition_tuned", _macros(ctx) | plan.macros)
    grid, threads, channels = plan.grid(sizes.units), plan.threads, ctypes.c_uint32(ctx.s.C)
    return lambda t: kernel(grid, threads, *_tensors(t), sizes.index(sizes.units), channels, *sizes.arguments)


def _pixels(ctx: Context) -> windows.WindowMap:
    """The map whose units are pixels."""
    return windows.WindowMap.of(ctx.s, ctx.s.C)


def _macros(ctx: Context) -> dict[str, str | int]:
    return {"SCALAR": CUDA_TYPE[ctx.case.dtype], "INDEX": INDEX_TYPE[_pixels(ctx).bits]}


def _tensors(t: Tensors) -> tuple[Any, ...]:
    return t.x, t.gamma, t.beta, t.y
