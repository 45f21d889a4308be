"""Attention of one new token on a CPU: an infinite value, and scores that grow."""

from __future__ import annotations

import math

import pytest

from tests.collection.conftest import case_of
from tests.collection.emulation import Gpu, compiler, complaint


@pytest.mark.parametrize("tokens", [257, pytest.param(1030, marks=pytest.mark.slow)])
def test_an_infinite_value_makes_infinities_and_no_nan(catalogue, emulated_folder, tokens):
    compiler()
    op = catalogue["decode_attention"]

    def change(t):
        t.values[0, 0, tokens - 1, 5] = math.inf
        t.q.mul_(0.01)  # so that no share is rounded to 0

    gpu = Gpu(emulated_folder, multiprocessors=132)
    case = case_of(op, "tuned", "bfloat16", {"B": 1, "H": 4, "G": 1, "T": tokens, "D": 64})
    assert complaint(gpu, op, case, change=change) is None


def test_sums_shrink_when_a_later_score_is_much_larger(catalogue, emulated_folder):
    compiler()
    op = catalogue["decode_attention"]

    def change(t):
        t.q.fill_(1.0)
        t.keys.zero_()
        t.keys[:, :, 128:] = 12 * math.log(2) / 8  # from the second step of each of eight warps on, powers are 2^12
        t.values[:, :, :128] *= 2.0**12  # so that the first steps count as much

    gpu = Gpu(emulated_folder, multiprocessors=1)
    case = case_of(op, "tuned", "bfloat16", {"B": 1, "H": 4, "G": 1, "T": 257, "D": 64})
    assert complaint(gpu, op, case, change=change) is None
