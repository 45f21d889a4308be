"""Bias and residual, y = x + bias + residual over (R, C): rows S3 and S12. Twin of bias_residual.cu.

S3 is about kinds of element-wise kernels, which add in float and round the sum once, and about what separate launches
cost. S12 is about halves that are added in pairs: `half1` and `half2` both add in halves, so that x + bias is rounded,
too, as eager and `unfused` do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from harness import cuda, metrics, units
from harness.collection.ops.elementwise import (
    ANY,
    BLOCK,
    CUDA_TYPE,
    INDEX_TYPE,
    LIMIT_32,
    PACK_BYTES,
    aligned,
    blocks,
    widened,
)
from harness.collection.ops.row_parts import MOST_ROWS, SHORTEST, RowParts
from harness.model import Case, Traffic
from harness.ops import (
    ITEMSIZE,
    Built,
    Compile,
    Context,
    Extremes,
    Launch,
    Op,
    Plan,
    Symbols,
    Tensor,
    Tensors,
    Tuning,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch

PAIR = {"float16": "__half2", "bfloat16": "__nv_bfloat162"}
UNROLL = 4  # elements a thread of bias_residual_unrolled
PARTS = 8
WORD_BYTES = 4
_EVERY_BLOCK = (64, 128, 256, 512)  # threads of a block of `tuned` that there may be
_FEW_BYTES = 256  # of x a multiprocessor, up to which words are faster than packs
_MOST_BYTES = 2**20  # of x, up to which a search tries words
LAUNCHES = metrics.fact("launches", "launches", units.COUNT, "kernels of ours that a call launches")


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The reference computes in higher precision."""
    return {"y": add(*widened(t.x, t.bias, t.residual))}


def add(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """The sum as a user writes it: x and residual (R, C), bias (C)."""
    return x + bias + residual


OP = Op(
    "bias_residual",
    "y = x + bias + residual",
    symbols={"R": "rows", "C": "columns, one bias each"},
    inputs=(Tensor("x", ("R", "C")), Tensor("bias", ("C",)), Tensor("residual", ("R", "C"))),
    outputs=(Tensor("y", ("R", "C")),),
    reference=reference,
    extremes=Extremes(
        largest={"float32": 2.0**120, "bfloat16": 2.0**120, "float16": 2.0**14},
        why="a sum of two of the three terms may be rounded to the dtype",
    ),
    # Relative as everywhere. Absolute: x + bias may be far larger than the sum, and rounding it alone is off by half a
    # unit in its last place, and normal random numbers are below 16.
    tolerance={"float32": (1e-6, 2**-21), "float16": (1e-3, 2**-8), "bfloat16": (8e-3, 2**-5)},
)


def two_passes(symbols: Symbols, itemsize: int) -> Traffic:
    """There are two kernels: the first writes x + bias and the second reads it."""
    tensor = symbols["R"] * symbols["C"] * itemsize
    return Traffic(read=3 * tensor + symbols["C"] * itemsize, written=2 * tensor)


def _needs_halves(together: int) -> Callable[[Case], str | None]:
    def reason(case: Case) -> str | None:
        if case.dtype == "float32":
            return "for halves only"
        if case.symbols["C"] % together:
            return f"for rows of a multiple of {together} elements only"
        return None

    return reason


@OP.variant("eager", "two additions, two kernels", role="baseline", devices=ANY, returns=True, traffic=two_passes)
def eager(_: Context) -> Launch:
    """The code that users write today."""
    return lambda t: (add(t.x, t.bias, t.residual),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel for exactly this shape."""
    function = compiled(add)
    return lambda t: (function(t.x, t.bias, t.residual),)


@OP.variant("scalar", "one kernel, one element a thread", role="published", rows=("S3",))
def scalar(ctx: Context) -> Launch:
    """The text starts here."""
    return _together(ctx, "bias_residual_scalar", 1)


@OP.variant("unrolled", "four elements a thread, each an access of its own", role="published", rows=("S3",))
def unrolled(ctx: Context) -> Launch:
    """The text's scalar unrolled kind: more is in flight, in the same number of accesses."""
    count = ctx.s.R * ctx.s.C
    kernel, word = _kernel(ctx, "bias_residual_unrolled", count)
    grid, scalars = blocks(count, BLOCK * UNROLL), (word(count), *_columns(ctx.s.C, word))
    return lambda t: kernel(grid, BLOCK, t.x, t.bias, t.residual, t.y, *scalars)


@OP.variant(
    "half1",
    "one half a thread, added in halves",
    role="published",
    rows=("S12",),
    unsupported=_needs_halves(1),
)
def half1(ctx: Context) -> Launch:
    """The text before its packed halves: the same arithmetic, one element at a time."""
    return _together(ctx, "bias_residual_half1", 1)


@OP.variant(
    "half2", "two halves a thread, added as a pair", role="published", rows=("S12",), unsupported=_needs_halves(2)
)
def half2(ctx: Context) -> Launch:
    """The text's optimisation. It is `half1` where a pair doesn't begin on 4 bytes."""
    return _together(ctx, "bias_residual_half2", 2, half1(ctx))


@OP.variant(
    "packed8",
    "eight halves a thread, 16 bytes an access",
    role="published",
    rows=("S3", "S12"),
    unsupported=_needs_halves(8),
)
def packed8(ctx: Context) -> Launch:
    """The text's vectorised kind. It adds as `scalar` does, and is `scalar` where a pack doesn't begin on 16 bytes."""
    return _together(ctx, "bias_residual_packed", 8, scalar(ctx))


def _parameters(case: Case) -> dict[str, tuple[int, ...]]:
    """Bytes of an access, and threads of a block. Words are for few rows of whole words: blocks have parts of rows."""
    rows, row = case.symbols["R"], case.symbols["C"] * ITEMSIZE[case.dtype]
    has_words = row % WORD_BYTES == 0 and 0 < rows * row <= _MOST_BYTES and rows <= MOST_ROWS
    return {"bytes": (PACK_BYTES, WORD_BYTES) if has_words else (PACK_BYTES,), "threads": _EVERY_BLOCK}


def _rule(case: Case) -> Plan:
    row = case.symbols["C"] * ITEMSIZE[case.dtype]
    few = case.symbols["R"] * row <= _FEW_BYTES * cuda.multiprocessors() and row >= SHORTEST * WORD_BYTES
    by_words = few and WORD_BYTES in _parameters(case)["bytes"]
    return {"bytes": WORD_BYTES if by_words else PACK_BYTES, "threads": BLOCK}


def _kernels(case: Case, plan: Plan) -> Iterator[Built]:
    if plan["bytes"] == WORD_BYTES:
        parts = _parts_of_rows(case, plan)
        yield Built("bias_residual.cu", "bias_residual_words", _words(case, parts), parts.threads)
        return
    together, n = PACK_BYTES // ITEMSIZE[case.dtype], case.symbols["R"] * case.symbols["C"]
    is_whole = case.symbols["C"] % together == 0
    entry, count = ("bias_residual_packed", n // together) if is_whole else ("bias_residual_any", n)
    yield Built("bias_residual.cu", entry, _macros(case, count), int(plan["threads"]))


def _parts_of_rows(case: Case, plan: Plan) -> RowParts:
    words = case.symbols["C"] * ITEMSIZE[case.dtype] // WORD_BYTES
    return RowParts.of(case.symbols["R"], words, int(plan["threads"]))


def _words(case: Case, parts: RowParts) -> dict[str, str | int]:
    return {"SCALAR": CUDA_TYPE[case.dtype], "ROW_THREADS": parts.threads}


@OP.variant(
    "tuned",
    "16-byte packs for floats too, in rows of any length, at any address",
    rows=("S3", "S12"),
    tuning=Tuning(_parameters, _rule, kernels=_kernels),
)
def tuned(ctx: Context) -> Launch:
    """It loads packs of biases where rows and addresses allow it; otherwise a pack may go on in the next row.

    A few rows move in words.
    """
    plan = ctx.plan()
    assert plan
    add_all = _in_packs(ctx, int(plan["threads"]))
    ctx.report(LAUNCHES.name, 1)
    if plan["bytes"] == PACK_BYTES:
        return lambda t: add_all(t.x, t.bias, t.residual, t.y)
    parts = _parts_of_rows(ctx.case, plan)
    words, row_units = ctx.kernel("bias_residual.cu", "bias_residual_words", _words(ctx.case, parts)), parts.units

    def launch(t: Tensors) -> None:
        tensors = t.x, t.bias, t.residual, t.y
        if any(tensor.data_ptr() % WORD_BYTES for tensor in tensors):
            add_all(*tensors)
        else:
            words(parts.grid, parts.threads, *tensors, ctypes.c_uint32(row_units))

    return launch


@OP.variant(
    "unfused", "tuned as two kernels: x + bias, then + residual", role="published", rows=("S3",), traffic=two_passes
)
def unfused(ctx: Context) -> Launch:
    """What a chain of element-wise kernels costs: a launch more, and a tensor that is written and read again."""
    pack, n = PACK_BYTES // ITEMSIZE[ctx.case.dtype], ctx.s.R * ctx.s.C
    (first, word), (second, _) = (_kernel(ctx, f"bias_residual_{step}", n) for step in ("first", "second"))
    whole = _kernel(ctx, "bias_residual_first_whole", n)[0] if ctx.s.C % pack == 0 else None
    grid, columns = blocks(-(-n // pack)), _columns(ctx.s.C, word)
    ctx.report(LAUNCHES.name, 2)

    def launch(t: Tensors) -> None:
        add_bias = whole if whole and aligned(t.x, t.bias, t.y) else first
        add_bias(grid, BLOCK, t.x, t.bias, t.y, word(n), ctypes.c_int(aligned(t.x, t.y)), *columns)
        second(grid, BLOCK, t.residual, t.y, word(n), ctypes.c_int(aligned(t.residual, t.y)))

    return launch


@OP.variant("eight_launches", "tuned, launched for an eighth of the rows at a time", rows=("S3",))
def eight_launches(ctx: Context) -> Launch:
    """What seven kernels more cost.

    A seventh of the difference to `tuned` is what one kernel more costs: the gap, and the time in which its first loads
    and its last stores leave the memory idle. Bytes and arithmetic are the same as in `tuned` where an eighth of the
    rows is whole packs.
    """
    add_all = _in_packs(ctx)
    ends = [ctx.s.R * part // PARTS for part in range(PARTS + 1)]
    parts = [slice(begin, end) for begin, end in pairwise(ends) if begin < end]
    ctx.report(LAUNCHES.name, len(parts))

    def launch(t: Tensors) -> None:
        for part in parts:
            add_all(t.x[part], t.bias, t.residual[part], t.y[part])

    return launch


def _in_packs(
    ctx: Context, threads: int = BLOCK
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """`tuned` for x, bias, residual and y with any number of the case's rows, at any address.

    threads: of a block.
    """
    pack, n = PACK_BYTES // ITEMSIZE[ctx.case.dtype], ctx.s.R * ctx.s.C
    anywhere, word = _kernel(ctx, "bias_residual_any", n)
    columns = _columns(ctx.s.C, word)
    whole, of_packs = _kernel(ctx, "bias_residual_packed", n // pack) if ctx.s.C % pack == 0 else (None, word)
    packs_a_row = _columns(ctx.s.C // pack, of_packs)

    def add_all(*tensors: torch.Tensor) -> None:
        x, _, residual, y = tensors
        count = x.numel()
        if whole and aligned(*tensors):
            whole(blocks(count // pack, threads), threads, *tensors, of_packs(count // pack), *packs_a_row)
        else:
            vector = ctypes.c_int(aligned(x, residual, y))
            anywhere(blocks(-(-count // pack), threads), threads, *tensors, word(count), vector, *columns)

    return add_all


def _together(ctx: Context, entry: str, together: int, fallback: Launch | None = None) -> Launch:
    """A kernel whose threads take `together` neighbours each; `fallback` where tensors aren't aligned to that."""
    count = ctx.s.R * ctx.s.C // together
    kernel, word = _kernel(ctx, entry, count)
    columns = _columns(ctx.s.C // together, word)
    alignment = together * ITEMSIZE[ctx.case.dtype]

    def launch(t: Tensors) -> None:
        tensors = t.x, t.bias, t.residual, t.y
        if fallback and any(tensor.data_ptr() % alignment for tensor in tensors):
            fallback(t)
            return
        kernel(blocks(count), BLOCK, *tensors, word(count), *columns)

    return launch


def _kernel(ctx: Context, entry: str, count: int) -> tuple[cuda.Kernel, type[ctypes.c_uint32 | ctypes.c_uint64]]:
    """A kernel that counts up to `count`, and the type of its indexes."""
    word = ctypes.c_uint32 if count < LIMIT_32 else ctypes.c_uint64
    return ctx.kernel("bias_residual.cu", entry, _macros(ctx.case, count)), word


def _macros(case: Case, count: int) -> dict[str, str | int]:
    macros: dict[str, str | int] = {
        "SCALAR": CUDA_TYPE[case.dtype],
        "INDEX": INDEX_TYPE[32 if count < LIMIT_32 else 64],
    }
    if case.dtype in PAIR:
        macros["PAIR"] = PAIR[case.dtype]
    return macros


def _columns(count: int, word: type[ctypes.c_uint32 | ctypes.c_uint64]) -> tuple[Any, ...]:
    """The length of a row as the kernels take it: with the multiplier and the shift that stand for a division."""
    # An empty tensor may have rows of length 0; nothing is launched for it.
    return word(count), *cuda.fast_divisor(max(1, count), 8 * ctypes.sizeof(word))
