"""Groups of 8 rotated by K places, in a thread's own array: row O19. Twin of local_array.cu."""

from __future__ import annotations

import ctypes
from typing import Any

from harness.collection.ops.elementwise import BLOCK, BOTH, PACK_BYTES, WORD_TYPE, aligned, blocks
from harness.ops import FLOATS, ITEMSIZE, Compile, Context, Launch, Op, Tensor, Tensors, compiled_variants

GROUP = 8


def reference(ctx: Context, t: Tensors) -> dict[str, Any]:
    """The reference is the definition itself: element j of a group goes to j + K, modulo 8."""
    import torch

    y = torch.empty_like(t.x)
    for j in range(GROUP):
        y[:, (j + ctx.s.K) % GROUP] = t.x[:, j]
    return {"y": y}


OP = Op(
    "local_array",
    "y[g, (j + K) % 8] = x[g, j]",
    symbols={"G": "groups of 8 elements", "K": "places that each group is rotated by"},
    defaults={"K": "3"},
    inputs=(Tensor("x", ("G", GROUP)),),
    outputs=(Tensor("y", ("G", GROUP)),),
    reference=reference,
    tolerance=dict.fromkeys(FLOATS, (0.0, 0.0)),
)


@OP.variant("eager", "torch.roll along the groups", role="baseline", devices=BOTH, returns=True)
def eager(ctx: Context) -> Launch:
    """The code that users write today."""
    import torch

    places = ctx.s.K
    return lambda t: (torch.roll(t.x, places, 1),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes a kernel for exactly this shape and K."""
    import torch

    places = ctx.s.K
    function = compiled(lambda x: torch.roll(x, places, 1))
    return lambda t: (function(t.x),)


@OP.variant(
    "runtime_index",
    "a thread's array of 8, indexed by numbers known only at run time",
    role="published",
    rows=("O19",),
)
def runtime_index(ctx: Context) -> Launch:
    """The text before: the arrays land in local memory."""
    return _by_groups(ctx, "local_array_runtime_index", {"RUNTIME_INDEX": 1})


@OP.variant(
    "constant_index",
    "the same array in registers: constant indices, three steps of selections",
    role="published",
    rows=("O19",),
)
def constant_index(ctx: Context) -> Launch:
    """The text after: no memory is used but x and y."""
    return _by_groups(ctx, "local_array_constant_index", {})


@OP.variant("tuned", "one pack a thread, cut out of two by shifts of whole words")
def tuned(ctx: Context) -> Launch:
    """Neighbouring lanes move neighbouring packs, in floats too."""
    return _by_groups(ctx, "local_array_tuned", {}, threads=GROUP * ITEMSIZE[ctx.case.dtype] // PACK_BYTES)


def _by_groups(ctx: Context, entry: str, macros: dict[str, str | int], threads: int = 1) -> Launch:
    """A launch of `threads` threads a group."""
    kernel = ctx.kernel("local_array.cu", entry, {"SCALAR": WORD_TYPE[ITEMSIZE[ctx.case.dtype]], **macros})
    places = ctypes.c_uint32(ctx.s.K % GROUP)

    def launch(t: Tensors) -> None:
        groups = t.x.numel() // GROUP
        in_packs = ctypes.c_int32(aligned(t.x, t.y))
        kernel(blocks(groups * threads), BLOCK, t.x, t.y, ctypes.c_int64(groups), places, in_packs)

    return launch
