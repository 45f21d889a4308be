"""What layer_norm, rms_norm and their gradients share: declarations, epsilon, references, and the forward's launches.

A matrix is (M, N), contiguous; each row is normalised by itself, over its N columns. Statistics are float32, one a row.
xhat is the row normalised, before gamma and beta.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.collection.ops.chip import Chip
from harness.collection.ops.elementwise import BLOCK, CUDA_TYPE, aligned, blocks, power_of_2_from
from harness.collection.ops.rows import _rows
from harness.collection.ops.rows._norm_plan import InTurn
from harness.collection.ops.rows._row_tuning import row_plan
from harness.collection.ops.rows._rows import Arguments
from harness.model import Case, Traffic
from harness.ops import ITEMSIZE, Context, Expected, Extremes, Launch, Symbols, Tensor, Tensors

if TYPE_CHECKING:
    import torch

EPS = 1e-5
"""Added to the variance, or to the mean of the squares, before its root: torch's default for LayerNorm."""
SYMBOLS = {"M": "rows", "N": "columns, over which a row is normalised"}

X = Tensor("x", ("M", "N"))
GAMMA = Tensor("gamma", ("N",))
BETA = Tensor("beta", ("N",))
Y = Tensor("y", ("M", "N"))
MEAN = Tensor("mean", ("M",), "float32")
RSTD = Tensor("rstd", ("M",), "float32")

EXTREMES = Extremes(exempt={"gamma": "it makes the errors of xhat larger, those of denormal rows without a limit"})

_KEPT = 16  # accesses of a row that a thread of `registers` and `half2` keeps at most
_MOST_KEPT = _KEPT * 1024  # the same of the largest block
_MOST_BLOCKS = 2**31 - 1  # of a grid
_QUAD = 4  # rows of one element that a thread has
_ROUNDED = 2**-19  # what a mean of N terms, added in float32, may lose: as a share of the largest term
_CHECKED = 2**24  # elements checked at a time


# ---- References, in float64.


@dataclass(frozen=True, slots=True)
class Normalised:
    """Rows normalised: mean (M; zeros for rms_norm), rstd (M), and the result, xhat (M, N)."""

    mean: torch.Tensor
    rstd: torch.Tensor
    xhat: torch.Tensor


def layer_normalised(x: torch.Tensor) -> Normalised:
    """(x - mean) * rstd by rows. x: (M, N), any type."""
    wide = x.double()
    # Rows of equal values must have exactly their mean. A GPU's division by a number is a product with 1 / N, which
    # rounds twice; by a tensor it is a division.
    mean = wide.sum(1) / wide.new_full((1,), x.shape[1])
    centred = wide - mean[:, None]
    rstd = _rstd(centred)
    return Normalised(mean, rstd, centred * rstd[:, None])


def rms_normalised(x: torch.Tensor) -> Normalised:
    """The product x * rstd by rows. x: (M, N), any type."""
    wide = x.double()
    rstd = _rstd(wide)
    return Normalised(rstd.new_zeros(rstd.shape), rstd, wide * rstd[:, None])


def _rstd(values: torch.Tensor) -> torch.Tensor:
    """1 / sqrt(mean of the squares + EPS) by rows.

    The mean is rounded to float32 first: where it is out of float32's range, rstd is 0, as it is with sums in float32.
    """
    square = (values.square().sum(1) / values.shape[1]).float().double()
    return 1 / (square + EPS).sqrt()


# ---- What the forward's outputs must be.


def forward_expected(ctx: Context, t: Tensors, normalised: Callable[[torch.Tensor], Normalised]) -> Iterator[Expected]:
    """What y, rstd, and mean if the op has one, must be for the inputs t.before.

    Each may be off by one unit in the last place of its own type, and besides:
    - mean by the rounding of a sum of N elements, relative to the row's largest;
    - rstd by 1e-5 of itself;
    - y by the errors of xhat that come from these two, times gamma, and by a rounding of beta.
    Besides, all may be off by what `_lost` says of the smallest numbers.
    Where the mean isn't finite, any mean that isn't finite is right.
    """
    before = t.before
    gamma = before.gamma.double()
    beta = before.beta.double() if hasattr(before, "beta") else gamma.new_zeros(gamma.shape)
    lost = _lost(before.x.shape[1])
    for part in _parts(*before.x.shape):
        x = before.x[part]
        wanted = normalised(x)
        largest = x.abs().amax(1).double()
        off = 1e-5 * wanted.xhat.abs() + ((_ROUNDED * largest + lost) * wanted.rstd)[:, None]
        outputs = {
            "y": (wanted.xhat * gamma + beta, off * gamma.abs() + 2**-23 * beta.abs()),
            "rstd": (wanted.rstd, 1e-5 * wanted.rstd),
            "mean": (wanted.mean, _ROUNDED * largest + lost),
        }
        for output in ctx.op.outputs:
            got, (want, allowed) = getattr(t, output.name)[part], outputs[output.name]
            start = part.start * (got.numel() // max(1, len(got)))
            allowed = allowed + _last_place(got, want)
            yield Expected(output.name, got, want, allowed, start, loose=output.name == "mean")


def _lost(columns: int) -> float:
    """How far off numbers and means may be because float32 has no smaller numbers.

    Kernels add up distances over N and over 2 sqrt(N), so that no sum overflows (kernels/rows/normaliser.cuh). Each
    addition is rounded to the smallest denormal number, of which the mean gets N * 2 sqrt(N) halves at most. Inputs
    below 2^-126 may also lose places, or count as 0.
    """
    return float(columns**1.5 * 2.0**-149 + 2.0**-126)


def _parts(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _CHECKED // max(1, columns))
    return (slice(first, first + step) for first in range(0, rows, step))


def _last_place(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """One unit in the last place of each wanted number, as a number of got's type."""
    import torch

    unit = torch.finfo(got.dtype)
    # Below 2^-126 float32 has fewer places, and kernels compute in float32 for halves, too.
    return unit.eps * want.abs() + unit.tiny * unit.eps + 2**-126


# ---- The forward's launches. `tensors` gives the kernel's tensors in the order of its parameters.


def two_pass(ctx: Context, tensors: Arguments) -> Launch:
    """One block a row, which reads x twice. Rows may have any length and any address."""
    threads = 256 if ctx.s.N <= 8192 else 1024
    kernel = ctx.kernel(*_entry(ctx, "two_pass"), {"SCALAR": CUDA_TYPE[ctx.case.dtype], "THREADS": threads})
    sizes = ctypes.c_int64(ctx.s.M), ctypes.c_int64(ctx.s.N)
    grid = min(ctx.s.M, _MOST_BLOCKS)
    return lambda t: kernel(grid, threads, *tensors(t), *sizes)


def in_registers(ctx: Context, tensors: Arguments, width: int) -> Launch:
    """One block a row, which keeps the row in registers. width: elements an access, 1 or 2.

    `two_pass` runs where accesses wouldn't be aligned. A block of 1024 threads is half a multiprocessor, or all of it
    where they have more than 32 registers: while it waits for its sums, few bytes are under way. So a row has as few
    threads as can keep it, in smaller blocks of which several run at a time.
    """
    fallback = two_pass(ctx, tensors)
    units = blocks(ctx.s.N, width)
    threads = max(256, power_of_2_from(blocks(units, _KEPT)))
    kept = power_of_2_from(blocks(units, threads))
    name, macro = ("registers", "ELEMENTS") if width == 1 else ("half2", "PAIRS")
    macros: dict[str, str | int] = {"SCALAR": CUDA_TYPE[ctx.case.dtype], "THREADS": threads, macro: kept}
    kernel = ctx.kernel(*_entry(ctx, name), macros)
    sizes = ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.N)
    alignment = width * ITEMSIZE[ctx.case.dtype]

    def launch(t: Tensors) -> None:
        if any(tensor.data_ptr() % alignment for tensor in tensors(t)):
            fallback(t)
        else:
            kernel(ctx.s.M, threads, *tensors(t), *sizes)

    return launch


def planned(ctx: Context, tensors: Arguments, vectors: int) -> Launch:
    """The kernel that the case's plan asks for; `two_pass` where rows are too long or packs aren't aligned.

    vectors: how many (N) rows share.
    """
    if ctx.s.N == 1:
        return _of_one(ctx, tensors)
    plan, sizes = ctx.plan(), (ctx.s.M, ctx.s.N, ITEMSIZE[ctx.case.dtype])
    if plan and plan.get("in_turn"):
        turn = InTurn.of(*sizes, Chip.current())
        assert turn is not None  # else the plan isn't legal
        if launch := in_turn(ctx, turn, tensors):
            return launch
        made = _rows.RowPlan.with_vectors(*sizes, Chip.current(), vectors, norm=True)
    else:
        made = row_plan(plan, *sizes[1:]) if plan else None
    return _rows.planned(ctx, made, two_pass(ctx, tensors), tensors, vectors=vectors)


def _of_one(ctx: Context, tensors: Arguments) -> Launch:
    """Rows of a single element, _QUAD a thread."""
    kernel = ctx.kernel(*_entry(ctx, "of_one"), {"SCALAR": CUDA_TYPE[ctx.case.dtype], "THREADS": BLOCK})
    grid, rows = blocks(blocks(ctx.s.M, _QUAD)), ctypes.c_int64(ctx.s.M)

    def launch(t: Tensors) -> None:
        arguments = tensors(t)
        kernel(grid, BLOCK, *arguments, rows, ctypes.c_int32(aligned(*arguments)))

    return launch


def in_turn(ctx: Context, plan: InTurn, tensors: Arguments) -> Launch | None:
    """Teams that take rows in turn as the plan has it; `two_pass` where packs aren't aligned.

    None where this device holds fewer teams than rows begin at different places of a pack.
    """
    kernel = ctx.kernel(*_entry(ctx, "in_turn"), {"SCALAR": CUDA_TYPE[ctx.case.dtype], **plan.macros})
    fallback = two_pass(ctx, tensors)
    sizes = ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.N)
    grid = plan.grid(ctx.s.M, kernel)
    if not grid:
        return None

    def launch(t: Tensors) -> None:
        arguments = tensors(t)
        if aligned(*arguments):
            kernel(grid, plan.threads, *arguments, *sizes, shared=plan.shared, cluster=plan.blocks)
        else:
            fallback(t)

    return launch


def _entry(ctx: Context, kernel: str) -> tuple[str, str]:
    """File and name of a kernel of the op."""
    return f"{ctx.case.op}.cu", f"{ctx.case.op}_{kernel}"


def too_long(case: Case, width: int = 1) -> str | None:
    """Why a block can't keep a row in registers, with `width` elements an access; None if it can."""
    most = _MOST_KEPT * width
    if case.symbols["N"] > most:
        return f"rows of more than {most} don't fit into a block's registers"
    return f"a grid has blocks for {_MOST_BLOCKS} rows" if case.symbols["M"] > _MOST_BLOCKS else None


def no_pairs(case: Case) -> str | None:
    """Why a block can't keep a row as pairs of halves; None if it can."""
    if case.dtype == "float32":
        return "for halves only"
    if case.symbols["N"] % 2:
        return "for rows of an even number of elements only"
    return too_long(case, width=2)


TrafficOf = Callable[[Symbols, int], Traffic]
"""Gives the traffic of a variant, from sizes and the bytes of an element."""


def traffics(vectors: int, statistics: int) -> tuple[TrafficOf, TrafficOf]:
    """The traffic of `two_pass` and of `tuned`, for an op with so many vectors (N), and statistics a row."""

    def moved(symbols: Symbols, itemsize: int, reads: int) -> Traffic:
        rows, columns = symbols["M"], symbols["N"]
        return Traffic(
            read=(reads * rows + vectors) * columns * itemsize,
            written=rows * columns * itemsize + 4 * statistics * rows,
        )

    def tuned(symbols: Symbols, itemsize: int) -> Traffic:
        return moved(symbols, itemsize, 1 if _rows.has_plan(symbols, itemsize) else 2)

    return (lambda symbols, itemsize: moved(symbols, itemsize, 2)), tuned
