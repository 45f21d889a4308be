"""Gradients multiplied by 1 / scale and checked, in one launch for the whole list."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from operator import attrgetter, or_

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from harness import cuda
from harness.collection.nn._kernels import of_lists, on
from harness.collection.nn._memory import KEPT
from harness.collection.nn._operators import are_distributed
from harness.collection.nn._pieces import PieceLayout, PieceTable, addresses_of, table_for
from harness.collection.ops.elementwise import CUDA_TYPE, PACK_BYTES
from harness.collection.ops.lists import unscale
from harness.collection.ops.lists._tables import BLOCK

# To map these over a list takes less time than a loop.
_dtype, _is_contiguous, _get_device, _numel = attrgetter("dtype"), Tensor.is_contiguous, Tensor.get_device, Tensor.numel
_KERNELS = frozenset(getattr(torch, name) for name in CUDA_TYPE)
"""Types that kernels take."""
_LISTS = 64  # of which the tables are kept, the last used ones


@torch.no_grad()  # type: ignore[untyped-decorator]
def unscale_(grads: Iterable[Tensor], inv_scale: Tensor, found_inf: Tensor) -> None:
    """Multiply gradients in place by `inv_scale`; set `found_inf` to 1 if an element of them is infinite or NaN.

    inv_scale, found_inf: one element each, float32, on the device of the gradients. Products are made in float32 and
    rounded once, as torch._amp_foreach_non_finite_check_and_unscale_ does. The host doesn't wait. A list whose sizes
    are new takes a copy to the device, so call this once before a graph is captured.
    Raises ValueError for gradients of another device, distributed gradients, or other numbers than these.

    >>> gradient, found_inf = torch.tensor([2.0, 4.0]), torch.zeros(())
    >>> nn.unscale_([gradient], torch.tensor(0.5), found_inf)
    >>> gradient, found_inf
    (tensor([1., 2.]), tensor(0.))
    """
    for number in (inv_scale, found_inf):
        if number.numel() != 1 or number.dtype != torch.float32 or number.device != found_inf.device:
            raise ValueError(f"inv_scale and found_inf must be a float32 each on one device, not {number!r}")
    grads = [*grads]
    if are_distributed(grads):
        raise ValueError("unscale_ of harness.nn takes no distributed gradients; use GradScaler")
    by_type: Mapping[torch.dtype, list[Tensor]]
    dtypes = set(map(_dtype, grads))
    if len(dtypes) == 1 and dtypes <= _KERNELS and found_inf.is_cuda and all(map(_is_contiguous, grads)):
        by_type, others = {grads[0].dtype: grads}, list[Tensor]()
    else:
        by_type, others = _apart(grads)
    index = found_inf.get_device()
    if any(device != index for device in map(_get_device, grads)):
        device = next(grad.device for grad in grads if grad.device != found_inf.device)
        raise ValueError(f"a gradient lies on {device}, found_inf on {found_inf.device}")
    for members in by_type.values():
        _by_kernel(members, inv_scale, found_inf)
    for grad in others:
        torch._amp_foreach_non_finite_check_and_unscale_([grad], found_inf, inv_scale)


def _apart(grads: Sequence[Tensor]) -> tuple[Mapping[torch.dtype, list[Tensor]], list[Tensor]]:
    """The gradients that a kernel can do, by type, and all others."""
    by_type: defaultdict[torch.dtype, list[Tensor]] = defaultdict(list)
    others = []
    for grad in grads:
        if grad.is_cuda and grad.dtype in _KERNELS and is_dense(grad):
            by_type[grad.dtype].append(grad)
        else:
            others.append(grad)
    return by_type, others


def type_of(tensor: Tensor) -> str:
    """The catalogue's name of a tensor's type."""
    return str(tensor.dtype).removeprefix("torch.")


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements lie one after the other in memory, in one of the usual orders."""
    last = torch.channels_last
    return bool(tensor.is_contiguous() or (tensor.ndim == 4 and tensor.is_contiguous(memory_format=last)))


def are_dense(tensors: Sequence[Tensor]) -> bool:
    """Whether each of the tensors is dense."""
    return all(map(_is_contiguous, tensors)) or all(map(is_dense, tensors))


def _by_kernel(grads: list[Tensor], inv_scale: Tensor, found_inf: Tensor) -> None:
    first, size = grads[0], grads[0].element_size()
    addresses = addresses_of(grads)
    begins = reduce(or_, addresses) % PACK_BYTES
    before = tuple([address % PACK_BYTES // size for address in addresses]) if begins else (0,) * len(grads)
    counts = tuple(map(_numel, grads))
    macros: dict[str, str | int] = {"SCALAR": CUDA_TYPE[type_of(first)], "PACKS": unscale.PACKS}
    with on(first.device):
        layout = _layout(counts, before, size, first.device)
        table = table_for(layout, 1, lambda: _table(layout, cuda.stream_handle()))
        table.point(0, grads, addresses)
        kernel = of_lists(unscale.OP, macros)
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


KEPT += [_table.cache_clear, _layout.cache_clear]
