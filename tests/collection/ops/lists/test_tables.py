"""Tables of tensors: every element is in one row, rows are where a kernel expects them, a changed list is noticed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

import pytest

from harness.collection.ops.lists._tables import (
    BLOCK,
    SECONDS,
    WARPS,
    Tabled,
    TensorTable,
    packed,
    side_by_side,
    starts,
)
from harness.ops import Tensors
from tests.one_test import one_test

SIZES = [0, 1, 2, 3, 7, 8, 9, 127, 128, 129, 511, 512, 513, 1023, 1025, 2049, 4095, 4096, 4097, 8191, 8192, 8193, 30011]
PACKS = 4


@dataclass
class Fake:
    """As much of a tensor as a table is made of."""

    address: int
    count: int
    size: int = 4

    def data_ptr(self):
        return self.address if self.count else 0

    def numel(self):
        return self.count

    def element_size(self):
        return self.size


def laid_out(sizes, size, offset=0, gap=0):
    """Tensors one after the other, the first `offset` elements behind an aligned address, with gaps between them."""
    tensors, at = [], 2**20 + offset * size
    for count in sizes:
        tensors.append(Fake(at, count, size))
        at += (count + gap) * size
    return tensors


def elements(tensors):
    return Counter(t.address + i * t.size for t in tensors for i in range(t.count))


def covered(rows, size):
    """Each address that the kernel of `packed` works on, as often as it does, by its own arithmetic."""
    found = Counter()
    per_pack = 16 // size
    for place, (base, limits) in enumerate(rows.numbers.tolist()):
        begin, end = limits & 0xFFFFFFFF, limits >> 32
        team = BLOCK if place < rows.whole else BLOCK // WARPS
        assert base % 16 == 0
        assert end <= team * PACKS * per_pack
        for pack in range(team * PACKS):
            first = pack * per_pack
            found.update(base + e * size for e in range(max(first, begin), min(first + per_pack, end)))
    return found


@pytest.mark.slow  # test_tensors_side_by_side_have_each_element_in_one_row, and test_adamw.py
@one_test("size", [2, 4])
@one_test(("offset", "gap"), [(0, 0), (1, 0), (3, 1), (0, 8)])
def test_packs_cover_each_element_once(size, offset, gap):
    tensors = laid_out(SIZES, size, offset, gap)
    rows = packed(tensors, packs=PACKS)
    assert covered(rows, size) == elements(tensors)
    assert len(rows.numbers) == rows.whole + (rows.blocks - rows.whole) * WARPS


@one_test("sizes", [[], [0], [0, 0, 0], [1], [0, 1, 0]])
def test_lists_of_next_to_nothing(sizes):
    tensors = laid_out(sizes, 4)
    assert covered(packed(tensors, packs=PACKS), 4) == elements(tensors)
    assert packed(tensors, packs=PACKS).blocks == bool(sum(sizes))
    assert starts(tensors, 1024).blocks == bool(sum(sizes))
    assert side_by_side(tensors, tensors, elements=8).blocks == bool(sum(sizes))


def test_small_tensors_share_blocks():
    assert packed(laid_out([1] * 10_000, 4), packs=PACKS).blocks == 10_000 / WARPS
    assert packed(laid_out([512] * 10_000, 4), packs=PACKS).blocks == 10_000 / WARPS
    assert packed(laid_out([4096] * 100, 4), packs=PACKS).blocks == 100


def test_more_than_2_to_31_elements_in_all():
    tensors = laid_out([2**31 + 5, 3, 2**30], 2, offset=1)
    rows = packed(tensors, packs=PACKS)
    ends = rows.numbers[:, 1] >> 32
    begins = rows.numbers[:, 1] & 0xFFFFFFFF
    assert int((ends - begins).sum()) == sum(t.count for t in tensors)
    assert rows.numbers[:, 0].max() < tensors[-1].address + 2 * tensors[-1].count
    assert starts(tensors, 20480).numbers[3:].tolist() == [0, 2**31 + 5, 2**31 + 8, 2**31 + 2**30 + 8]


def test_starts_are_the_sums_of_the_sizes_before():
    tensors = laid_out([5, 0, 7], 4)
    rows = starts(tensors, 4)
    assert rows.numbers.tolist() == [tensors[0].address, 0, tensors[2].address, 0, 5, 5, 12]
    assert rows.blocks == 3


def test_tensors_side_by_side_have_each_element_in_one_row():
    lists = laid_out(SIZES, 4, 1), laid_out(SIZES, 2, 3, 5), []
    rows = side_by_side(*lists, elements=8)
    found = Counter(), Counter()
    longest = Counter()
    for place, (one, other, none, length) in enumerate(rows.numbers.tolist()):
        assert none == 0
        longest[place < rows.whole] = max(longest[place < rows.whole], length)
        found[0].update(one + 4 * e for e in range(length))
        found[1].update(other + 2 * e for e in range(length))
    assert found == (elements(lists[0]), elements(lists[1]))
    assert longest == {True: BLOCK * 8, False: BLOCK}


@pytest.fixture
def tables(trial):
    """(ctx, what makes the tables of unscale's gradients): a case with three gradients."""
    ctx = trial("unscale", "eager", "float32", T=3, N=5).ctx
    return ctx, Tabled(partial(packed, packs=PACKS), ("grads",))


def test_a_table_stays_as_long_as_the_tensors_do(tables):
    import torch

    ctx, made = tables
    t = Tensors(grads=[torch.zeros(5) for _ in range(3)])
    first = made.current(ctx, t)
    t.grads = list(t.grads)
    assert made.current(ctx, t) is first
    assert ctx.facts[SECONDS.name] > 0


@pytest.mark.parametrize(
    "change",
    [
        lambda grads: grads[:-1],
        lambda grads: [*grads, grads[0]],
        lambda grads: [*grads[:-1], grads[-1].clone()],
        lambda grads: grads[::-1],
        lambda grads: [],
    ],
    ids=["shorter", "longer", "another tensor", "another order", "empty"],
)
def test_a_change_of_the_list_is_noticed(tables, change):
    import torch

    ctx, made = tables
    t = Tensors(grads=[torch.zeros(5) for _ in range(3)])
    first = made.current(ctx, t)
    t.grads = change(t.grads)
    second = made.current(ctx, t)
    assert second is not first
    assert made.current(ctx, t) is second
    assert torch.equal(second.rows, TensorTable.of(ctx, made.build, t.grads).rows)


def test_the_table_of_a_set_of_buffers_is_there_before_the_first_call(tables):
    import torch

    ctx, made = tables
    t = Tensors(grads=[torch.zeros(5) for _ in range(3)])
    t.table = made.encode(ctx, t)["table"]
    assert made.current(ctx, t) is t.table
