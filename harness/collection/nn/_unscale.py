"""Gradients multiplied by 1 / scale and checked, in one launch for the whole list."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from harness import cuda
from harness.collection.nn._kernels import of_lists, on
from harness.collection.nn._pieces import PieceLayout, PieceTable, table_for
from harness.collection.ops.elementwise import CUDA_TYPE, PACK_BYTES
from harness.collection.ops.lists import unscale
from harness.collection.ops.lists._tables import BLOCK

_LISTS = 64  # of which the tables are kept, the last used ones


@torch.no_grad()  # type: ignore[untyped-decorator]
def unscale_(grads: Iterable[Tensor], inv_scale: Tensor, found_inf: Tensor) -> None:
    """Multiply gradients in place by `inv_scale`; set `found_inf` to 1 if an element of them is infinite or NaN.

    inv_scale, found_inf: one element each, float32, on the device of the gradients. Products are made in float32 and
    rounded once, as torch._amp_foreach_non_finite_check_and_unscale_ does. The host doesn't wait. A list whose sizes
    are new takes a copy to the device, so call this once before a graph is captured.
    Raises ValueError for gradients of another device, or other numbers than these.
    """
    for number in (inv_scale, found_inf):
        if number.numel() != 1 or number.dtype != torch.float32 or number.device != found_inf.device:
            raise ValueError(f"inv_scale and found_inf must be a float32 each on one device, not {number!r}")
    by_type: defaultdict[torch.dtype, list[Tensor]] = defaultdict(list)
    others = []
    for grad in grads:
        if grad.device != found_inf.device:
            raise ValueError(f"a gradient lies on {grad.device}, found_inf on {found_inf.device}")
        if grad.is_cuda and type_of(grad) in CUDA_TYPE and is_dense(grad):
            by_type[grad.dtype].append(grad)
        else:
            others.append(grad)
    for members in by_type.values():
        _by_kernel(members, inv_scale, found_inf)
    for grad in others:
        torch._amp_foreach_non_finite_check_and_unscale_([grad], found_inf, inv_scale)


def type_of(tensor: Tensor) -> str:
    """The catalogue's name of a tensor's type."""
    return str(tensor.dtype).removeprefix("torch.")


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements lie one after the other in memory, in one of the usual orders."""
    orders = [torch.contiguous_format, *([torch.channels_last] if tensor.ndim == 4 else [])]
    return any(tensor.is_contiguous(memory_format=order) for order in orders)


def _by_kernel(grads: list[Tensor], inv_scale: Tensor, found_inf: Tensor) -> None:
    first, size = grads[0], grads[0].element_size()
    counts = tuple(grad.numel() for grad in grads)
    before = tuple(grad.data_ptr() % PACK_BYTES // size for grad in grads)
    macros: dict[str, str | int] = {"SCALAR": CUDA_TYPE[type_of(first)], "PACKS": unscale.PACKS}
    with on(first.device):
        layout = _layout(counts, before, size, first.device)
        table = table_for(layout, 1, lambda: _table(layout, cuda.stream_handle()))
        table.point(0, grads)
        kernel = of_lists("unscale", macros)
        kernel(layout.blocks, BLOCK, table.rows, inv_scale, found_inf, ctypes.c_uint32(layout.whole))
    increment_version([*grads, found_inf])


@lru_cache(maxsize=_LISTS)
def _layout(counts: tuple[int, ...], before: tuple[int, ...], size: int, device: torch.device) -> PieceLayout:
    """How lists are cut whose tensors have these sizes."""
    heads = [head if count else 0 for head, count in zip(before, counts, strict=True)]
    return PieceLayout(counts, heads, BLOCK * unscale.PACKS * PACK_BYTES // size, device, shift=32)


@lru_cache(maxsize=_LISTS)
def _table(layout: PieceLayout, _stream: int) -> PieceTable:
    """The table of a stream."""
    return layout.table(1)
