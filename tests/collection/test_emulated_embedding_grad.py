"""The backward of an embedding on a CPU, for ids that break kernels: all alike, all different, none that counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness import check
from harness.collection.ops.llm import embedding_grad
from tests.collection.conftest import case_of
from tests.collection.emulation import Gpu, compiler, complaint
from tests.rare import rare

SEED = torch.Generator().manual_seed(1)
# (dtype, sizes and choices, ids, elements by which tensors begin past 16 bytes): windows of one id with tokens before
# and behind them, and none; ids whose places begin and end anywhere among the places of a block; rows of packs and of
# single elements, of more of them than a block has threads, and of fewer.
CASES = [
    ("bfloat16", {"T": 300, "V": 5, "H": 72}, lambda _: torch.cat((torch.arange(5), torch.full((295,), 3))), {}),
    rare("float32", {"T": 32, "V": 3, "H": 8}, lambda _: torch.full((32,), 2), {}),
    rare("float32", {"T": 1300, "V": 2, "H": 12}, lambda sizes: torch.arange(sizes["T"]) % 2, {}),
    rare("float16", {"T": 40, "V": 40, "H": 264}, lambda _: torch.arange(40).flip(0), {}),
    rare("bfloat16", {"T": 90, "V": 400, "H": 2056}, lambda _: torch.arange(90) ** 2 % 400, {}),
    rare("bfloat16", {"T": 70, "V": 3, "H": 2056}, lambda _: torch.full((70,), 1), {}),
    rare("float16", {"T": 200, "V": 9, "H": 77, "padding": "first"}, lambda _: torch.arange(200) % 3, {}),
    rare("bfloat16", {"T": 100, "V": 9, "H": 72, "padding": "first"}, lambda _: torch.zeros(100), {}),
    rare("bfloat16", {"T": 100, "V": 9, "H": 72}, lambda _: torch.arange(100) // 30, {"dy": 1}),
    rare("bfloat16", {"T": 100, "V": 9, "H": 72}, lambda _: torch.arange(100) // 30, {"dweight": 1}),
    rare("bfloat16", {"T": 500, "V": 60, "H": 136}, lambda _: torch.rand(500, generator=SEED) ** 4 * 60, {}),
    rare("float16", {"T": 1100, "V": 300, "H": 264, "padding": "first"}, lambda _: torch.arange(1100) ** 2 % 37, {}),
    rare("float32", {"T": 1, "V": 1, "H": 1}, lambda _: torch.zeros(1), {}),
]


@pytest.mark.slow  # test_kernels.py compiles each kernel; CONTRIBUTING.md says when to run this
@pytest.mark.parametrize(("dtype", "sizes", "ids", "offsets"), CASES)
def test_sums_are_right_whatever_the_ids(catalogue, monkeypatch, emulated_folder, dtype, sizes, ids, offsets):
    compiler()
    monkeypatch.setattr(embedding_grad, "_FEWEST_GROUPS", 2)  # each is a block of 1024 threads
    monkeypatch.setattr(embedding_grad, "_MANY", 1000)  # so that some of these cases have long windows
    usual = check.make_inputs

    def made(ctx):
        inputs = usual(ctx)
        inputs.ids.copy_(ids(sizes))
        return inputs

    monkeypatch.setattr(check, "make_inputs", made)
    gpu, op = Gpu(emulated_folder), catalogue["embedding_grad"]
    for gpu.order, early in ((1, 0), (2, sizes["V"] // 2), (1, sizes["V"])):
        monkeypatch.setattr(embedding_grad, "early_rows", lambda *_, rows=early: rows)
        assert complaint(gpu, op, case_of(op, "tuned", dtype, sizes), offsets) is None


@pytest.mark.slow
def test_tokens_outside_of_the_vocabulary_count_as_none(catalogue, monkeypatch, emulated_folder):
    """They are the padding id for the reference, whose row is zero; the kernels are given numbers that are no ids."""
    compiler()
    monkeypatch.setattr(embedding_grad, "_FEWEST_GROUPS", 2)
    usual = check.make_inputs

    def made(ctx):
        inputs = usual(ctx)
        inputs.ids.copy_(torch.arange(200) % 9)
        return inputs

    monkeypatch.setattr(check, "make_inputs", made)
    gpu, op = Gpu(emulated_folder), catalogue["embedding_grad"]
    prepare = op.variants["tuned"].prepare

    def with_mistakes(ctx):
        launch = prepare(ctx)

        def call(t):
            t.ids[t.ids == 0] = torch.tensor([9, -1, 2**32, 2**63 - 1, -(2**63)]).repeat(5)[: int((t.ids == 0).sum())]
            launch(t)

        return call

    variant = replace(op.variants["tuned"], prepare=with_mistakes)
    monkeypatch.setitem(op.variants, "tuned", variant)
    sizes = {"T": 200, "V": 9, "H": 72, "padding": "first"}
    assert complaint(gpu, op, case_of(op, "tuned", "bfloat16", sizes), {}) is None
