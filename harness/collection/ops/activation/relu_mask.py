"""ReLU that keeps a bit an element for its backward: rows O9 and O11. Twin of relu_mask.cu.

Torch keeps y for the backward and writes no mask, so the forward alone gains nothing by one; relu_training has forward
and backward. The masks of our variants have whole int32 words in the natural order (`_bits`), except for `strided`'s,
whose bytes are in the order that `pack_strided` says. relu_grad reads both.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from harness.collection.ops.bits import WORDS, unpack
from harness.collection.ops.elementwise import BLOCK, BOTH, CUDA_TYPE, PACK_BYTES, aligned, blocks
from harness.model import Work
from harness.ops import FLOATS, ITEMSIZE, Compile, Context, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

NATURAL = Tensor("mask", (WORDS,), "int32")
STRIDED = Tensor("mask", ("cdiv(N, 8)",), "uint8")
GROUP, WARP = 8, 32  # elements of a byte of the mask; lanes, and bits of a word
_WORDS_A_WARP = 8  # of ballot8


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """A selection has no rounding, so the case's precision is exact."""
    return {"y": t.x.clamp(min=0), "mask": t.x > 0}


def work(s: Symbols, size: int) -> Work:
    """Torch's way is the leanest: y, which is written anyway, is its own mask. A mask is traffic beside it."""
    return Work(read=s["N"] * size, written=s["N"] * size)


_Y = Tensor("y", ("N",))
OP = Op(
    "relu_mask",
    "y = relu(x), and what its backward needs: a mask of x > 0, or y itself",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(_Y, Tensor("mask", ("N",), "bool")),
    reference=reference,
    work=work,
    tolerance=dict.fromkeys(FLOATS, (0.0, 0.0)),
)


def pack_strided(mask: torch.Tensor) -> torch.Tensor:
    """Booleans (count,) as uint8 (n,), n = count / 8 rounded up: bit k of byte i is element i + k * n.

    Bits of elements past the last one are zero.
    """
    import torch

    bytes_ = -(-mask.numel() // GROUP)
    padded = torch.zeros(GROUP * bytes_, device=mask.device, dtype=torch.uint8)
    padded[: mask.numel()] = mask
    weights = torch.tensor([[1 << k] for k in range(GROUP)], device=mask.device, dtype=torch.uint8)
    return (padded.view(GROUP, bytes_) * weights).sum(0, dtype=torch.uint8)


def unpack_strided(packed: torch.Tensor, count: int) -> torch.Tensor:
    """The booleans (count,) that `pack_strided` was given."""
    import torch

    places = torch.arange(GROUP, device=packed.device, dtype=torch.uint8).unsqueeze(1)
    return (packed >> places & 1).view(-1)[:count].bool()


def mask_bytes(elements: int) -> int:
    """The bytes of a mask in whole words."""
    return 4 * -(-elements // WARP)


def _signs(_: Context, t: Tensors) -> dict[str, Any]:
    """The backward reads y, which tells what a mask would."""
    return {"mask": t.y > 0}


_Y_ALONE: dict[str, Any] = {"outputs": (_Y,), "decode": _signs}


@OP.variant(
    "eager", "relu(x), whose y is its own mask", role="baseline", rows=("O9",), devices=BOTH, returns=True, **_Y_ALONE
)
def eager(_: Context) -> Launch:
    """What users have: autograd keeps y for the backward."""
    from torch.nn.functional import relu

    return lambda t: (relu(t.x),)


@compiled_variants(OP, "torch.compile of the same", **_Y_ALONE)
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor's kernel for exactly this shape."""
    from torch.nn.functional import relu

    function = compiled(relu)
    return lambda t: (function(t.x),)


def _decode(ctx: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": unpack(t.mask, ctx.s.N)}


def _decode_strided(ctx: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": unpack_strided(t.mask, ctx.s.N)}


_BITS: dict[str, Any] = {"outputs": (_Y, NATURAL), "decode": _decode}


@OP.variant(
    "sequential",
    "8 neighbouring elements a thread, which writes their byte",
    role="published",
    rows=("O11",),
    **_BITS,
)
def sequential(ctx: Context) -> Launch:
    """The text's first way: the bytes that a warp reads at a time aren't contiguous."""
    count = mask_bytes(ctx.s.N)
    return _launcher(ctx, "relu_mask_sequential", threads=count, count=count)


@OP.variant(
    "strided",
    "8 elements a thread, spaced so that a warp reads neighbours; the bits are permuted",
    role="published",
    rows=("O11",),
    outputs=(_Y, STRIDED),
    decode=_decode_strided,
)
def strided(ctx: Context) -> Launch:
    """The text's second way."""
    count = -(-ctx.s.N // GROUP)
    return _launcher(ctx, "relu_mask_strided", threads=count, count=count)


@OP.variant("ballot", "one element a thread, one word a warp by a ballot", role="published", rows=("O11",), **_BITS)
def ballot(ctx: Context) -> Launch:
    """The text's third way."""
    words = -(-ctx.s.N // WARP)
    return _launcher(ctx, "relu_mask_ballot", threads=words * WARP, count=words)


@OP.variant("ballot8", "8 ballots a warp, whose words are one 32-byte write", role="published", rows=("O11",), **_BITS)
def ballot8(ctx: Context) -> Launch:
    """The text's fastest way."""
    words = -(-ctx.s.N // WARP)
    return _launcher(ctx, "relu_mask_ballot8", threads=-(-words // _WORDS_A_WARP) * WARP, count=words)


def _launcher(ctx: Context, entry: str, threads: int, count: int) -> Launch:
    """A launch of a kernel that takes x, y, mask, N and how many bytes or words the mask has."""
    kernel = ctx.kernel("relu_mask.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    grid, n, units = blocks(threads), ctypes.c_int64(ctx.s.N), ctypes.c_int64(count)
    return lambda t: kernel(grid, BLOCK, t.x, t.y, t.mask, n, units)


@OP.variant("tuned", "packs of 16 bytes, whose bits are a byte or half of one", rows=("O9", "O11"), **_BITS)
def tuned(ctx: Context) -> Launch:
    """The bits are in natural order, and accesses as wide as a copy's."""
    kernel = ctx.kernel("relu_mask.cu", "relu_mask_tuned", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    count = mask_bytes(ctx.s.N)
    packs = count * GROUP * ITEMSIZE[ctx.case.dtype] // PACK_BYTES
    grid, n, units = blocks(packs), ctypes.c_int64(ctx.s.N), ctypes.c_int64(count)

    def launch(t: Tensors) -> None:
        kernel(grid, BLOCK, t.x, t.y, t.mask, n, units, ctypes.c_int32(aligned(t.x, t.y)))

    return launch
