"""Softmax over the rows of a matrix: techniques O8 and S13. Twin of softmax.cu."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.chip import MOST_BLOCKS, WARP
from harness.collection.ops.elementwise import (
    ANY,
    BLOCK,
    CUDA_TYPE,
    PACK_BYTES,
    aligned,
    blocks,
    power_of_2_from,
    widened,
)
from harness.collection.ops.rows._row_tuning import RowParameters, plan_of
from harness.collection.ops.rows._rows import has_plan, planned
from harness.model import Case, Traffic
from harness.ops import ITEMSIZE, Compile, Context, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

# As in softmax.cu.
_ANY_BLOCK = 512  # threads of a block in kernels that have no macro for it
_STATIC_SHARED = 1024  # bytes of shared memory beside the row

# Columns up to which `unfused`, `online` and `registers` give a row a warp; longer rows get a block.
_WARP_COLUMNS = 1024
_GRID = 2**31 - 1  # blocks
_FLOAT = 4  # bytes

# The numbers of `registers` and `cluster`.
_ELEMENTS = 8  # of a row that a thread has, until a block has no more threads
_MOST_ELEMENTS = 16  # with twice the number, some architecture runs out of registers for 1024 threads
_MOST_THREADS = 1024  # of a block


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The softmax in higher precision."""
    import torch

    (x,) = widened(t.x)
    return {"y": torch.softmax(x, dim=-1)}


OP = Op(
    "softmax",
    "y = exp(x - max) / sum(exp(x - max)) for each row",
    symbols={"M": "rows", "N": "columns"},
    inputs=(Tensor("x", ("M", "N")),),
    outputs=(Tensor("y", ("M", "N")),),
    reference=reference,
    tolerance={"float32": (4e-6, 1e-30), "float16": (1e-3, 6e-8), "bfloat16": (8e-3, 1e-30)},
    items="M",
    item="rows",
)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.softmax(x, dim=-1)


@OP.variant("eager", "torch.softmax", role="baseline", devices=ANY, returns=True)
def eager(_: Context) -> Launch:
    """What a user writes today."""
    return lambda t: (_softmax(t.x),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor's kernel for exactly this shape."""
    function = compiled(_softmax)
    return lambda t: (function(t.x),)


def _unfused(symbols: Symbols, size: int) -> Traffic:
    """The bytes of every tensor that a step reads or writes."""
    elements, rows = symbols["M"] * symbols["N"], symbols["M"]
    # Max and subtract read x; exp, sum and divide read floats. Subtract and divide also read a float for each row.
    read = elements * (2 * size + 3 * _FLOAT) + 2 * rows * _FLOAT
    written = elements * (2 * _FLOAT + size) + 2 * rows * _FLOAT
    return Traffic(read, written)


def _second_read(symbols: Symbols, size: int) -> Traffic:
    """Two reads of x, though a short row may still be in a cache the second time."""
    elements = symbols["M"] * symbols["N"]
    return Traffic(2 * elements * size, elements * size)


def _tuned(symbols: Symbols, size: int) -> Traffic:
    """One read of x where a plan keeps rows in registers; else the traffic of `online`."""
    if not has_plan(symbols, size):
        return _second_read(symbols, size)
    elements = symbols["M"] * symbols["N"]
    return Traffic(elements * size, elements * size)


@OP.variant(
    "unfused",
    "max, subtract, exp, sum, divide: five kernels, floats between them",
    role="published",
    rows=("O8",),
    traffic=_unfused,
)
def unfused(ctx: Context) -> Launch:
    """The text's starting point. It moves 8 D for floats, and 13 D for halves, where D is the size of x.

    The tensors between the steps are floats, since halves would lose places at each step.
    """
    import torch

    def kernel(entry: str) -> cuda.Kernel:
        return _kernel(ctx, f"softmax_{entry}")

    largest, subtract, exp, total, divide = map(kernel, ("max", "subtract", "exp", "sum", "divide"))
    elements = ctx.s.M * ctx.s.N
    # All sets of buffers share these two.
    values = torch.empty(elements, dtype=torch.float32, device=ctx.device)
    of_rows = torch.empty(ctx.s.M, dtype=torch.float32, device=ctx.device)
    over_rows, sizes = _any_length(ctx)
    n, by_columns = ctypes.c_int64(elements), cuda.fast_divisor(ctx.s.N, 64)
    over_elements = blocks(elements)

    def launch(t: Tensors) -> None:
        largest(over_rows, _ANY_BLOCK, t.x, of_rows, *sizes)
        subtract(over_elements, BLOCK, t.x, of_rows, values, n, *by_columns)
        exp(over_elements, BLOCK, values, n)
        total(over_rows, _ANY_BLOCK, values, of_rows, *sizes)
        divide(over_elements, BLOCK, values, of_rows, t.y, n, *by_columns)

    return launch


@OP.variant("online", "one read for maximum and sum, a second one for y; rows of any length", traffic=_second_read)
def online(ctx: Context) -> Launch:
    """Keeps nothing of a row, so that no row is too long."""
    kernel = _kernel(ctx, "softmax_online")
    grid, sizes = _any_length(ctx)
    return lambda t: kernel(grid, _ANY_BLOCK, t.x, t.y, *sizes)


def _kernel(ctx: Context, entry: str, **macros: int) -> cuda.Kernel:
    return ctx.kernel("softmax.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype], **macros})


def _any_length(ctx: Context) -> tuple[int, tuple[Any, ...]]:
    """Grid and arguments of a kernel that gives short rows a warp each, and long rows a block."""
    rows_a_block = _ANY_BLOCK // WARP if ctx.s.N <= _WARP_COLUMNS else 1
    sizes = ctypes.c_int64(ctx.s.M), ctypes.c_int64(ctx.s.N), ctypes.c_uint32(rows_a_block)
    return blocks(ctx.s.M, rows_a_block), sizes


def _needs_shared_memory(case: Case) -> str | None:
    row, room = case.symbols["N"] * ITEMSIZE[case.dtype], cuda.shared_memory() - _STATIC_SHARED
    if row > room:
        return f"a row of {row / 1024:g} KB doesn't fit into the {room / 1024:g} KB that a block has in shared memory"
    return _needs_blocks(case, 1)


def _needs_blocks(case: Case, a_row: int) -> str | None:
    rows = _GRID // a_row
    return f"a grid has blocks for {rows} rows" if case.symbols["M"] > rows else None


@OP.variant(
    "shared",
    "one block a row, the row in shared memory, CUB's block reductions",
    role="published",
    rows=("O8",),
    unsupported=_needs_shared_memory,
)
def shared(ctx: Context) -> Launch:
    """The text's fused kernel."""
    cuda.need_cccl()
    kernel = _kernel(ctx, "softmax_shared", SHARED=1)
    row = ctx.s.N * ITEMSIZE[ctx.case.dtype]
    columns = ctypes.c_uint32(ctx.s.N)

    def launch(t: Tensors) -> None:
        x_packs, y_packs = (ctypes.c_uint32(row % PACK_BYTES == 0 and aligned(tensor)) for tensor in (t.x, t.y))
        kernel(ctx.s.M, _ANY_BLOCK, t.x, t.y, columns, x_packs, y_packs, shared=row)

    return launch


def _needs_registers(case: Case) -> str | None:
    room = _MOST_THREADS * _MOST_ELEMENTS
    if case.symbols["N"] > room:
        return f"a row of {case.symbols['N']} elements doesn't fit into the registers of a block, which take {room}"
    return _needs_blocks(case, 1)


@OP.variant(
    "registers",
    "a warp or a block a row, the row in arrays of a constant size, which registers hold",
    role="published",
    rows=("S13",),
    unsupported=_needs_registers,
)
def registers(ctx: Context) -> Launch:
    """Each length of rows may need a compilation of its own. Short rows have a warp each, as in `online`."""
    if ctx.s.N > _WARP_COLUMNS:
        return _in_registers(ctx, "softmax_registers", 1)
    kernel = _kernel(ctx, "softmax_registers", ELEMENTS=blocks(ctx.s.N, WARP), THREADS=WARP)
    grid, sizes = blocks(ctx.s.M, _ANY_BLOCK // WARP), (ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.N))
    return lambda t: kernel(grid, _ANY_BLOCK, t.x, t.y, *sizes)


def _needs_cluster(case: Case) -> str | None:
    if not cuda.has_clusters():
        return "clusters of blocks came with compute capability 9.0"
    room = MOST_BLOCKS * _MOST_THREADS * _MOST_ELEMENTS
    if case.symbols["N"] > room:
        return f"a row of {case.symbols['N']} elements doesn't fit into the registers of a cluster, which take {room}"
    return _needs_blocks(case, blocks_of_cluster(case.symbols["N"]))


def blocks_of_cluster(columns: int) -> int:
    """Blocks that share a row of so many elements: a power of two."""
    return min(MOST_BLOCKS, max(2, power_of_2_from(blocks(columns, _MOST_THREADS * _ELEMENTS))))


@OP.variant(
    "cluster",
    "a row in such arrays of two to eight blocks, which meet in distributed shared memory",
    role="published",
    rows=("S13",),
    unsupported=_needs_cluster,
)
def cluster(ctx: Context) -> Launch:
    """Takes rows that are too long for a block."""
    return _in_registers(ctx, "softmax_cluster", blocks_of_cluster(ctx.s.N))


def spread(columns: int, blocks_a_row: int) -> tuple[int, int]:
    """(elements a thread, threads a block) for a row of so many elements; threads are a power of two."""
    share = blocks(columns, blocks_a_row)
    threads = min(_MOST_THREADS, max(WARP, power_of_2_from(blocks(share, _ELEMENTS))))
    return blocks(share, threads), threads


def _in_registers(ctx: Context, entry: str, blocks_a_row: int) -> Launch:
    elements, threads = spread(ctx.s.N, blocks_a_row)
    kernel = _kernel(ctx, entry, ELEMENTS=elements, THREADS=threads)
    sizes = ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.N)
    grid, together = ctx.s.M * blocks_a_row, blocks_a_row if blocks_a_row > 1 else None
    return lambda t: kernel(grid, threads, t.x, t.y, *sizes, cluster=together)


@OP.variant(
    "tuned",
    "a row in the registers of a warp, a block or a cluster, as its length asks",
    rows=("O8", "S13"),
    traffic=_tuned,
    tuning=RowParameters().tuning,
)
def tuned(ctx: Context) -> Launch:
    """Step 6 of softmax.cu. `online` runs where rows are too long for it or packs aren't aligned."""
    if ctx.s.N == 1:
        return _of_one(ctx)
    return planned(ctx, plan_of(ctx), online(ctx), lambda t: (t.x, t.y))


def _of_one(ctx: Context) -> Launch:
    """Rows of a single element."""
    kernel = _kernel(ctx, "softmax_of_one")
    grid, n = blocks(blocks(ctx.s.M, PACK_BYTES // ITEMSIZE[ctx.case.dtype])), ctypes.c_int64(ctx.s.M)
    return lambda t: kernel(grid, BLOCK, t.x, t.y, n, ctypes.c_int32(aligned(t.x, t.y)))
