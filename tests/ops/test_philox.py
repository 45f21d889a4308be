"""The generator's torch twin against the vectors that its authors publish, and the streams that are made of it."""

from __future__ import annotations

import pytest

from harness.ops._philox import numbers, philox

# Random123's known-answer tests, philox4x32 with 10 rounds: counter, key, words.
KNOWN = [
    ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN, ids=["zeros", "ones", "pi"])
def test_published_vectors(counter, key, words):
    import torch

    assert [int(word) for word in philox([torch.tensor(value) for value in counter], key)] == words


def test_numbers_are_halves_and_upper_bits_of_the_words():
    import torch

    words = KNOWN[0][2]
    first_eight = numbers(0, 0, torch.arange(8), 16).tolist()
    assert first_eight == [half for word in words for half in (word & 0xFFFF, word >> 16)]
    assert numbers(0, 0, torch.arange(4), 24).tolist() == [word >> 8 for word in words]


def test_seed_call_and_index_use_all_their_64_bits():
    import torch

    index = torch.tensor([5, 2**40 + 5])
    base = numbers(1, 2, index, 24)
    assert base[0] != base[1]
    assert not torch.equal(numbers(1 + 2**33, 2, index, 24), base)
    assert not torch.equal(numbers(1, 2 + 2**33, index, 24), base)
    # The counter of the reference's third vector, as group and call; its key as seed.
    counter, (low, high), words = KNOWN[2]
    element = torch.tensor([4 * (counter[0] + (counter[1] % 2**29 << 32))])
    got = numbers(low + (high << 32), counter[2] + (counter[3] << 32), element, 24)
    lower = philox([torch.tensor(v) for v in (counter[0], counter[1] % 2**29, *counter[2:])], (low, high))
    assert int(got) == int(lower[0]) >> 8
    assert int(lower[0]) != words[0]
