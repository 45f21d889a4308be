"""Attention of one new token on a CPU: an infinite value, where the parts of a sequence are no whole batch of loads."""

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
