"""The backward of an embedding, by atomics and by grouped tokens: beyond the texts. Twin of embedding_grad.cu.

dy: (T, H), a row for each token; ids: (T,), int64; dweight: (V, H).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness import cuda
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

_WINDOW, _LONG_WINDOW = 32, 64  # tokens of one id that a block sums before: of few tokens, and of many
_MANY = 2**15  # tokens, from which on they are many
_ROW_THREADS, _ROW_BLOCKS = 256, 4  # threads of a block that sums, and such blocks of a multiprocessor
_GROUP_BLOCK = 1024  # threads of a block that groups; as in embedding_grad.cu
_MOST_BINS = 8192  # ids of a block that groups: bins of shared memory, of 4 bytes
_FEWEST_GROUPS = 128  # blocks that group, at least
_MOST = 2**31  # tokens, ids and columns that kernels count in 32 bits
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


@OP.variant("tuned", "tokens grouped by id in one launch, then each row summed and written once", unsupported=too_many)
def tuned(ctx: Context) -> Launch:
    """The sums are in the order of the tokens, so results repeat bit by bit."""
    grouped = _Grouped(ctx)
    size = PACK_BYTES // ITEMSIZE[ctx.case.dtype]
    single = _summed(ctx, grouped, singles=True)
    packed = single if ctx.s.H % size else _summed(ctx, grouped, singles=False)

    def launch(t: Tensors) -> None:
        grouped(t)
        (packed if aligned(t.dy, t.dweight) else single)(t)

    return launch


class _Grouped:
    """Groups the tokens of a call by their ids, into memory that all sets of buffers share."""

    def __init__(self, ctx: Context) -> None:
        import torch

        def integers(count: int) -> torch.Tensor:
            return torch.empty(count, dtype=torch.int32, device=ctx.device)

        self.order, self.begin, self.end, self.counted = map(integers, (ctx.s.T, ctx.s.V, ctx.s.V, 1))
        self._kernel = _kernel(ctx, "group")
        self._grid, bins = groups_of(ctx.s.V)
        self._shared = 4 * bins
        self._sizes = [ctypes.c_uint32(n) for n in (ctx.s.T, ctx.s.V, self._grid.bit_length() - 1, bins)]

    def __call__(self, t: Tensors) -> None:
        arguments = t.ids, self.order, self.begin, self.end, self.counted, *self._sizes
        self._kernel(self._grid, _GROUP_BLOCK, *arguments, shared=self._shared)


def _summed(ctx: Context, grouped: _Grouped, *, singles: bool) -> Launch:
    """The sums of long runs of one id, then the rows of dweight."""
    import torch

    windows, columns = ctx.s.T // window_of(ctx.s.T), ctypes.c_uint32(ctx.s.H)
    chunks = ctx.s.H if singles else ctx.s.H * ITEMSIZE[ctx.case.dtype] // PACK_BYTES
    options = {"SINGLES": int(singles)}
    of_windows, of_rows = _kernel(ctx, "windows", **options), _kernel(ctx, "rows", **options)
    partial = torch.empty((windows, ctx.s.H), dtype=torch.float32, device=ctx.device) if windows else None
    grid = windows, blocks(chunks, _ROW_THREADS)
    rows = min(ctx.s.V, cuda.multiprocessors() * _ROW_BLOCKS) if ctx.s.H else 0
    sizes = ctypes.c_uint32(ctx.s.V), columns

    def launch(t: Tensors) -> None:
        of_windows(grid, _ROW_THREADS, t.dy, t.ids, grouped.order, grouped.counted, partial, columns)
        arguments = t.dy, grouped.order, grouped.begin, grouped.end, partial, t.dweight
        of_rows(rows, _ROW_THREADS, *arguments, *sizes)

    return launch
