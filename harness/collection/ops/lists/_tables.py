"""Tables that tell a kernel where the tensors of lists lie: how tensors are cut, and when a table must be made anew.

A table lies in device memory. It is made when a set of buffers is, and stays as long as the lists hold the same
tensors: the addresses aren't copied to the device for each call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any

from harness import metrics, units
from harness.collection.ops.elementwise import PACK_BYTES
from harness.ops import Context, Tensors

if TYPE_CHECKING:
    import numpy as np
    import torch

WARP = 32
WARPS = 8
BLOCK = WARP * WARPS
SECONDS = metrics.fact(
    "table_seconds",
    "new table",
    units.SECONDS,
    "what a change of the list costs: a new table on the host, and its copy",
)


@dataclass(frozen=True, slots=True)
class Rows:
    """What a table has: `numbers`, int64, and how many `blocks` a kernel needs for it.

    whole: the blocks that take one row each. In all other blocks each warp takes a row, so that small tensors and the
    ends of large tensors leave no threads idle.
    """

    numbers: np.ndarray
    blocks: int
    whole: int = 0


Build = Callable[..., Rows]
"""Makes the rows of one list, or of several lists of equally many tensors."""


@dataclass(frozen=True, slots=True)
class TensorTable:
    """Rows on the device, and the lists that they are for. It keeps the tensors, so no other can have their names."""

    rows: torch.Tensor
    blocks: int
    whole: int
    lists: tuple[tuple[torch.Tensor, ...], ...]

    @classmethod
    def of(cls, ctx: Context, build: Build, *lists: Sequence[torch.Tensor]) -> TensorTable:
        """A new table. What it took is reported; the host waits for the copy to the device."""
        import torch

        begin = time.perf_counter()
        made = build(*lists)
        rows = torch.from_numpy(made.numbers).to(ctx.device)
        ctx.report(SECONDS.name, time.perf_counter() - begin)
        return cls(rows, made.blocks, made.whole, tuple(map(tuple, lists)))

    def fits(self, *lists: Sequence[torch.Tensor]) -> bool:
        """Whether these lists hold the tensors that the table is for: the same objects in the same order.

        Their addresses aren't asked for, since that takes longer. So a tensor whose memory is exchanged
        while the object stays, by `set_`, `resize_` or `.data =`, needs a new table without being noticed.
        """
        return all(
            len(given) == len(kept) and all(map(is_, given, kept))
            for given, kept in zip(lists, self.lists, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Tabled:
    """The tables of a variant. `names`: the lists in the order in which `build` takes them."""

    build: Build
    names: tuple[str, ...]

    def encode(self, ctx: Context, t: Tensors) -> dict[str, Any]:
        """The table of a set of buffers, before any call: a graph that is captured can't make one."""
        return {"table": TensorTable.of(ctx, self.build, *self._lists(t))}

    def current(self, ctx: Context, t: Tensors) -> TensorTable:
        """The table of t, made anew where there is none or where the lists have changed since."""
        lists = self._lists(t)
        table: TensorTable | None = getattr(t, "table", None)
        if table is None or not table.fits(*lists):
            table = t.table = TensorTable.of(ctx, self.build, *lists)
        return table

    def _lists(self, t: Tensors) -> list[Sequence[torch.Tensor]]:
        return [getattr(t, name) for name in self.names]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of tensors: of which tensor each is, where it starts in it, and its length, all in elements.

    The first `whole` pieces are for a block each, all other pieces for a warp each.
    """

    owner: np.ndarray
    start: np.ndarray
    length: np.ndarray
    whole: int

    @classmethod
    def of(cls, lengths: np.ndarray, block: int) -> Pieces:
        """Cut tensors of these lengths into pieces of `block` elements, and what is left into pieces of a warp."""
        import numpy as np

        warp = block // WARPS
        full = lengths // block
        left = lengths - full * block
        owners, starts = _pieces(full)
        ends, more = _pieces(-(-left // warp))
        owner = np.concatenate([owners, ends])
        start = np.concatenate([starts * block, full[ends] * block + more * warp])
        longest = np.where(np.arange(len(owner)) < len(owners), block, warp)
        return cls(owner, start, np.minimum(longest, lengths[owner] - start), len(owners))

    def rows(self, columns: Sequence[np.ndarray]) -> Rows:
        """A row for each piece, with these columns. Rows of zeros fill the last block."""
        import numpy as np

        count = len(self.owner)
        shared = -(-(count - self.whole) // WARPS)
        numbers = np.zeros((self.whole + shared * WARPS, len(columns)), np.int64)
        numbers[:count] = np.stack(columns, axis=1)
        return Rows(numbers, self.whole + shared, self.whole)


def _pieces(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(owner, place): for each tensor the number of entries that `counts` gives, with their places 0, 1, 2 ..."""
    import numpy as np

    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    return owner, np.arange(len(owner)) - first[owner]


def _numbers(values: Sequence[int]) -> np.ndarray:
    import numpy as np

    return np.array(values, np.int64)


def starts(tensors: Sequence[torch.Tensor], a_block: int) -> Rows:
    """The text's table: the address of each tensor, then where each starts in all elements together, and their number.

    a_block: elements that a block takes.
    """
    import numpy as np

    addresses = _numbers([tensor.data_ptr() for tensor in tensors])
    ends = np.cumsum(_numbers([tensor.numel() for tensor in tensors]))
    total = int(ends[-1]) if len(ends) else 0
    return Rows(np.concatenate([addresses, [0], ends]), -(-total // a_block))


def packed(tensors: Sequence[torch.Tensor], packs: int) -> Rows:
    """A row for each piece of the tensors, which has an address and two numbers of 32 bits.

    The address is the piece's first pack's. The numbers say where its elements begin and end, counted from there.
    Packs lie on multiples of 16 bytes, whatever the address of the tensor: its first and its last pack may have
    elements that aren't its own. packs: of a thread.
    """
    import numpy as np

    if not tensors:
        return Rows(np.zeros((0, 2), np.int64), 0)
    size = tensors[0].element_size()
    addresses = _numbers([tensor.data_ptr() for tensor in tensors])
    counts = _numbers([tensor.numel() for tensor in tensors])
    before = np.where(counts > 0, addresses % PACK_BYTES // size, 0)
    pieces = Pieces.of(counts + before, BLOCK * packs * PACK_BYTES // size)
    begins = np.where(pieces.start == 0, before[pieces.owner], 0)
    places = (addresses - before * size)[pieces.owner] + pieces.start * size
    return pieces.rows([places, begins | pieces.length << 32])


def side_by_side(*lists: Sequence[torch.Tensor], elements: int) -> Rows:
    """A row for each piece of tensors that are worked on together, element by element.

    It has the address of the piece in each list, 0 for a list without tensors, and the length of the piece. The first
    list has tensors wherever another one does. elements: of a thread.
    """
    import numpy as np

    pieces = Pieces.of(_numbers([tensor.numel() for tensor in lists[0]]), BLOCK * elements)
    columns = [np.zeros_like(pieces.start) for _ in lists]
    for column, tensors in zip(columns, lists, strict=True):
        if tensors:
            addresses = _numbers([tensor.data_ptr() for tensor in tensors])
            column[:] = addresses[pieces.owner] + pieces.start * tensors[0].element_size()
    return pieces.rows([*columns, pieces.length])
