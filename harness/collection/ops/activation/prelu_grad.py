"""The backward of PReLU: dx, and d alpha, a sum over each channel. Twin of prelu_grad.cu.

A shape of C = 1 is the single-parameter PReLU: one sum over the whole tensor.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.activation import _prelu_grad_whole
from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, PACK_BYTES, aligned, blocks, power_of_2_from
from harness.model import Traffic
from harness.ops import (
    ITEMSIZE,
    Compile,
    Context,
    Expected,
    Extremes,
    Launch,
    Op,
    Symbols,
    Tensor,
    Tensors,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch

# As in prelu_grad.cu.
_PIECE = 16 * BLOCK  # elements of a row that a block adds
_TOTAL_BLOCK = 1024
_SECTOR = 8  # floats

# What prelu_grad_tuned cuts the tensor by.
_PLACES_A_BLOCK = 2  # with two rounds under way in each, a block for every second place keeps the memory busy
_ALL_REGISTERS, _REGISTERS = 65_536, {4: 32, 2: 64}  # of a multiprocessor; of a thread, by the bytes of an element
_MOST_ROUNDS = 8  # with more rounds hardly any time is saved
_MOST_PERIOD = 2**30  # elements that are aimed at, so that places in a period have 31 bits
_GRID = 2**31 - 1

_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The most that a rounding changes a number, relative to it."""
_SMALLEST_HALF = 2.0**-24
_ROUNDED = ("eager", "naive")
"""Variants that round the products to the dtype before they add them."""


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The reference computes in float64."""
    import torch

    dy, alpha = t.dy.double(), t.alpha.double().view(1, -1, 1, 1)
    return {"dx": torch.where(t.x > 0, dy, alpha * dy), "dalpha": products(t).sum((0, 2, 3))}


def products(t: Tensors) -> torch.Tensor:
    """The products whose sum is d alpha, in float64."""
    return (t.x.double() * t.dy.double()).masked_fill_(t.x > 0, 0)


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """Each dx is a single product, so it must be the reference rounded; d alpha must be as near as its sum allows."""
    import torch

    wanted = reference(ctx, t.before)
    yield Expected("dx", t.dx, wanted["dx"])
    norm = torch.linalg.vector_norm(products(t.before), dim=(0, 2, 3))
    yield expected_sum(ctx, t.dalpha, wanted["dalpha"], norm)


def expected_sum(ctx: Context, got: torch.Tensor, want: torch.Tensor, norm: torch.Tensor) -> Expected:
    """How near d alpha (C) must be to `want`. norm (C): the root of the sum of the products' squares.

    The products' signs are random, so their sum is about the norm. A part of a row that is left out shifts the sum by
    about the root of its share of the norm: 5e-3 of the norm for 4096 elements of 2**27. Allowed are:
    - half a unit in the last place of d alpha itself;
    - 2**-16 of the norm for sums in float32: chains of k additions err by about 0.2 * sqrt(k) * 2**-24 of it;
    - where products are rounded before, 2.5 units of the norm: each product is off by 0.4 units of itself, so the
      sum is off by as much of the norm, and this is six times that;
    - the smallest number of a half, and where products are rounded to halves, twice that for the root of their number:
      each product that is smaller than a half's normal numbers is off by 0.29 of that, and this is six times the sum's.
    """
    unit, smallest = _UNIT[ctx.case.dtype], _SMALLEST_HALF
    share = 2.0**-16
    if ctx.case.variant in _ROUNDED:
        share += 2.5 * unit
        if ctx.case.dtype == "float16":
            smallest += 2 * _SMALLEST_HALF * math.sqrt(ctx.s.N * ctx.s.H * ctx.s.W)
    return Expected("dalpha", got, want, unit * want.abs() + share * norm + smallest)


def _unfused(symbols: Symbols, size: int) -> Traffic:
    """The products are written, and read again to be added."""
    elements, channels = math.prod(symbols[name] for name in "NCHW"), symbols["C"]
    return Traffic(read=(3 * elements + channels) * size, written=(2 * elements + channels) * size)


OP = Op(
    "prelu_grad",
    "dx = dy if x > 0 else alpha[c] * dy; dalpha[c] = sum of x * dy where x isn't above 0",
    symbols={"N": "batch", "C": "channels, one alpha each", "H": "height", "W": "width"},
    inputs=(Tensor("dy", ("N", "C", "H", "W")), Tensor("x", ("N", "C", "H", "W")), Tensor("alpha", ("C",))),
    outputs=(Tensor("dx", ("N", "C", "H", "W")), Tensor("dalpha", ("C",))),
    reference=reference,
    check=check,
    extremes=Extremes(
        exempt=dict.fromkeys(("equal", "lowest"), "the error allowed of a sum takes its terms to have random signs"),
        largest={"float32": 2.0**60, "bfloat16": 2.0**60, "float16": 2.0**12},
        why="sums of products are in float32, and `naive` and torch round products to the dtype",
        apart={"dy": 1, "x": 1},
    ),
)


def _backward(dy: torch.Tensor, x: torch.Tensor, alpha: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Autograd runs this for torch.nn.functional.prelu: the products, and their sum over all but the channels."""
    import torch

    dx, products = torch.ops.aten._prelu_kernel_backward(dy, x, alpha.view(1, -1, 1, 1))
    return dx, products.sum((0, 2, 3))


@OP.variant(
    "eager",
    "what autograd calls: the products, and a sum",
    role="baseline",
    devices=ANY,
    traffic=_unfused,
    returns=True,
)
def eager(_: Context) -> Launch:
    """It takes two kernels, and a tensor of products between them."""
    return lambda t: _backward(t.dy, t.x, t.alpha)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes no tensor of products; whether it reads x and dy once or twice depends on the shape."""
    function = compiled(_backward)
    return lambda t: function(t.dy, t.x, t.alpha)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of `inner` elements; a single one if there is one channel."""

    batch: int
    channels: int
    inner: int

    @classmethod
    def of(cls, ctx: Context) -> _Rows:
        s = ctx.s
        return cls(s.N, s.C, s.H * s.W) if s.C > 1 else cls(1, s.C, s.N * s.H * s.W)

    @property
    def elements(self) -> int:
        return self.batch * self.channels * self.inner


def _kernel(ctx: Context, entry: str) -> cuda.Kernel:
    return ctx.kernel("prelu_grad.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype]})


def _partial(ctx: Context, rows: _Rows, slots: int) -> torch.Tensor:
    """Memory for the partial sums, (batch, channels, slots) floats. All sets of buffers share it."""
    import torch

    return torch.empty(rows.batch * rows.channels * slots, dtype=torch.float32, device=ctx.device)


def _total(ctx: Context, rows: _Rows, slots: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """The launch of the last step, `total(partial, dalpha)`, which adds the partial sums."""
    kernel = _kernel(ctx, "prelu_grad_total")
    along = min(power_of_2_from(slots), _TOTAL_BLOCK)
    # As many channels a block as leave no thread without a sample, or as a sector holds.
    busy = _TOTAL_BLOCK // min(_TOTAL_BLOCK, along * power_of_2_from(rows.batch))
    across = max(1, _SECTOR // along, busy)
    sizes = (ctypes.c_int64(rows.batch), ctypes.c_int64(rows.channels), ctypes.c_int64(slots))
    lanes = ctypes.c_uint32(across), ctypes.c_uint32(along)
    grid = blocks(rows.channels, across)
    return lambda partial, dalpha: kernel(grid, _TOTAL_BLOCK, partial, dalpha, *sizes, *lanes)


@OP.variant("naive", "one element a thread, products in a tensor, which is then summed", traffic=_unfused)
def naive(ctx: Context) -> Launch:
    """The steps are the same as eager's."""
    import torch

    rows = _Rows.of(ctx)
    slots = -(-rows.inner // _PIECE)
    pieces = rows.batch * rows.channels * slots
    backward, sums, total = _kernel(ctx, "prelu_grad_naive"), _kernel(ctx, "prelu_grad_sum"), _total(ctx, rows, slots)
    partial = _partial(ctx, rows, slots)
    products = torch.empty(rows.elements, dtype=ctx.dtype, device=ctx.device)
    n, inner, channels = ctypes.c_int64(rows.elements), ctypes.c_int64(rows.inner), ctypes.c_int64(rows.channels)
    of_pieces = ctypes.c_int64(pieces), ctypes.c_int64(slots), inner

    def launch(t: Tensors) -> None:
        backward(blocks(rows.elements), BLOCK, t.x, t.dy, t.alpha, t.dx, products, n, inner, channels)
        sums(min(pieces, _GRID), BLOCK, products, partial, *of_pieces)
        total(partial, t.dalpha)

    return launch


@OP.variant("fused", "one pass, one element a thread and step; a partial sum for each 4096 elements of a row")
def fused(ctx: Context) -> Launch:
    """There is no tensor of products."""
    rows = _Rows.of(ctx)
    slots = -(-rows.inner // _PIECE)
    pieces = rows.batch * rows.channels * slots
    kernel, total, partial = _kernel(ctx, "prelu_grad_fused"), _total(ctx, rows, slots), _partial(ctx, rows, slots)
    scalars = [ctypes.c_int64(value) for value in (pieces, slots, rows.inner, rows.channels)]

    def launch(t: Tensors) -> None:
        kernel(min(pieces, _GRID), BLOCK, t.x, t.dy, t.alpha, t.dx, partial, *scalars)
        total(partial, t.dalpha)

    return launch


class _SlottedRows(ctypes.Structure):
    """Rows of a period, and of the slots. Twin of Rows in prelu_grad.cu."""

    _fields_ = (("inner", cuda.Divisor), ("channels", cuda.Divisor), ("slots", ctypes.c_uint32))


@OP.variant(
    "tuned",
    "packs at any inner size; several samples of one place are added in registers; small layers in one kernel",
    tuning=_prelu_grad_whole.TUNING,
)
def tuned(ctx: Context) -> Launch:
    """One kernel for small layers (prelu_grad_whole.cu); else step 3 of prelu_grad.cu, and the last step.

    `fused` where the elements of a single sample need more than 31 bits to be counted.
    """
    plan, two = ctx.plan(), _two_kernels(ctx)
    cluster = int(plan["whole"]) if plan else 0
    return _prelu_grad_whole.launch_of(ctx, cluster, two) if cluster else two


def _two_kernels(ctx: Context) -> Launch:
    """Dx with partial sums, and what adds these; for any size and address."""
    pack = PACK_BYTES // ITEMSIZE[ctx.case.dtype]
    cut = Cut.of(_Rows.of(ctx), pack)
    if cut is None:
        fallback: Launch = fused(ctx)
        return fallback
    kernel, total = _kernel(ctx, "prelu_grad_tuned"), _total(ctx, cut.rows, cut.slots)
    partial = _partial(ctx, cut.rows, cut.slots)
    n, inner, channels = ctypes.c_int64(cut.elements), max(1, cut.rows.inner), max(1, cut.rows.channels)
    period = ctypes.c_uint32(cut.period), ctypes.c_uint32(cut.rounds)
    short, lanes = ctypes.c_uint32(inner < pack), ctypes.c_uint32(cut.lanes)
    rows = _SlottedRows(cuda.Divisor.of(inner), cuda.Divisor.of(channels), cut.slots)

    def launch(t: Tensors) -> None:
        packs = ctypes.c_uint32(aligned(t.x, t.dy, t.dx))
        sizes = n, *period, packs, short, lanes, rows
        kernel(blocks(cut.period, cut.tile), BLOCK, t.x, t.dy, t.alpha, t.dx, partial, *sizes)
        total(partial, t.dalpha)

    return launch


@dataclass(frozen=True, slots=True)
class Cut:
    """The tensor as prelu_grad_tuned cuts it: `rounds` periods of `period` elements, the last one perhaps not full.

    elements: elements of the tensor. rows: the rows of one period. pack: elements of a pack.
    """

    elements: int
    rows: _Rows
    rounds: int
    pack: int

    @classmethod
    def of(cls, rows: _Rows, pack: int) -> Cut | None:
        """The cut of a tensor with these rows; None where even the shortest period is too long."""
        tile, places = BLOCK * pack, cuda.resident_threads() // BLOCK
        # With a few blocks more than there are registers for, these few would run alone in the end.
        room = min(places, cuda.multiprocessors() * _ALL_REGISTERS // (BLOCK * _REGISTERS[PACK_BYTES // pack]))
        # A period has a whole number of units (elements of the only channel, or samples), which make whole packs.
        length, unit = (rows.inner, 1) if rows.channels == 1 else (rows.batch, rows.channels * rows.inner)
        step = pack // math.gcd(pack, unit)

        def units(rounds: int) -> int:
            """Units of a period, of which there are so many. A single period needs no successor to be aligned."""
            return min(length, blocks(-(-length // rounds), step) * step)

        wanted = min(_MOST_ROUNDS, _PLACES_A_BLOCK * (rows.elements // tile) // places)
        wanted = max(1, wanted, blocks(rows.elements, _MOST_PERIOD))
        while wanted < _MOST_ROUNDS and units(wanted) * unit > tile * room:
            wanted += 1
        count = units(wanted)
        if count * unit >= 2**31:
            return None
        period = _Rows(1, 1, count) if rows.channels == 1 else _Rows(count, rows.channels, rows.inner)
        return cls(rows.elements, period, blocks(length, max(1, count)), pack)

    @property
    def period(self) -> int:
        return self.rows.elements

    @property
    def tile(self) -> int:
        """The elements that a block takes in each round."""
        return BLOCK * self.pack

    @property
    def slots(self) -> int:
        """The most tiles that a row lies in; other rows lie in one less."""
        inner, tile = self.rows.inner, self.tile
        if self.rows.batch * self.rows.channels == 1 or inner % tile == 0 or tile % inner == 0:
            return -(-inner // tile)
        return (inner - 2) // tile + 2

    @property
    def lanes(self) -> int:
        """The threads that add a row of a tile together: a power of two up to a warp, one where rows are short."""
        if self.rows.inner < self.pack:
            return 1
        most_rows = (self.tile - 2) // self.rows.inner + 2
        return 1 << (min(32, max(1, BLOCK // most_rows)).bit_length() - 1)
