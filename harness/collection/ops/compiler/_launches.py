"""Launches that ops on plain vectors share. The file of an op has the kernels; all tensors have the same length."""

from __future__ import annotations

import ctypes

from harness.collection.ops.elementwise import BLOCK, CUDA_TYPE, PACK_BYTES, aligned, blocks
from harness.ops import ITEMSIZE, Context, Launch, Tensors


def by_elements(ctx: Context, entry: str, items: int = 1) -> Launch:
    """A launch of a kernel of <op>.cu whose threads have `items` elements each."""
    kernel, names = ctx.kernel(f"{ctx.op.name}.cu", entry, _macros(ctx)), _names(ctx)

    def launch(t: Tensors) -> None:
        n = t.x.numel()
        kernel(blocks(n, BLOCK * items), BLOCK, *(getattr(t, name) for name in names), ctypes.c_int64(n))

    return launch


def by_packs(ctx: Context, entry: str) -> Launch:
    """A launch of a kernel of <op>.cu whose threads have a pack each, or the elements of one at unaligned addresses."""
    kernel, names = ctx.kernel(f"{ctx.op.name}.cu", entry, _macros(ctx)), _names(ctx)
    pack = PACK_BYTES // ITEMSIZE[ctx.case.dtype]

    def launch(t: Tensors) -> None:
        tensors, n = [getattr(t, name) for name in names], t.x.numel()
        kernel(blocks(n, BLOCK * pack), BLOCK, *tensors, ctypes.c_int64(n), ctypes.c_int32(aligned(*tensors)))

    return launch


def _names(ctx: Context) -> list[str]:
    return [tensor.name for tensor in (*ctx.op.inputs, *ctx.op.outputs)]


def _macros(ctx: Context) -> dict[str, str | int]:
    return {"SCALAR": CUDA_TYPE[ctx.case.dtype], "BLOCK": BLOCK}
