"""The backward of y = relu(batch_norm(x) * gamma + beta + z) in training: row O12. Twin of bn_add_relu_grad.cu.

dz is what z's and the normalised x's gradients have in common: dy where y > 0. Of y our variants but `from_y` read only
that bit, as the forward writes it. mean and invstd are those of the batch, which the forward keeps.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.model import Work
from harness.ops import ITEMSIZE, Context, Launch, Op, Symbols, Tensors
from harness.ops._baselines import compiled
from harness.ops._bits import pack
from harness.ops._elementwise import BLOCK, BOTH, PACK_BYTES, aligned, blocks
from harness.ops.batch_norm._batch_norm import (
    DEFAULTS,
    EPSILON,
    LIMIT_32,
    MASK,
    MOMENTUM,
    SYMBOLS,
    Layout,
    as_user_has_it,
    divisor,
    elements,
    floats,
    images,
    kernel,
    of_channels,
)

if TYPE_CHECKING:
    import torch

# As in bn_add_relu_grad.cu.
_TOTAL_BLOCK = 512
_COEFFICIENTS = 4  # floats that a channel has room for
_SUMS = 2

_WAVES = 8  # of blocks of a plain sum: enough for the last one not to show
_FEWEST = 4  # elements that a thread of it adds
_NARROW = 16  # packs of a tile, at most, where rows are short and a period has twice as many
_BLOCKS_OF_TUNED = 4  # a multiprocessor

_SUM_ERROR = 2.0**-16
"""Allowed of a sum, as a share of the root of the sum of its terms' squares.

Chains of k additions in float32 err by about 0.2 * sqrt(k) * 2**-24 of it. Signs are random, so the sum itself is about
this root, and a part left out would be missed by the root of its share: 5e-3 for 4096 elements of 2**27.
"""
_TERM_ERROR = 2.0**-18
"""Allowed of dx, as a share of the terms that it is the sum of: some roundings of each in float32."""


def make(ctx: Context) -> dict[str, Any]:
    """An x whose channels have means of their own, its true statistics, and y as a ReLU leaves it: half of it zeros."""
    import torch

    def normal(*shape: int, dtype: torch.dtype = ctx.dtype) -> torch.Tensor:
        return torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=dtype)

    shape, channels = images("").shapes(ctx.case.symbols)[0], ctx.s.C
    dy, y, x = normal(*shape), normal(*shape).relu_(), normal(*shape).add_(normal(1, channels, 1))
    variance, mean = torch.var_mean(x.double(), (0, 2), correction=0)
    gamma = torch.rand(channels, generator=ctx.generator, device=ctx.device) + 0.5
    invstd = (variance + EPSILON).rsqrt()
    return {"dy": dy, "x": x, "y": y, "gamma": gamma, "mean": mean.float(), "invstd": invstd.float()}


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """In float64."""
    dz, normalized = _terms(t)
    dbeta, dgamma = dz.sum((0, 2)), (dz * normalized).sum((0, 2))
    centred = dz - _spread(dbeta) / _samples(dz) - normalized * _spread(dgamma) / _samples(dz)
    return {"dx": _spread(t.gamma * t.invstd.double()) * centred, "dz": dz, "dgamma": dgamma, "dbeta": dbeta}


def _terms(t: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64: dz and the normalised x."""
    return t.dy.where(t.y > 0, 0).double(), (t.x.double() - _spread(t.mean)) * _spread(t.invstd)


def _spread(of_channels: torch.Tensor) -> torch.Tensor:
    """(C) as (1, C, 1), in float64."""
    return of_channels.double().view(1, -1, 1)


def _samples(tensor: torch.Tensor) -> int:
    """Elements of a channel."""
    return int(tensor.shape[0] * tensor.shape[2])


_TORCH = ("eager", "compile")


def check(ctx: Context, t: Tensors) -> str | None:
    """What is wrong with the outputs.

    A selection such as dz must be exact, and sums as near as their length allows. dx, a sum of three terms that may be
    larger than itself, may be a unit in its last place off, and what float32 makes of the terms, and of the two sums in
    them.
    """
    import torch

    before, wanted = t.before, reference(ctx, t.before)
    dz, normalized = _terms(before)
    samples, kind = _samples(dz), torch.finfo(ctx.dtype)
    # torch rounds terms to the dtype for some shapes, and on the CPU sums, too.
    rounding = 2 * kind.eps if ctx.case.variant in _TORCH else 0.0
    errors = {
        "dbeta": _SUM_ERROR * torch.linalg.vector_norm(dz, dim=(0, 2)),
        "dgamma": _SUM_ERROR * torch.linalg.vector_norm(dz * normalized, dim=(0, 2)),
    }
    of_x = _spread(before.invstd) * (before.x.double().abs() + _spread(before.mean).abs())
    terms = dz.abs() + (_spread(wanted["dbeta"]).abs() + of_x * _spread(wanted["dgamma"]).abs()) / samples
    of_sums = (_spread(errors["dbeta"]) + normalized.abs() * _spread(errors["dgamma"])) / samples
    of_terms = _spread(before.gamma * before.invstd).abs() * ((_TERM_ERROR + rounding) * terms + of_sums)
    allowed = {
        "dx": of_terms + kind.eps * wanted["dx"].abs() + kind.smallest_normal * kind.eps,
        "dz": torch.zeros((), device=dz.device),
        **{name: error + (2.0**-23 + rounding) * wanted[name].abs() for name, error in errors.items()},
    }
    found = (_complaint(name, getattr(t, name), wanted[name], allowed[name]) for name in wanted)
    return next((complaint for complaint in found if complaint), None)


def _complaint(name: str, got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor) -> str | None:
    """What is wrong with `got`, of which each element may be `allowed` off."""
    wrong = ~((got.double() - want).abs() <= allowed)
    if not bool(wrong.any()):
        return None
    first = int(wrong.view(-1).nonzero()[0])
    limit = allowed.expand_as(want).reshape(-1)[first]
    values = f"element {first} is {got.reshape(-1)[first].item()}, the reference {want.view(-1)[first].item()}"
    return f"{name}: {int(wrong.sum())} of {wrong.numel()} elements are wrong; {values} within {limit:.3g}"


def _essential(symbols: Symbols, size: int) -> Work:
    """Both sums of a channel come before its first dx, so dy, x and the mask are read twice."""
    return _twice(symbols, size, MASK.bytes(symbols, ""))


def _with_y(symbols: Symbols, size: int) -> Work:
    """As much, but of y in place of the mask. Eager makes dz once and reads it twice, which comes to the same."""
    return _twice(symbols, size, elements(symbols) * size)


def _twice(symbols: Symbols, size: int, signs: int) -> Work:
    """signs: bytes that say where y > 0. Partial sums are left out, for the reason that bn_add_relu.py gives."""
    tensor, vector = elements(symbols) * size, symbols["C"] * ITEMSIZE["float32"]
    return Work(
        read=2 * (2 * tensor + signs) + 3 * vector,
        written=2 * tensor + 2 * vector,
        flops=8 * elements(symbols),
    )


_DY, _X, _Y = images("dy"), images("x"), images("y")
_VECTORS = (of_channels("gamma"), of_channels("mean"), of_channels("invstd"))
OP = Op(
    "bn_add_relu_grad",
    "dz = dy where y > 0 else 0; dx, dgamma, dbeta: batch norm's backward of dz",
    symbols=SYMBOLS,
    defaults=DEFAULTS,
    inputs=(_DY, _X, _Y, *_VECTORS),
    outputs=(images("dx"), images("dz"), of_channels("dgamma"), of_channels("dbeta")),
    make=make,
    reference=reference,
    check=check,
    work=_essential,
)


def _saved(ctx: Context, t: Tensors) -> dict[str, Any]:
    """What autograd keeps of torch's batch norm of x: its statistics, and which implementation has made them.

    Where torch takes cuDNN, the backward wants the statistics and the reserve of the same forward.
    """
    import torch

    x, beta = as_user_has_it(ctx.case.symbols, t.x), torch.zeros_like(t.gamma)
    forward = torch.ops.aten._batch_norm_impl_index
    cudnn = torch.backends.cudnn.enabled
    _, mean, invstd, reserve, implementation = forward(x, t.gamma, beta, None, None, True, MOMENTUM, EPSILON, cudnn)
    return {"saved": (mean, invstd), "reserve": reserve, "implementation": implementation}


@OP.variant(
    "eager",
    "what autograd runs: threshold_backward, then cuDNN's backward of batch norm or torch's own",
    rows=("O12",),
    devices=BOTH,
    traffic=_with_y,
    returns=True,
    encode=_saved,
)
def eager(ctx: Context) -> Launch:
    """Two calls, and dz between them."""
    import torch

    symbols, backward = ctx.case.symbols, torch.ops.aten._batch_norm_impl_index_backward

    def launch(t: Tensors) -> tuple[torch.Tensor, ...]:
        dy, x, y = (as_user_has_it(symbols, tensor) for tensor in (t.dy, t.x, t.y))
        dz = torch.ops.aten.threshold_backward(dy, y, 0)
        settings = None, None, *t.saved, True, EPSILON, [True] * 3, t.reserve
        dx, dgamma, dbeta = backward(t.implementation, x, dz, t.gamma, *settings)
        return _declared(symbols, dx), _declared(symbols, dz), dgamma, dbeta

    return launch


@OP.variant("compile", "torch.compile of torch's own", devices=BOTH, traffic=_with_y, returns=True)
def compile_(ctx: Context) -> Launch:
    """Inductor fuses the threshold into both passes, each of which reads dy, y and x."""
    symbols, function = ctx.case.symbols, compiled(_backward)

    def launch(t: Tensors) -> tuple[torch.Tensor, ...]:
        tensors = tuple(as_user_has_it(symbols, tensor) for tensor in (t.dy, t.x, t.y))
        dx, dz, dgamma, dbeta = function(tensors, (t.gamma, t.mean, t.invstd))
        return _declared(symbols, dx), _declared(symbols, dz), dgamma, dbeta

    return launch


def _backward(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    vectors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """(dx, dz, dgamma, dbeta) from (dy, x, y), which are (N, C, H, W), and (gamma, mean, invstd)."""
    import torch

    (dy, x, y), (gamma, mean, invstd) = tensors, vectors
    dz = torch.ops.aten.threshold_backward(dy, y, 0)
    batch_norm = torch.ops.aten.native_batch_norm_backward
    dx, dgamma, dbeta = batch_norm(dz, x, gamma, None, None, mean, invstd, True, EPSILON, [True] * 3)
    return dx, dz, dgamma, dbeta


def _declared(symbols: Symbols, tensor: torch.Tensor) -> torch.Tensor:
    """A user's (N, C, H, W) as it is declared: a view, where the memory format is the one that the layout asks for."""
    in_order = tensor.permute(0, 2, 3, 1) if symbols["L"] else tensor
    return in_order.reshape(images("").shapes(symbols)[0])


def _kernel(ctx: Context, entry: str) -> cuda.Kernel:
    return kernel(ctx, "bn_add_relu_grad.cu", f"bn_add_relu_grad_{entry}")


def _total(ctx: Context, layout: Layout, count: int) -> Callable[..., None]:
    """The step between: total(partial, t, coefficients, packed). count: partial sums of a channel."""
    add_slots = _kernel(ctx, "total")
    sizes = ctypes.c_int64(layout.samples), ctypes.c_uint32(layout.channels), ctypes.c_uint32(count)

    def total(partial: torch.Tensor, t: Tensors, coefficients: torch.Tensor, packed: bool = False) -> None:
        vectors = t.gamma, t.mean, t.invstd, t.dgamma, t.dbeta
        add_slots(layout.channels, _TOTAL_BLOCK, partial, *vectors, coefficients, *sizes, ctypes.c_uint32(packed))

    return total


def _plain(ctx: Context, signs: str, entry: str) -> Launch:
    """One element a thread; `signs` names the tensor that says where y > 0, `entry` ends the kernels' names."""
    layout = Layout.of(ctx)
    across = 32 if layout.inner == 1 else 1
    groups = blocks(layout.channels, across)
    wanted = _WAVES * cuda.resident_threads() // BLOCK // max(1, groups)
    slots = max(1, min(wanted, blocks(layout.samples, BLOCK // across * _FEWEST)))
    sums, apply = _kernel(ctx, f"sums_{entry}"), _kernel(ctx, f"apply_{entry}")
    total = _total(ctx, layout, slots)
    partial = floats(ctx, _SUMS * layout.channels * slots)
    coefficients = floats(ctx, _COEFFICIENTS * layout.channels)
    samples, inner = layout.counter(layout.samples), layout.divisors(layout.inner)
    n, sizes = layout.counter(layout.elements), layout.divisors(layout.channels, layout.inner)
    slotted = (*(ctypes.c_uint32(value) for value in (layout.channels, across, slots)), *divisor(groups))
    grid = blocks(layout.elements)

    def launch(t: Tensors) -> None:
        source = getattr(t, signs)
        sums(groups * slots, BLOCK, t.dy, t.x, source, t.mean, partial, samples, *slotted, *inner)
        total(partial, t, coefficients)
        apply(grid, BLOCK, t.dy, t.x, source, coefficients, t.dx, t.dz, n, *sizes)

    return launch


@OP.variant("from_y", "two passes, one element a thread, each reads dy, x and y", traffic=_with_y)
def from_y(ctx: Context) -> Launch:
    """What our bits are compared with."""
    return _plain(ctx, "y", "y")


def _encode(_: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": pack((t.y > 0).view(-1))}


_FROM_BITS: dict[str, Any] = {"inputs": (_DY, _X, MASK, *_VECTORS), "encode": _encode, "rows": ("O12",)}


@OP.variant("from_bitset", "the same with the forward's bits in place of y", **_FROM_BITS)
def from_bitset(ctx: Context) -> Launch:
    """The text's idea, plainly."""
    return _plain(ctx, "mask", "bits")


@OP.variant("tuned", "16-byte packs in both layouts at any sizes, the second pass from the end of memory", **_FROM_BITS)
def tuned(ctx: Context) -> Launch:
    """See bn_add_relu_grad.cu; where not even one period has 31-bit places, `from_bitset`."""
    layout, size = Layout.of(ctx), PACK_BYTES // ITEMSIZE[ctx.case.dtype]
    cut = Cut.of(layout, size)
    if cut is None:
        fallback: Launch = from_bitset(ctx)
        return fallback
    sums, total = _tuned_sums(ctx, cut), _total(ctx, layout, cut.count)
    partial = floats(ctx, _SUMS * layout.channels * cut.count)
    coefficients = floats(ctx, _COEFFICIENTS * layout.channels)
    rows = _kernel(ctx, "apply_short" if cut.short else "apply_rows")
    in_packs = layout.inner == 1 and layout.channels % size == 0
    columns = _kernel(ctx, "apply_columns") if in_packs else None
    packs = -(-layout.elements // size)
    grid = blocks(packs)
    n, sizes = layout.counter(layout.elements), layout.divisors(layout.inner, layout.channels)
    across = layout.counter(packs), *layout.divisors(layout.channels // size)

    def launch(t: Tensors) -> None:
        sums(t, partial)
        vector = aligned(t.dy, t.x, t.dx, t.dz)
        total(partial, t, coefficients, packed=in_packs and vector)
        tensors = t.dy, t.x, t.mask, coefficients, t.dx, t.dz
        if columns and vector:
            columns(grid, BLOCK, *tensors, *across)
        else:
            rows(grid, BLOCK, *tensors, n, ctypes.c_uint32(vector), *sizes)

    return launch


def _tuned_sums(ctx: Context, cut: Cut) -> Callable[[Tensors, torch.Tensor], None]:
    """The first pass: sums(t, partial)."""
    layout = cut.layout
    sum_up = _kernel(ctx, "sums_columns" if cut.short else "sums_rows")
    n, lanes = ctypes.c_int64(layout.elements), ctypes.c_uint32(cut.lanes)
    sizes = (
        *(ctypes.c_uint32(value) for value in (cut.period, cut.across, cut.along)),
        *divisor(cut.places),
        *(ctypes.c_uint32(value) for value in (cut.rounds, cut.all_rounds)),
        *divisor(layout.inner),
        *divisor(layout.channels),
        *(ctypes.c_uint32(value) for value in ((cut.count,) if cut.short else (cut.slots, cut.count))),
    )
    grid = cut.segments * cut.places

    def sums(t: Tensors, partial: torch.Tensor) -> None:
        vector = ctypes.c_uint32(aligned(t.dy, t.x))
        sum_up(grid, BLOCK, t.dy, t.x, t.mask, t.mean, partial, n, vector, lanes, *sizes)

    return sums


@dataclass(frozen=True, slots=True)
class Cut:
    """The tensor as tuned's first pass cuts it: periods of tiles, a block for one place of `rounds * along` periods.

    period: elements, whole packs and whole outer places. places: tiles of a period, of which the last one may be
    narrower. across: packs of a tile. along: threads that share a pack's place. pack: elements.
    """

    layout: Layout
    pack: int
    period: int
    places: int
    across: int
    along: int
    rounds: int

    @classmethod
    def of(cls, layout: Layout, pack: int) -> Cut | None:
        """None where even the shortest period is too long."""
        inner, unit = max(1, layout.inner), max(1, layout.channels * layout.inner)
        unit = math.lcm(unit, pack) // pack
        # Packs that a tile has a multiple of: rows shorter than a pack must not lie in two tiles.
        short = inner < pack
        step = math.lcm(inner, pack) // pack if short else 1
        narrow = short and unit >= 2 * _NARROW
        most = (_NARROW if narrow else BLOCK) // step * step
        packs = unit if unit > most else most // unit * unit
        places = blocks(packs, most)
        across = blocks(blocks(packs, places), step) * step
        along = BLOCK // across if narrow else 1
        if packs * pack >= LIMIT_32:
            return None
        # Twice as many rounds as waves: more rounds leave fewer slots, more waves a shorter last one.
        tiles = blocks(layout.elements, packs * pack * along) * places
        waves = tiles // (cuda.multiprocessors() * _BLOCKS_OF_TUNED)  # with a round each
        return cls(layout, pack, packs * pack, places, across, along, max(1, math.isqrt(2 * waves)))

    @property
    def all_rounds(self) -> int:
        return blocks(self.layout.elements, self.period)

    @property
    def segments(self) -> int:
        """Groups of periods that have blocks of their own."""
        return blocks(self.all_rounds, self.rounds * self.along)

    @property
    def tile(self) -> int:
        """Elements."""
        return self.across * self.pack

    @property
    def short(self) -> bool:
        """Whether rows are shorter than a pack."""
        return self.layout.inner < self.pack

    @property
    def slots(self) -> int:
        """The most tiles that a row lies in; others lie in one less."""
        inner, tile = self.layout.inner, self.tile
        if self.places == 1 or inner % tile == 0 or tile % inner == 0:
            return -(-inner // tile)
        return (inner - 2) // tile + 2

    @property
    def count(self) -> int:
        """Partial sums of a channel."""
        if self.short and self.places == 1:
            return self.segments
        outers = self.period // max(1, self.layout.channels * self.layout.inner)
        return self.segments * outers * self.slots

    @property
    def lanes(self) -> int:
        """Threads that add a channel of a tile together, or a row: a power of two up to a warp."""
        together = -(-self.tile // max(1, self.layout.inner)) + 1
        if self.short and self.places == 1:
            together = self.layout.channels
        return 1 << (min(32, max(1, BLOCK // max(1, together))).bit_length() - 1)
