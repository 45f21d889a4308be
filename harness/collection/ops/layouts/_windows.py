"""What the ops on windows share: sizes, torch's code, the map between image and windows, and the kernels that move.

An image is (B, H, W, C), channels last. It is rolled by -shift along H and W, and cut into windows of window x window
pixels: (B * H / window * W / window, window * window, C), the windows of an image row by row, the pixels of a window
row by row. Source of the layout: Swin Transformer (Liu et al., 2021). Twin of windows.cuh.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from harness import cuda
from harness.collection.ops.elementwise import BLOCK, INDEX_TYPE, LIMIT_32, PACK_BYTES, WORD_TYPE, blocks
from harness.expressions import ExpressionError
from harness.model import Case, Traffic
from harness.ops import ITEMSIZE, Built, Choice, Context, Launch, Plan, Symbols, Tensor, Tensors, Tuning

if TYPE_CHECKING:
    import torch

SYMBOLS = {
    "B": "images",
    "H": "pixels of an image from top to bottom, a multiple of the window",
    "W": "pixels from left to right, a multiple of the window",
    "C": "channels",
    "window": "pixels of a window's side",
    "shift": "pixels by which the image is rolled up and to the left before it is cut; 0 for none",
}
DEFAULTS = {"shift": "0"}
DIRECTION = Choice("forward, or backward: from the output's gradient to the input's", ("forward", "backward"))

_UNIT_BYTES = (16, 8)
"""Bytes of an access of the kernel `units`. Narrower accesses take more arithmetic than `tiles` does for 16 bytes."""
_BYTES_OF_THREAD = 32
"""Bytes that a thread of `units` moves, all of them in flight at once, where no table says how many units."""
_UNROLLS = (1, 2, 4, 8)
_TILE_BYTES = 13 * 1024
"""Shared memory of a block of `tiles`, if a window needs no more: eight such blocks fill a multiprocessor's threads."""
_MOST_TILE_BYTES = 40 * 1024
"""The same for large windows. Of larger ones a run is so long that `ragged` has few packs with parts of two."""
_TILE_THREADS = 256
"""Threads of a block of `tiles`. Each has some three packs of a tile."""
_TILED_PIXEL_BYTES = 128
"""Bytes of a pixel up to which `tiles` moves it. Of wider ones `ragged` has few packs with parts of two runs."""


# ---- Shapes.


def image_shape(s: Symbols) -> tuple[int, ...]:
    """Sizes of the image. Raises ExpressionError where windows can't tile it."""
    for name in ("H", "W"):
        if s[name] % s["window"]:
            reason = f"{name} = {s[name]} isn't a multiple of window = {s['window']}; pad the image first, as Swin does"
            raise ExpressionError(reason)
    return s["B"], s["H"], s["W"], s["C"]


def windows_shape(s: Symbols) -> tuple[int, ...]:
    """Sizes of the windows. Raises ExpressionError as image_shape() does."""
    images, height, width, channels = image_shape(s)
    pixels = s["window"] ** 2
    return images * height * width // pixels, pixels, channels


def gives_windows(s: Symbols, forward: bool) -> bool:
    """Whether the output is windows. forward: whether the output is windows in the direction `forward`."""
    return bool(s["direction"] == "forward") == forward


def tensors(forward: bool) -> dict[str, Any]:
    """Declarations of x and y, which are an image and its windows, or the other way round. forward: as above."""
    return {
        "inputs": (Tensor("x", lambda s: (image_shape if gives_windows(s, forward) else windows_shape)(s)),),
        "outputs": (Tensor("y", lambda s: (windows_shape if gives_windows(s, forward) else image_shape)(s)),),
    }


# ---- What a user writes in torch, and a reference that is made in another way.


def to_windows(x: torch.Tensor, s: Any) -> torch.Tensor:
    """Image to windows as Swin Transformer does it; also what autograd does in the backward of to_image()."""
    if s.shift:
        x = x.roll((-s.shift, -s.shift), (1, 2))
    w = s.window
    cut = x.view(s.B, s.H // w, w, s.W // w, w, s.C).permute(0, 1, 3, 2, 4, 5)
    return _copy(cut).view(-1, w * w, s.C)


def to_image(windows: torch.Tensor, s: Any) -> torch.Tensor:
    """Windows to image as Swin Transformer does it; also what autograd does in the backward of to_windows()."""
    w = s.window
    cut = windows.view(s.B, s.H // w, s.W // w, w, w, s.C).permute(0, 1, 3, 2, 4, 5)
    image = _copy(cut).view(s.B, s.H, s.W, s.C)
    return image.roll((s.shift, s.shift), (1, 2)) if s.shift else image


def _copy(cut: torch.Tensor) -> torch.Tensor:
    """What contiguous() does, also where an image is one window: there contiguous() returns the input's own memory."""
    import torch

    return cut.clone(memory_format=torch.contiguous_format)


def by_torch(ctx: Context, forward: bool, compiled: Callable[[Any], Any] | None = None) -> Launch:
    """The output by torch's code. compiled: what compiles it; it runs eagerly without."""
    s = ctx.s
    move = to_windows if gives_windows(ctx.case.values, forward) else to_image

    def moves(x: torch.Tensor) -> torch.Tensor:
        return move(x, s)

    function = compiled(moves) if compiled else moves
    return lambda t: (function(t.x),)


def pixels_of_windows(s: Any, device: torch.device | str) -> torch.Tensor:
    """The image's pixel for each pixel of the windows, counted through all images."""
    import torch

    pixel = torch.arange(s.B * s.H * s.W, device=device)
    window, place = pixel // s.window**2, pixel % s.window**2
    across, down = s.W // s.window, s.H // s.window
    row = (window // across % down * s.window + place // s.window + s.shift) % s.H
    column = (window % across * s.window + place % s.window + s.shift) % s.W
    return (window // (across * down) * s.H + row) * s.W + column


def moved(ctx: Context, x: torch.Tensor, forward: bool) -> torch.Tensor:
    """The op's output, by an index for each pixel. forward: as in gives_windows()."""
    place, pixels = pixels_of_windows(ctx.s, x.device), x.reshape(-1, ctx.s.C)
    if gives_windows(ctx.case.values, forward):
        return pixels[place].view(windows_shape(ctx.case.values))
    image = pixels.new_empty(pixels.shape)
    image[place] = pixels
    return image.view(image_shape(ctx.case.values))


def eager_traffic(s: Symbols, itemsize: int) -> Traffic:
    """The bytes of torch's code: a copy for roll, if there is a shift, and one for contiguous."""
    moved = image_bytes(s, itemsize) * (2 if s["shift"] else 1)
    return Traffic(moved, moved)


def image_bytes(s: Symbols, itemsize: int) -> int:
    """Bytes of the images, and of their windows."""
    return math.prod(image_shape(s)) * itemsize


# ---- Kernels.


@dataclass(frozen=True, slots=True)
class WindowMap:
    """The sizes that lead from an image to its windows and back. All but `side`, `across` and `height` are in units.

    A unit is some neighbouring elements, and the roll and the windows' borders cut none. run: a row of a window, which
    is contiguous in the windows and in the rolled image; the roll cuts some runs in two. side: rows of a window.
    across: windows beside each other. height: rows of an image. row: a row of an image. units: of all images.
    """

    run: int
    side: int
    across: int
    height: int
    row: int
    rows_shifted: int
    units_shifted: int
    units: int

    @classmethod
    def of(cls, s: Any, unit: int) -> Self:
        """The map for units of so many elements."""
        return cls(
            run=s.window * s.C // unit,
            side=s.window,
            across=s.W // s.window,
            height=s.H,
            row=s.W * s.C // unit,
            rows_shifted=s.shift % s.H,
            units_shifted=s.shift % s.W * s.C // unit,
            units=s.B * s.H * s.W * s.C // unit,
        )

    @property
    def bits(self) -> int:
        """Bits of an index: 32 where they suffice."""
        return 32 if self.units < LIMIT_32 else 64

    @property
    def index(self) -> type[ctypes.c_uint32 | ctypes.c_uint64]:
        """The type of an index."""
        return ctypes.c_uint32 if self.bits == 32 else ctypes.c_uint64

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Arguments for WINDOW_PARAMETERS of windows.cuh."""
        divisors = (self.run, self.side, self.across, self.height, self.row)
        flat = [part for size in divisors for part in (self.index(size), *cuda.fast_divisor(size, self.bits))]
        return *flat, self.index(self.rows_shifted), self.index(self.units_shifted)


def shortest_piece(s: Any) -> int:
    """Pixels of the shortest piece that is contiguous in the image and in the windows: a run, or a part of one."""
    cut = s.shift % s.window
    return int(min(cut, s.window - cut) if cut else s.window)


def is_copy(s: Any) -> bool:
    """Whether windows have the order of their images."""
    return bool(s.window == s.W and not s.shift % s.H and not s.shift % s.W)


def unit_bytes(s: Any, itemsize: int) -> int:
    """Bytes of the widest access of _UNIT_BYTES that fits into every piece a whole number of times; 0 if none does."""
    piece = math.gcd(s.window, s.shift) * s.C * itemsize
    return next((width for width in _UNIT_BYTES if piece % width == 0), 0)


@dataclass(frozen=True, slots=True)
class WindowTiles:
    """How the kernel `tiles` cuts images: `bands` rows of windows are a tile, or `columns` windows beside each other.

    A tile has several bands only if its columns are all windows beside each other. Twin of window_tiles.cuh.
    """

    columns: int
    bands: int

    @classmethod
    def of(cls, s: Any, itemsize: int, to_windows: bool, places: int) -> Self | None:
        """The tiles of these images; None if a window doesn't fit into one. places: blocks that run at a time.

        Tiles of several bands are as small as they can be in as few waves of blocks, so that the last wave is full.
        """
        across, down = s.W // s.window, s.B * s.H // s.window
        band = cls(across, 1).shared_bytes(s, itemsize, to_windows)
        if band <= _TILE_BYTES:
            most = max(1, min(down, _TILE_BYTES // band))
            waves = blocks(blocks(down, most), places)
            return cls(across, blocks(down, waves * places))
        window = cls(1, 1).shared_bytes(s, itemsize, to_windows)
        if window > _MOST_TILE_BYTES:
            return None
        # A tile of several windows takes less than several tiles of one window.
        most = max(1, min(across, _TILE_BYTES // window))
        return cls(blocks(across, blocks(across, most)), 1)

    def row_packs(self, s: Any, itemsize: int) -> int:
        """The most packs that a row of a tile touches in the images. The roll may cut it in two parts."""
        pack = PACK_BYTES // itemsize
        return int(self.columns * s.window * s.C + (4 if s.shift % s.W else 2) * (pack - 1)) // pack

    def shared_bytes(self, s: Any, itemsize: int, to_windows: bool) -> int:
        """Bytes of shared memory, with the tables of rows and of runs."""
        rows, pack = self.bands * s.window, PACK_BYTES // itemsize
        packs = (rows * self.columns * s.window * s.C + 2 * (pack - 1)) // pack
        tables, number = rows, 8
        if to_windows:
            packs, tables = rows * self.row_packs(s, itemsize), rows + rows * self.columns
        return int((packs + 1) * PACK_BYTES + (tables + 1) * number)

    def count(self, s: Any) -> int:
        """Tiles of all images."""
        return int(blocks(s.W // s.window, self.columns) * blocks(s.B * s.H // s.window, self.bands))


def _macros(case: Case, forward: bool, bits: int) -> dict[str, str | int]:
    return {
        "SCALAR": WORD_TYPE[ITEMSIZE[case.dtype]],
        "INDEX": INDEX_TYPE[bits],
        "TO_WINDOWS": int(gives_windows(case.values, forward)),
    }


def index_map(ctx: Context, forward: bool) -> Launch:
    """The kernel `<op>_index_map`. forward: as in gives_windows(), here and below."""
    s, sizes = ctx.s, WindowMap.of(ctx.s, 1)
    kernel = ctx.kernel(f"{ctx.case.op}.cu", f"{ctx.case.op}_index_map", _macros(ctx.case, forward, sizes.bits))
    counts = (sizes.units, s.H, s.W, s.C, s.window, s.shift % s.H, s.shift % s.W)
    arguments, grid = [sizes.index(count) for count in counts], blocks(sizes.units)
    return lambda t: kernel(grid, BLOCK, t.x, t.y, *arguments)


def tuned(ctx: Context, forward: bool) -> Launch:
    """The kernel `<op>_units`; another one where pieces aren't whole units or addresses aren't aligned to them.

    That is `<op>_tiles`, or `<op>_ragged` where pixels or windows are too large for it. Nothing changes its place where
    windows are as wide as images, and no roll moves them; then it is a plain copy.
    """
    if is_copy(ctx.s):
        return lambda t: cuda.memcpy(t.y, t.x)
    itemsize = ITEMSIZE[ctx.case.dtype]
    narrow = ctx.s.C * itemsize <= _TILED_PIXEL_BYTES
    places = cuda.resident_threads() // _TILE_THREADS
    tiles = WindowTiles.of(ctx.s, itemsize, gives_windows(ctx.case.values, forward), places) if narrow else None
    anywhere = _tiles(ctx, forward, tiles) if tiles else _ragged(ctx, forward)
    width, plan = unit_bytes(ctx.s, itemsize), ctx.plan()
    if plan is None:
        return anywhere
    units = _units(ctx, forward, width, int(plan["unroll"]))

    def launch(t: Tensors) -> None:
        (anywhere if (t.x.data_ptr() | t.y.data_ptr()) % width else units)(t)

    return launch


def tuning(forward: bool) -> Tuning:
    """What `tuned` declares: how many units a thread moves, where pieces are whole units."""

    def rule(case: Case) -> Plan | None:
        s = _sizes(case)
        width = unit_bytes(s, ITEMSIZE[case.dtype])
        return None if is_copy(s) or not width else {"unroll": _BYTES_OF_THREAD // width}

    def kernels(case: Case, plan: Plan) -> Iterator[Built]:
        width = unit_bytes(_sizes(case), ITEMSIZE[case.dtype])
        macros = _unit_macros(case, forward, width, int(plan["unroll"]))
        yield Built(f"{case.op}.cu", f"{case.op}_units", macros, BLOCK)

    return Tuning(lambda _: {"unroll": _UNROLLS}, rule, kernels=kernels)


def _sizes(case: Case) -> SimpleNamespace:
    return SimpleNamespace(**case.values)


def _unit_macros(case: Case, forward: bool, width: int, unroll: int) -> dict[str, str | int]:
    bits = WindowMap.of(_sizes(case), width // ITEMSIZE[case.dtype]).bits
    return _macros(case, forward, bits) | {"WIDTH": width, "UNROLL": unroll, "BLOCK": BLOCK}


def _units(ctx: Context, forward: bool, width: int, unroll: int) -> Launch:
    """The kernel `<op>_units`. width: bytes of a unit. unroll: units of a thread."""
    sizes = WindowMap.of(ctx.s, width // ITEMSIZE[ctx.case.dtype])
    macros = _unit_macros(ctx.case, forward, width, unroll)
    kernel = ctx.kernel(f"{ctx.case.op}.cu", f"{ctx.case.op}_units", macros)
    grid, count, arguments = blocks(sizes.units, BLOCK * unroll), sizes.index(sizes.units), sizes.arguments
    return lambda t: kernel(grid, BLOCK, t.x, t.y, count, *arguments)


def _several(s: Any, itemsize: int) -> int:
    """1 if a pack may have parts of more than two pieces, else 0.

    A pack with parts of three pieces has all of the second, and at least an element of the first and the third.
    """
    return int(shortest_piece(s) * s.C < PACK_BYTES // itemsize - 1)


def _tiles(ctx: Context, forward: bool, tiles: WindowTiles) -> Launch:
    """The kernel `<op>_tiles`, for any sizes at any addresses."""
    s, itemsize, sizes = ctx.s, ITEMSIZE[ctx.case.dtype], WindowMap.of(ctx.s, 1)
    macros = _macros(ctx.case, forward, sizes.bits) | {
        "RUN": sizes.run,
        "SIDE": sizes.side,
        "ACROSS": sizes.across,
        "HEIGHT": sizes.height,
        "ROWS_SHIFTED": sizes.rows_shifted,
        "ELEMENTS_SHIFTED": sizes.units_shifted,
        "COLUMNS": tiles.columns,
        "BANDS": tiles.bands,
        "THREADS": _TILE_THREADS,
        "SEVERAL": _several(s, itemsize),
    }
    kernel = ctx.kernel(f"{ctx.case.op}.cu", f"{ctx.case.op}_tiles", macros)
    grid, n, bands = tiles.count(s), sizes.index(sizes.units), sizes.index(s.B * s.H // s.window)
    return lambda t: kernel(grid, _TILE_THREADS, t.x, t.y, n, bands)


def _ragged(ctx: Context, forward: bool) -> Launch:
    """The kernel `<op>_ragged`, for any sizes at any addresses."""
    itemsize, sizes = ITEMSIZE[ctx.case.dtype], WindowMap.of(ctx.s, 1)
    pack = PACK_BYTES // itemsize
    macros = _macros(ctx.case, forward, sizes.bits) | {"SEVERAL": _several(ctx.s, itemsize), "BLOCK": BLOCK}
    kernel = ctx.kernel(f"{ctx.case.op}.cu", f"{ctx.case.op}_ragged", macros)
    n, index, arguments = sizes.units, sizes.index, sizes.arguments

    def launch(t: Tensors) -> None:
        head = min(n, -t.y.data_ptr() % PACK_BYTES // itemsize)
        packs = (n - head) // pack
        singles = n - packs * pack
        kernel(blocks(packs + singles), BLOCK, t.x, t.y, index(n), index(head), index(packs), *arguments)

    return launch
