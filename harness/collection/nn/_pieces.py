"""Tables of pieces of tensors for kernels that work on whole lists, made so that a captured graph can write them.

harness/collection/ops/lists/_tables.py says what a row of the table holds. How tensors are cut depends on their sizes
alone, and is copied to the device once. Addresses change, and differ in a graph: they are arguments of kernels that
write them into the table, so that no copy from the host is needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.collection.nn._kernels import capturing
from harness.collection.nn._memory import KEPT
from harness.collection.ops.lists._tables import Pieces

_data_ptr = Tensor.data_ptr
_CAPTURED: list[PieceLayout] = []
"""Layouts that graphs read. They stay, since nobody tells when a graph ends."""
KEPT.append(_CAPTURED.clear)


class PieceLayout:
    """How tensors of some sizes are cut. It lies on a device, and never changes.

    counts: elements of each tensor. before: for each, elements between the pack's begin and its own begin. block:
    elements of a piece for a block. The last number of a row is the piece's end, shifted by `shift` bits, and the bits
    below it are its begin.
    """

    def __init__(
        self, counts: Sequence[int], before: Sequence[int], block: int, device: torch.device, *, shift: int
    ) -> None:
        import numpy as np

        heads = np.array(before, np.int64)
        pieces = Pieces.of(np.array(counts, np.int64) + heads, block)
        begins = np.where(pieces.start == 0, heads[pieces.owner], 0)
        rows = pieces.rows([begins | pieces.length << shift])
        self.tensors, self.pieces = len(counts), len(pieces.owner)
        self.rows, self.blocks, self.whole = len(rows.numbers), rows.blocks, rows.whole
        self.owner, self.place, self.last = (
            torch.from_numpy(column).to(device)
            for column in (pieces.owner, pieces.start - heads[pieces.owner], rows.numbers[: self.pieces, 0].copy())
        )

        self._places: dict[int, Tensor] = {}

    def places(self, size: int) -> Tensor:
        """Bytes between a tensor's begin and each of its pieces. size: of an element."""
        if size not in self._places:
            self._places[size] = self.place * size
        return self._places[size]

    def table(self, lists: int) -> PieceTable:
        """A new table for so many lists of tensors."""
        return PieceTable(self, lists)


class PieceTable:
    """The rows (rows, lists + 1) that a kernel reads: an address for each list, and the piece's begin and end."""

    def __init__(self, layout: PieceLayout, lists: int) -> None:
        self.layout = layout
        self.rows = layout.last.new_zeros(layout.rows, lists + 1)
        self.rows[: layout.pieces, lists] = layout.last
        self._bases = layout.last.new_zeros(lists, layout.tensors)
        self._known: list[list[int]] = [[] for _ in range(lists)]
        self._conditional = False

    def point(self, column: int, tensors: Sequence[Tensor], addresses: list[int] | None = None) -> None:
        """Write the addresses of a list's tensors, unless the table has them. addresses: if the caller knows them.

        Raises RuntimeError for tensors of another device than the table's, and for tensors without memory of their own.
        """
        if addresses is None:
            addresses = addresses_of(tensors)
        if addresses == self._known[column]:
            return
        _check(tensors, addresses, self.rows.device)
        self._known[column] = addresses
        layout, bases = self.layout, self._bases[column]
        if capturing():
            # A copy from the host would have the host's numbers of the time of each replay.
            bases.zero_()
            torch._foreach_add_([*bases.unbind()], addresses)
        else:
            bases.copy_(torch.frombuffer(array("q", addresses), dtype=torch.int64), non_blocking=True)
        places = layout.places(tensors[0].element_size())
        torch.add(bases.index_select(0, layout.owner), places, out=self.rows[: layout.pieces, column])

    def only_if(self, wanted: Tensor | None) -> None:
        """Make all pieces empty if `wanted`, True or False on the device, is False; None: it is True.

        All pieces must begin at 0.
        """
        ends = self.rows[: self.layout.pieces, -1]
        if wanted is not None:
            torch.mul(self.layout.last, wanted, out=ends)
        elif self._conditional:
            ends.copy_(self.layout.last)
        self._conditional = wanted is not None


def addresses_of(tensors: Sequence[Tensor]) -> list[int]:
    """Where the tensors begin in memory."""
    return list(map(_data_ptr, tensors))


def _check(tensors: Sequence[Tensor], addresses: Sequence[int], device: torch.device) -> None:
    if {*map(Tensor.get_device, tensors)} == {device.index if device.type == "cuda" else -1} and all(addresses):
        return
    for tensor, address in zip(tensors, addresses, strict=True):
        if tensor.device != device:
            raise RuntimeError(f"a tensor of a list lies on {tensor.device}, other tensors on {device}; move it there")
        if not address and tensor.numel():
            kind = type(tensor).__name__
            raise RuntimeError(f"a tensor of a list is a {kind} without memory of its own; give what it consists of")


def table_for(layout: PieceLayout, lists: int, kept: Callable[[], PieceTable]) -> PieceTable:
    """The table that a call is to use: the kept one, or a new one of the graph that is being captured."""
    if not capturing():
        return kept()
    if layout not in _CAPTURED:
        _CAPTURED.append(layout)
    return layout.table(lists)
