"""The backward of an embedding: what its kernels are compiled for, and its check."""

from __future__ import annotations

import pytest

from harness.collection.ops.llm.embedding_grad import OP, early_rows, groups_of, window_of
from harness.model import Case
from tests.one_test import one_test

COMPILED = [
    {"T": tokens, "V": 128_256, "H": columns, "padding": padding}
    for tokens, columns, padding in (
        (1000, 4096, "none"),
        (1000, 4096, "first"),
        (1000, 77, "none"),
        (1000, 77, "first"),
        (65_536, 4096, "none"),
        (65_536, 77, "first"),
    )
]


@pytest.mark.parametrize("padding", ["none", "first"])
def test_the_reference_is_what_torch_computes(trial, dtype, padding):
    assert trial("embedding_grad", "eager", dtype, T=60, V=9, H=11, padding=padding).complaint_after_call() is None


def test_the_check_sees_a_token_that_is_missing(trial):
    made = trial("embedding_grad", "eager", "float32", T=60, V=9, H=11)
    row = int(made.inputs.ids[7])
    assert made.complaint_after_call(lambda t: t.dweight[row].sub_(made.inputs.dy[7])) is not None


def test_the_check_sees_a_padding_row_with_a_gradient(trial):
    made = trial("embedding_grad", "eager", "float32", T=60, V=9, H=11, padding="first")
    assert made.complaint_after_call(lambda t: t.dweight[0].add_(1)) is not None


@one_test("vocabulary", [1, 4, 50_257, 262_144, 2_000_000])
def test_blocks_that_group_have_room_for_their_ids(vocabulary):
    blocks, bins = groups_of(vocabulary)
    assert blocks & (blocks - 1) == 0
    assert blocks >= 128
    assert bins <= 8192
    assert blocks * bins >= vocabulary


def test_windows_are_longer_where_tokens_are_many():
    assert window_of(65_536) > window_of(8192) == window_of(1)


@one_test(
    ("tokens", "vocabulary", "row", "rows"),
    [
        (0, 0, 0, 0),
        (8192, 128_256, 8192, 15_360),  # 24 MB, and 12 kB for each token
        (65_536, 32_000, 8192, 32_000),
        (1, 5, 2**30, 0),
    ],
)
def test_rows_get_zeros_early_by_an_estimate(tokens, vocabulary, row, rows):
    assert early_rows(tokens, vocabulary, row) == rows


def test_what_32_bits_cannot_count_is_told():
    reason = OP.variants["tuned"].unsupported(
        Case("embedding_grad", "tuned", "float32", (("T", 2**31), ("V", 1), ("H", 1)))
    )
    assert reason == "counts in 32 bits: T must be below 2147483648"
