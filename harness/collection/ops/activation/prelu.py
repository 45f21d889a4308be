"""PReLU, y = x if x > 0 else alpha[c] * x: rows R1 to R4. Twin of prelu.cu.

A shape of C = 1 is the single-parameter PReLU: element-wise, no broadcast.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.elementwise import (
    BLOCK,
    BOTH,
    CUDA_TYPE,
    INDEX_TYPE,
    LIMIT_32,
    PACK_BYTES,
    aligned,
    blocks,
    needs_32_bits,
    split,
    widened,
)
from harness.ops import ITEMSIZE, Compile, Context, Launch, Op, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

EVICT_FIRST_BELOW = 2**26  # bytes moved: about the L2 of the GPU on which the hint was tried


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The reference computes in higher precision."""
    import torch

    x, alpha = widened(t.x, t.alpha)
    return {"y": torch.where(x > 0, x, alpha.view(1, -1, 1, 1) * x)}


OP = Op(
    "prelu",
    "y = x if x > 0 else alpha[c] * x",
    symbols={"N": "batch", "C": "channels, one alpha each", "H": "height", "W": "width"},
    inputs=(Tensor("x", ("N", "C", "H", "W")), Tensor("alpha", ("C",))),
    outputs=(Tensor("y", ("N", "C", "H", "W")),),
    reference=reference,
)


@OP.variant("eager", "torch.nn.functional.prelu", role="baseline", rows=("R4",), devices=BOTH, returns=True)
def eager(_: Context) -> Launch:
    """The code that users write today."""
    from torch.nn.functional import prelu

    return lambda t: (prelu(t.x, t.alpha),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel for exactly this shape."""
    from torch.nn.functional import prelu

    function = compiled(prelu)
    return lambda t: (function(t.x, t.alpha),)


@OP.variant(
    "naive",
    "one element a thread, 32-bit division and modulo for each",
    role="published",
    rows=("R1",),
    unsupported=needs_32_bits,
)
def naive(ctx: Context) -> Launch:
    """The text starts here."""
    return _naive(ctx, "prelu_naive", ctypes.c_uint32)


@OP.variant("naive64", "naive with 64-bit indexes, for tensors of any size", role="published", rows=("R1",))
def naive64(ctx: Context) -> Launch:
    """What a kernel pays that must count more elements than 32 bits do."""
    return _naive(ctx, "prelu_naive64", ctypes.c_uint64)


@OP.variant(
    "packed",
    "16-byte packs that share one alpha, 32-bit indexes; naive where inner isn't divisible",
    role="published",
    rows=("R2", "R3"),
    unsupported=needs_32_bits,
)
def packed(ctx: Context) -> Launch:
    """The text's optimisation with its fallback: a pack must lie in one channel and start on 16 bytes."""
    return _packed(ctx, "prelu_packed", ctypes.c_uint32, naive(ctx))


@OP.variant(
    "packed64", "packed with 64-bit indexes; naive64 where inner isn't divisible", role="published", rows=("R2", "R3")
)
def packed64(ctx: Context) -> Launch:
    """`packed`, for tensors of any size."""
    return _packed(ctx, "prelu_packed64", ctypes.c_uint64, naive64(ctx))


def _naive(ctx: Context, entry: str, word: type[ctypes.c_uint32 | ctypes.c_uint64]) -> Launch:
    """A launch of the kernel that takes one element a thread, with indexes of this type."""
    kernel = ctx.kernel("prelu.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    inner, channels = word(ctx.s.H * ctx.s.W), word(ctx.s.C)

    def launch(t: Tensors) -> None:
        n = t.x.numel()
        kernel(blocks(n), BLOCK, t.x, t.alpha, t.y, word(n), inner, channels)

    return launch


def _packed(ctx: Context, entry: str, word: type[ctypes.c_uint32 | ctypes.c_uint64], fallback: Launch) -> Launch:
    """A launch of the kernel that takes one pack a thread, with indexes of this type; of `fallback` without packs."""
    pack = PACK_BYTES // ITEMSIZE[ctx.case.dtype]
    inner = ctx.s.H * ctx.s.W if ctx.s.C > 1 else ctx.s.N * ctx.s.H * ctx.s.W
    if inner % pack:
        return fallback
    kernel = ctx.kernel("prelu.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    packs_per_channel, channels = word(inner // pack), word(ctx.s.C)

    def launch(t: Tensors) -> None:
        if not aligned(t.x, t.y):
            fallback(t)
            return
        packs = t.x.numel() // pack
        kernel(blocks(packs), BLOCK, t.x, t.alpha, t.y, word(packs), packs_per_channel, channels)

    return launch


@OP.variant("tuned", "packs at any inner size and alignment, multiplications in place of divisions", rows=("R2", "R4"))
def tuned(ctx: Context) -> Launch:
    """The kernel is compiled for the way that packs meet channels in this shape; see prelu.cu."""
    elements = ctx.s.N * ctx.s.C * ctx.s.H * ctx.s.W
    plans: dict[tuple[int, int], _Tuned] = {}

    def launch(t: Tensors) -> None:
        alignment = t.x.data_ptr() % PACK_BYTES, t.y.data_ptr() % PACK_BYTES
        if alignment not in plans:
            plans[alignment] = _Tuned.plan(ctx, elements, *alignment)
        plans[alignment].launch(t.x, t.alpha, t.y)

    return launch


@dataclass(frozen=True, slots=True)
class _Tuned:
    """A launch of prelu_tuned for one alignment of x and y (addresses modulo 16)."""

    kernel: Any
    grid: int
    scalars: tuple[Any, ...]

    @classmethod
    def plan(cls, ctx: Context, elements: int, x_offset: int, y_offset: int) -> _Tuned:
        size = ITEMSIZE[ctx.case.dtype]
        pack = PACK_BYTES // size
        inner, channels = (ctx.s.H * ctx.s.W, ctx.s.C) if ctx.s.C > 1 else (max(1, elements), 1)
        head, packs, misaligned = split(elements, size, x_offset, y_offset)
        threads = packs + elements - packs * pack
        per_thread = packs_per_thread(threads)
        bits = 32 if elements < LIMIT_32 else 64
        word = ctypes.c_uint32 if bits == 32 else ctypes.c_uint64
        macros: dict[str, str | int] = {
            "SCALAR": CUDA_TYPE[ctx.case.dtype],
            "BLOCK": BLOCK,
            "INDEX": INDEX_TYPE[bits],
            "ALPHA": _alpha_mode(inner, channels, head, pack),
            "SHIFTED": int(misaligned > 0),
            "PACKS": per_thread,
            "EVICT_FIRST": int(2 * elements * size < EVICT_FIRST_BELOW),
        }
        scalars = (
            *(word(elements), word(head), word(packs), ctypes.c_uint32(misaligned)),
            *(word(inner), *cuda.fast_divisor(inner, bits), word(channels), *cuda.fast_divisor(channels, bits)),
        )
        return cls(ctx.kernel("prelu.cu", "prelu_tuned", macros), blocks(-(-threads // per_thread)), scalars)

    def launch(self, x: torch.Tensor, alpha: torch.Tensor, y: torch.Tensor) -> None:
        self.kernel(self.grid, BLOCK, x, alpha, y, *self.scalars)


def packs_per_thread(packs: int) -> int:
    """The packs a thread takes: 2 where that makes the whole grid resident at once and 1 doesn't, else 1."""
    resident = cuda.resident_threads()
    return 2 if resident < packs <= 2 * resident else 1


def _alpha_mode(inner: int, channels: int, head: int, pack: int) -> str:
    if channels == 1:
        return "ALPHA_ONE"
    if inner % pack == 0 and head % pack == 0:
        return "ALPHA_UNIFORM"
    return "ALPHA_STRADDLE" if inner >= pack else "ALPHA_SHORT"
