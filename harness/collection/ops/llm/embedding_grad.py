"""The backward of an embedding, by atomics and by grouped tokens: beyond the texts. Twin of embedding_grad.cu.

dy: (T, H), a row for each token; ids: (T,), int64; dweight: (V, H).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.chip import WARP
from harness.collection.ops.elementwise import ANY, CUDA_TYPE, PACK_BYTES, aligned, blocks, power_of_2_from
from harness.model import Case, Traffic
from harness.ops import (
    ITEMSIZE,
    Choice,
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

NO_PADDING = -1
_PADDING = {"none": NO_PADDING, "first": 0}

_WINDOW, _LONG_WINDOW = 16, 32  # tokens of one id that a block sums before: of few tokens, and of many
_MANY = 2**15  # tokens, from which on they are many
_ROW_THREADS, _ROW_BLOCKS = 256, 4  # threads of a block that sums, and such blocks of a multiprocessor
_AT_ONCE, _ZEROS = 8, 4  # places of a block that sums, chunks of zeros of a thread; as in embedding_grad.cu
_GROUP_BLOCK = 1024  # threads of a block that groups; as in embedding_grad.cu
# How many bytes of zeros are written while tokens are grouped: so many, and so many more for each token (estimates).
_EARLY, _EARLY_A_TOKEN = 24 * 2**20, 12 * 2**10
_MOST_BINS = 8192  # ids of a block that groups: bins of shared memory, of 4 bytes
_FEWEST_GROUPS = 128  # blocks that group, at least
_MOST = 2**31  # tokens and ids that kernels count in 32 bits
_CHECKED = 2**22  # elements checked at a time
_FLOAT = 4  # bytes


def make(ctx: Context) -> dict[str, Any]:
    """Normal numbers, and ids of which the first ones are far more frequent than the last ones, as in a language."""
    import torch

    options = {"generator": ctx.generator, "device": ctx.device}
    even = torch.rand(ctx.s.T, dtype=torch.float64, **options)
    ids = (even**4 * ctx.s.V).long().clamp(max=max(0, ctx.s.V - 1))
    return {"dy": torch.randn((ctx.s.T, ctx.s.H), dtype=ctx.dtype, **options), "ids": ids}


def padding(ctx: Context) -> int:
    """The id that has no gradient; NO_PADDING if all have one."""
    return _PADDING[ctx.s.padding]


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """Each sum may be off by what float32 loses of its terms. Torch's sums may be in the case's type."""
    import torch

    unit = torch.finfo(ctx.dtype)
    lost = unit.eps if ctx.op.variants[ctx.case.variant].is_library else 2**-21
    counted = t.before.ids != padding(ctx)
    ids = t.before.ids[counted]
    step = max(1, _CHECKED // max(1, ctx.s.V))
    for first in range(0, ctx.s.H, step):
        part = slice(first, first + step)
        terms = t.before.dy[:, part][counted].double()
        zeros = terms.new_zeros((ctx.s.V, terms.shape[1]))
        want, size = zeros.index_add(0, ids, terms), zeros.index_add(0, ids, terms.abs())
        allowed = lost * size + unit.eps / 2 * want.abs() + unit.tiny * unit.eps
        yield Expected("dweight", t.dweight[:, part], want, allowed, loose=True)


OP = Op(
    "embedding_grad",
    "dweight[v] = sum of dy[t] over the tokens t with the id v",
    symbols={"T": "tokens", "V": "rows of the weight (the vocabulary)", "H": "columns"},
    choices={"padding": Choice("which id has no gradient", ("none", "first"))},
    inputs=(Tensor("dy", ("T", "H")), Tensor("ids", ("T",), "int64")),
    outputs=(Tensor("dweight", ("V", "H")),),
    make=make,
    check=check,
    extremes=Extremes(
        largest={"float32": 2.0**96, "bfloat16": 2.0**96},
        why="sums of larger ones, over 2^31 tokens of one id at most, leave the range of float32",
    ),
    items="T",
    item="tokens",
)


def _by_torch(ctx: Context, dy: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    import torch

    made: torch.Tensor = torch.ops.aten.embedding_dense_backward(dy, ids, ctx.s.V, padding(ctx), False)
    return made


@OP.variant("eager", "what autograd calls: it sorts the ids", role="baseline", devices=ANY, returns=True)
def eager(ctx: Context) -> Launch:
    """Torch sorts the pairs of ids and tokens, and adds the rows of equal ids."""
    return lambda t: (_by_torch(ctx, t.dy, t.ids),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes atomics of it, in float32 or in the case's type."""
    function = compiled(lambda dy, ids: _by_torch(ctx, dy, ids))
    return lambda t: (function(t.dy, t.ids),)


def too_many(case: Case) -> str | None:
    """Why kernels can't run a case; None if they can."""
    name = next((name for name, size in case.symbols.items() if size >= _MOST), None)
    return f"counts in 32 bits: {name} must be below {_MOST}" if name else None


def window_of(tokens: int) -> int:
    """Tokens of one id that a block sums before: more if there are many, since each such sum goes through memory."""
    return _LONG_WINDOW if tokens >= _MANY else _WINDOW


def _kernel(ctx: Context, entry: str, **macros: int) -> cuda.Kernel:
    sizes: dict[str, str | int] = {"WINDOW": window_of(ctx.s.T), "ROW_THREADS": _ROW_THREADS, "ROW_BLOCKS": _ROW_BLOCKS}
    options: dict[str, str | int] = {"SCALAR": CUDA_TYPE[ctx.case.dtype], "PADDING": padding(ctx), **sizes, **macros}
    return ctx.kernel("embedding_grad.cu", f"embedding_grad_{entry}", options)


def _floats(symbols: Symbols, size: int) -> Traffic:
    """Zeros, what atomics read and write, and the floats rounded if the type isn't float32."""
    weight, rows = symbols["V"] * symbols["H"], symbols["T"] * symbols["H"]
    rounded = 0 if size == _FLOAT else weight
    return Traffic(rows * (size + _FLOAT) + rounded * _FLOAT, (weight + rows) * _FLOAT + rounded * size)


@OP.variant("atomics", "zeros, an atomic addition an element, in float32", traffic=_floats, unsupported=too_many)
def atomics(ctx: Context) -> Launch:
    """All sets of buffers share the floats of halves. The order of the additions isn't the same in every run."""
    import torch

    is_float = ctx.dtype == torch.float32
    elements = ctypes.c_int64(ctx.s.V * ctx.s.H)
    floats = None if is_float else torch.empty((ctx.s.V, ctx.s.H), dtype=torch.float32, device=ctx.device)
    zero, add = _kernel(ctx, "zero"), _kernel(ctx, "add")
    rounding = None if is_float else _kernel(ctx, "round")
    grid, sizes = blocks(elements.value, _ROW_THREADS), (ctypes.c_uint32(ctx.s.V), ctypes.c_uint32(ctx.s.H))

    def launch(t: Tensors) -> None:
        sums = t.dweight if floats is None else floats
        zero(grid, _ROW_THREADS, sums, elements)
        add(ctx.s.T, _ROW_THREADS, t.dy, t.ids, sums, *sizes)
        if rounding is not None:
            rounding(grid, _ROW_THREADS, sums, t.dweight, elements)

    return launch


def groups_of(vocabulary: int) -> tuple[int, int]:
    """(blocks that group tokens, a power of two; ids of each of them)."""
    count = power_of_2_from(max(_FEWEST_GROUPS, blocks(vocabulary, _MOST_BINS)))
    return count, max(1, blocks(vocabulary, count))


@OP.variant(
    "tuned", "tokens grouped by id in one launch; zeros and sums apart, each row summed once", unsupported=too_many
)
def tuned(ctx: Context) -> Launch:
    """The sums are in the order of the tokens, so results repeat bit by bit."""
    import torch

    # All sets of buffers share what is known of a call's tokens: places, ranges of ids, sums of windows.
    shapes = (ctx.s.T, 2), (ctx.s.V, 2), (ctx.s.T // window_of(ctx.s.T), ctx.s.H)
    memory = [
        torch.empty(shape, dtype=dtype, device=ctx.device)
        for shape, dtype in zip(shapes, (torch.int32, torch.int32, torch.float32), strict=True)
    ]
    size = PACK_BYTES // ITEMSIZE[ctx.case.dtype]
    single = _in_chunks(ctx, memory, 1)
    packed = single if ctx.s.H % size else _in_chunks(ctx, memory, size)
    return lambda t: (packed if aligned(t.dy, t.dweight) else single)(t)


def early_rows(tokens: int, vocabulary: int, row: int) -> int:
    """Rows of so many bytes that get their zeros while tokens are grouped."""
    return min(vocabulary, (_EARLY + _EARLY_A_TOKEN * tokens) // max(1, row))


def _in_chunks(ctx: Context, memory: list[torch.Tensor], size: int) -> Launch:
    """The launches that read and write rows in chunks of so many elements. memory: places, ranges, sums of windows."""
    order, ranges, partial = memory
    group, windows, sums = (_kernel(ctx, entry, SINGLES=int(size == 1)) for entry in ("group", "windows", "sums"))
    tokens, vocabulary, columns = (ctypes.c_uint32(count) for count in (ctx.s.T, ctx.s.V, ctx.s.H))
    groups, bins = groups_of(ctx.s.V)
    chunks = ctx.s.H // size  # of a row
    late = (ctx.s.V - early_rows(ctx.s.T, ctx.s.V, ctx.s.H * ITEMSIZE[ctx.case.dtype])) * chunks
    every = ctx.s.V * chunks
    of_ids = [ctypes.c_uint32(count) for count in (groups.bit_length() - 1, bins)]
    of_early = ctypes.c_int64(late), ctypes.c_int64(every)
    grouping = groups + blocks(every - late, _GROUP_BLOCK * _ZEROS)

    # Late zeros are written beside sums: as many as dy has chunks, but half of them at most. The others are written
    # before, beside windows.
    second, divisor = late - min(late // 2, ctx.s.T * chunks), cuda.fast_divisor(max(1, chunks), 64)
    parts = blocks(chunks, _ROW_THREADS)
    of_windows = columns, ctypes.c_uint32(len(partial)), ctypes.c_uint32(parts)
    of_first = ctypes.c_int64(0), ctypes.c_int64(second), *divisor
    windowing = len(partial) * parts + blocks(second, _ROW_THREADS * _ZEROS)

    threads = min(_ROW_THREADS, WARP * blocks(chunks, WARP))
    runs = blocks(ctx.s.T, _AT_ONCE)
    of_sums = tokens, columns, ctypes.c_uint32(runs), ctypes.c_uint32(parts)
    of_second = ctypes.c_int64(second), ctypes.c_int64(late), *divisor
    summing = runs * parts + (blocks(late - second, threads * _ZEROS) if threads else 0)

    def launch(t: Tensors) -> None:
        grouped = t.ids, order, ranges, t.dweight, tokens, vocabulary
        group(grouping, _GROUP_BLOCK, *grouped, *of_ids, *of_early, shared=4 * bins)
        windows(windowing, _ROW_THREADS, t.dy, order, ranges, partial, t.dweight, *of_windows, *of_first)
        sums(summing, threads, t.dy, order, ranges, partial, t.dweight, *of_sums, *of_second)

    return launch
