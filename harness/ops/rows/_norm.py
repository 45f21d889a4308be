"""What layer_norm, rms_norm and their gradients share: declarations, epsilon, references, and the forward's launches.

A matrix is (M, N), contiguous; each row is normalised by itself, over its N columns. Statistics are float32, one a row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.model import Case, Work
from harness.ops import ITEMSIZE, Context, Launch, Symbols, Tensor, Tensors
from harness.ops._device import MOST_BLOCKS
from harness.ops._elementwise import BLOCK, CUDA_TYPE, aligned, blocks, power_of_2_from
from harness.ops.rows import _rows
from harness.ops.rows._norm_plan import InTurn
from harness.ops.rows._rows import Arguments

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

_MOST_KEPT = 16 * 1024  # of what a load brings, a register each, by a block of 1024 threads
_MOST_BLOCKS = 2**31 - 1  # of a grid
_QUAD = 4  # rows of one element that a thread has
_ROUNDED = 2**-19  # of the largest term: what adding up N of them in float32 and dividing by N may lose
_CHECKED = 2**24  # elements checked at a time


# ---- References, in float64.


@dataclass(frozen=True, slots=True)
class Normalised:
    """What a row is normalised with: mean (M; zeros for rms_norm), rstd (M), and the result, xhat (M, N)."""

    mean: torch.Tensor
    rstd: torch.Tensor
    xhat: torch.Tensor


def layer_normalised(x: torch.Tensor) -> Normalised:
    """Gives (x - mean) * rstd by rows. x: (M, N), any type."""
    wide = x.double()
    # Divided, not multiplied by 1 / N as mean() does it on a GPU: rows of equal values must have exactly their mean.
    mean = wide.sum(1) / x.shape[1]
    centred = wide - mean[:, None]
    rstd = _rstd(centred)
    return Normalised(mean, rstd, centred * rstd[:, None])


def rms_normalised(x: torch.Tensor) -> Normalised:
    """Gives x * rstd by rows. x: (M, N), any type."""
    wide = x.double()
    rstd = _rstd(wide)
    return Normalised(rstd.new_zeros(rstd.shape), rstd, wide * rstd[:, None])


def _rstd(values: torch.Tensor) -> torch.Tensor:
    """1 / sqrt(mean of the squares + EPS) by rows.

    The mean is rounded to float32 before: where it passes float32's range, rstd is 0, as with sums in float32.
    """
    square = (values.square().sum(1) / values.shape[1]).float().double()
    return 1 / (square + EPS).sqrt()


# ---- The check of the forward's outputs.


def forward_complaint(ctx: Context, t: Tensors, normalised: Callable[[torch.Tensor], Normalised]) -> str | None:
    """What is wrong with y, rstd, and mean if the op has one, given the inputs t.before; None if nothing is.

    Each may be off by one unit in the last place of its own type, and besides:
    - mean by the rounding of a sum of N elements, relative to the row's largest;
    - rstd by 1e-5 of itself;
    - y by what these two make of xhat, times gamma, and by a rounding of beta.
    Not-a-numbers must meet, and infinities be equal. But a mean that isn't finite may be any that isn't.
    """
    before = t.before
    gamma = before.gamma.double()
    beta = before.beta.double() if hasattr(before, "beta") else gamma.new_zeros(gamma.shape)
    for part in _parts(*before.x.shape):
        x = before.x[part]
        wanted = normalised(x)
        largest = x.abs().amax(1).double()
        off = 1e-5 * wanted.xhat.abs() + (_ROUNDED * wanted.rstd * largest)[:, None]
        outputs = {
            "y": (wanted.xhat * gamma + beta, off * gamma.abs() + 2**-23 * beta.abs()),
            "rstd": (wanted.rstd, 1e-5 * wanted.rstd),
            "mean": (wanted.mean, _ROUNDED * largest),
        }
        for output in ctx.op.outputs:
            want, allowed = outputs[output.name]
            if found := _difference(output.name, part.start, getattr(t, output.name)[part], want, allowed):
                return found
    return None


def _parts(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _CHECKED // max(1, columns))
    return (slice(first, first + step) for first in range(0, rows, step))


def _difference(name: str, row: int, got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor) -> str | None:
    """row: which the first one here is."""
    import torch

    unit = torch.finfo(got.dtype)
    # Below 2^-126 float32 has fewer places, in which kernels compute for halves, too.
    allowed = allowed + unit.eps * want.abs() + unit.tiny * unit.eps + 2**-126
    # What rounds to an infinity of the type must be one.
    rounded = want.to(got.dtype)
    right = (((got.double() - want).abs() <= allowed) & want.isfinite()) | (got == rounded)
    right |= got.isnan() & want.isnan()
    if name == "mean":
        right |= ~got.isfinite() & ~want.isfinite()
    if right.all():
        return None
    first = (~right).nonzero()[0].tolist()
    place = [row + first[0], *first[1:]]
    values = f"is {got[tuple(first)].item()}, the reference {want[tuple(first)].item()}"
    return f"{name}: {int((~right).sum())} elements of {right.numel()} are wrong; that at {place} {values}"


# ---- The forward's launches. `tensors` gives the kernel's arguments in order, x and y among them.


def two_pass(ctx: Context, tensors: Arguments) -> Launch:
    """One block a row, of any length and at any address, which reads x twice."""
    threads = 256 if ctx.s.N <= 8192 else 1024
    kernel = ctx.kernel(*_entry(ctx, "two_pass"), {"SCALAR": CUDA_TYPE[ctx.case.dtype], "THREADS": threads})
    sizes = ctypes.c_int64(ctx.s.M), ctypes.c_int64(ctx.s.N)
    grid = min(ctx.s.M, _MOST_BLOCKS)
    return lambda t: kernel(grid, threads, *tensors(t), *sizes)


def in_registers(ctx: Context, tensors: Arguments, width: int) -> Launch:
    """One block a row, which it keeps. width: elements an access, 1 or 2; `two_pass` where they aren't aligned."""
    fallback = two_pass(ctx, tensors)
    units = blocks(ctx.s.N, width)
    threads = 256 if units <= 2048 else 1024
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


def planned(ctx: Context, tensors: Arguments) -> Launch:
    """The kernel `<op>_tuned`, as _rows.py plans it; `two_pass` where rows are too long, or packs aren't aligned."""
    if ctx.s.N == 1:
        return _of_one(ctx, tensors)
    return _rows.planned(ctx, two_pass(ctx, tensors), tensors, vectors=True)


def _of_one(ctx: Context, tensors: Arguments) -> Launch:
    """Rows of a single element, _QUAD a thread."""
    kernel = ctx.kernel(*_entry(ctx, "of_one"), {"SCALAR": CUDA_TYPE[ctx.case.dtype], "THREADS": BLOCK})
    grid, rows = blocks(blocks(ctx.s.M, _QUAD)), ctypes.c_int64(ctx.s.M)

    def launch(t: Tensors) -> None:
        arguments = tensors(t)
        kernel(grid, BLOCK, *arguments, rows, ctypes.c_int32(aligned(*arguments)))

    return launch


def in_turn(ctx: Context, plan: InTurn, tensors: Arguments) -> Launch:
    """Teams that take rows in turn, as planned; `two_pass` where packs aren't aligned."""
    kernel = ctx.kernel(*_entry(ctx, "in_turn"), {"SCALAR": CUDA_TYPE[ctx.case.dtype], **plan.macros})
    fallback = two_pass(ctx, tensors)
    sizes = ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.N)
    grid = plan.grid(ctx.s.M, kernel)

    def launch(t: Tensors) -> None:
        arguments = tensors(t)
        if aligned(*arguments):
            kernel(grid, plan.threads, *arguments, *sizes, shared=plan.shared, cluster=MOST_BLOCKS)
        else:
            fallback(t)

    return launch


def _entry(ctx: Context, kernel: str) -> tuple[str, str]:
    """File and name of a kernel of the op."""
    return f"{ctx.case.op}.cu", f"{ctx.case.op}_{kernel}"


def too_long(case: Case, width: int = 1) -> str | None:
    """Why blocks can't keep a row each in registers, with so many elements an access; None if they can."""
    most = _MOST_KEPT * width
    if case.symbols["N"] > most:
        return f"rows of more than {most} don't fit into a block's registers"
    return f"a grid has blocks for {_MOST_BLOCKS} rows" if case.symbols["M"] > _MOST_BLOCKS else None


def no_pairs(case: Case) -> str | None:
    """Why blocks can't keep a row each as pairs of halves; None if they can."""
    if case.dtype == "float32":
        return "for halves only"
    if case.symbols["N"] % 2:
        return "for rows of an even number of elements only"
    return too_long(case, width=2)


Traffic = Callable[[Symbols, int], Work]


def traffics(vectors: int, statistics: int, flops: int) -> tuple[Traffic, Traffic]:
    """What `two_pass` and `tuned` move, of an op with so many vectors, statistics a row, and operations an element."""

    def read(symbols: Symbols, itemsize: int, times: int) -> Work:
        rows, columns = symbols["M"], symbols["N"]
        return Work(
            read=(times * rows + vectors) * columns * itemsize,
            written=rows * columns * itemsize + 4 * statistics * rows,
            flops=flops * rows * columns,
            items=rows,
            item="rows",
        )

    def tuned(symbols: Symbols, itemsize: int) -> Work:
        return read(symbols, itemsize, 1 if _rows.has_plan(symbols, itemsize) else 2)

    return (lambda symbols, itemsize: read(symbols, itemsize, 2)), tuned
