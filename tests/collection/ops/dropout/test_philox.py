"""The generator's torch twin against the vectors that its authors publish, and the streams that are made of it."""

from __future__ import annotations

import ctypes
import shutil

import pytest

from harness import cuda
from harness.collection.ops.dropout._philox import numbers, philox
from harness.cuda.compile import compile_verbose
from harness.paths import data
from tests.rare import rare

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


# What the kernels' Philox gives for counters and a key, and which elements it keeps for a threshold.
SOURCE = """
#include "philox.cuh"

extern "C" __global__ void words(const uint4* counters, uint4* out, unsigned low, unsigned high) {
  out[threadIdx.x] = philox(counters[threadIdx.x], make_uint2(low, high));
}

extern "C" __global__ void kept(unsigned* narrow, unsigned* wide, unsigned long long seed, unsigned long long call,
                                unsigned threshold_16, unsigned threshold_24) {
  const unsigned group = blockIdx.x * blockDim.x + threadIdx.x;
  narrow[group] = keep_8({seed, call}, group, threshold_16);
  wide[group] = keep_4({seed, call}, group, threshold_24);
}
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    file = tmp_path_factory.mktemp("philox") / "philox.cu"
    file.write_text(SOURCE)
    shutil.copy(data("kernels") / "dropout" / "philox.cuh", file.parent)
    return file


@pytest.mark.gpu
@pytest.mark.parametrize(("counter", "key", "words"), KNOWN, ids=["zeros", "ones", "pi"])
def test_kernels_give_the_published_vectors(source, counter, key, words):
    import torch

    counters = torch.tensor(counter, device="cuda").to(torch.int32).repeat(32, 1)
    out = torch.empty_like(counters)
    cuda.load(source, "words", {})(1, 32, counters, out, ctypes.c_uint32(key[0]), ctypes.c_uint32(key[1]))
    assert [[word % 2**32 for word in row] for row in out.tolist()] == [words] * 32


@pytest.mark.gpu
def test_kernels_keep_what_is_below_the_threshold(source):
    """Every kind of threshold, as the narrow stream compares bit 15 apart from the other bits; 2**bits keeps all."""
    import torch

    seed, call, groups = 2**40 + 7, 2**50 + 9, 2**16
    masks = torch.empty(2, groups, device="cuda", dtype=torch.int32)
    below_16 = numbers(seed, call, torch.arange(8 * groups, device="cuda"), 16).view(groups, 8)
    below_24 = numbers(seed, call, torch.arange(4 * groups, device="cuda"), 24).view(groups, 4)
    scalars = ctypes.c_uint64(seed), ctypes.c_uint64(call)
    for narrow in (0, 1, 2, 6554, 2**15 - 1, 2**15, 2**15 + 1, 58982, 2**16 - 1, 2**16):
        wide = narrow << 8
        thresholds = ctypes.c_uint32(narrow), ctypes.c_uint32(wide)
        cuda.load(source, "kept", {})(groups // 256, 256, masks[0], masks[1], *scalars, *thresholds)
        for bits, below in ((masks[0], below_16 < narrow), (masks[1], below_24 < wide)):
            weights = torch.tensor([1 << j for j in range(below.shape[1])], device="cuda")
            assert torch.equal(bits.long(), (below * weights).sum(1)), (narrow, below.shape[1])


@pytest.mark.parametrize("arch", [rare("sm_80"), "sm_90", rare("sm_100")])
def test_the_test_kernels_compile(source, arch):
    compile_verbose(source, {}, arch)
