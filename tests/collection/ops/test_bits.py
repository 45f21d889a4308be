"""The order of the bits in a mask."""

from __future__ import annotations

from harness.collection.ops.bits import pack, unpack
from tests.one_test import one_test


def test_bit_i_of_word_w_is_element_32_w_plus_i():
    import torch

    for element in (0, 1, 7, 8, 31, 32, 63, 64):
        mask = torch.zeros(70, dtype=torch.bool)
        mask[element] = True
        words = [int(word) % 2**32 for word in pack(mask)]
        assert words == [1 << element % 32 if word == element // 32 else 0 for word in range(3)]


@one_test("count", [0, 1, 31, 32, 33, 1001])
def test_unpack_undoes_pack(count):
    import torch

    mask = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.3
    assert torch.equal(unpack(pack(mask), count), mask)
