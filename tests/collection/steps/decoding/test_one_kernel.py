"""A step of one sequence by one kernel: on a CPU in a GPU's stead, and how blocks share the work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness import cuda
from harness.collection.models import MODELS, LlamaConfig
from harness.collection.steps.decoding import _one_kernel, llama_decode
from harness.collection.steps.decoding._one_kernel import Shape
from harness.model import Case
from harness.ops import Context, Tensors
from tests.collection.emulation import Gpu, compiler
from tests.one_test import one_test
from tests.rare import rare

pytestmark = pytest.mark.usefixtures("one_thread")
LARGE, TOY = MODELS["llama_1b"], MODELS["llama_toy"]
WIDE = replace(TOY, hidden=256, heads=4, groups=1, intermediate=520, vocabulary=101)
"""Heads of 64, and rows of more than one stage."""


def case_of(tokens: int, model: str = "llama_toy", dtype: str = "bfloat16", size: int = 1) -> Case:
    return Case("llama_decode", "persistent", dtype, (("B", size), ("C", tokens)), (("model", model),), device="cpu")


def complaints(gpu: Gpu, case: Case) -> list[str]:
    """What is wrong with the last of three calls: what a call leaves in memory serves the next one."""
    generator = torch.Generator().manual_seed(1)
    ctx = Context(case, getattr(torch, case.dtype), torch.device("cpu"), generator, llama_decode.OP)
    t = Tensors(**llama_decode.make(ctx))
    t.before = Tensors(tokens=t.tokens.clone())
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        gpu.stand_in(patch)
        model = llama_decode._of_one_kernel(ctx)
        for _ in range(3):
            t.logits = model(t.tokens)
    assert gpu.launched == 3 * ["decode_step_tuned"]
    return [*llama_decode.check(ctx, t)]


@pytest.mark.parametrize(
    ("tokens", "multiprocessors", "order"), [(5, 3, 1), rare(1, 2, 0), rare(300, 3, 2), rare(1500, 7, 2)]
)
def test_logits_are_right_in_any_order_of_threads(emulated_folder, tokens, multiprocessors, order):
    compiler()
    gpu = Gpu(emulated_folder, multiprocessors=multiprocessors, order=order)
    assert complaints(gpu, case_of(tokens)) == []


@pytest.mark.slow  # the test above has whole stages and heads of eight elements
@pytest.mark.parametrize(("tokens", "dtype"), [(40, "float16"), (600, "bfloat16")])
def test_logits_of_heads_and_rows_of_other_lengths_are_right(monkeypatch, emulated_folder, tokens, dtype):
    compiler()
    models = {**MODELS, "wide": WIDE}
    for module in ("harness.collection.steps.decoding.llama_decode", "harness.collection.models.sizes"):
        monkeypatch.setattr(f"{module}.MODELS", models)
    monkeypatch.setattr(llama_decode, "built", lambda *given: built_of(WIDE, *given[1:]))
    assert complaints(Gpu(emulated_folder, multiprocessors=5, order=2), case_of(tokens, "wide", dtype)) == []


def built_of(config: LlamaConfig, operators, seed, device):
    from harness.collection.models.llama import Llama, LlamaOperators

    torch.manual_seed(seed)
    return Llama(config, operators or LlamaOperators()).to(device)


@pytest.fixture
def chip(monkeypatch):
    def of(multiprocessors: int, shared: int) -> None:
        monkeypatch.setattr(cuda, "multiprocessors", lambda: multiprocessors)
        monkeypatch.setattr(cuda, "shared_memory", lambda: shared)

    of(132, 227 * 1024)
    return of


@one_test(("tokens", "parts"), [(1, 1), (129, 1), (256, 1), (257, 2), (2049, 9), (4096, 16), (32769, 16)])
def test_a_block_takes_few_tokens_alone_and_all_share_many(chip, tokens, parts):
    shape = Shape.of(LARGE, tokens)
    assert shape.parts == parts
    assert shape.tokens % 16 == 0
    assert (shape.parts - 1) * shape.tokens < tokens <= shape.parts * shape.tokens
    assert shape.parts * LARGE.groups <= 132


@one_test(
    ("multiprocessors", "shared", "configs"),
    [(132, 227, (LARGE, TOY, WIDE)), (148, 227, (LARGE,)), (108, 163, (LARGE, WIDE)), (84, 99, (TOY, WIDE))],
)
def test_weights_have_the_shared_memory_that_vectors_leave(chip, multiprocessors, shared, configs):
    chip(multiprocessors, shared * 1024)
    for config in configs:
        shape = Shape.of(config, 5000)
        assert _one_kernel.unfit(config, 5000) is None
        assert _one_kernel._FEWEST_STAGES <= shape.stages <= _one_kernel._MOST_STAGES
        assert shape.shared + _one_kernel._STATIC <= shared * 1024
        assert shape.input >= max(config.hidden, config.intermediate)
        assert shape.ahead == 1 or shape.stages >= _one_kernel._ENOUGH


def test_the_smaller_shared_memory_is_the_less_is_under_way(chip):
    assert (Shape.of(LARGE, 129).ahead, Shape.of(LARGE, 129).stages) == (2, 7)
    chip(108, 163 * 1024)
    assert (Shape.of(LARGE, 129).ahead, Shape.of(LARGE, 129).stages) == (1, 5)
    chip(84, 99 * 1024)
    assert "no room" in _one_kernel.unfit(LARGE, 129)


@one_test(
    ("config", "reason"),
    [
        (replace(LARGE, intermediate=8190), "whole packs of 8"),
        (replace(TOY, hidden=48, heads=4), "whole packs of 8"),
        (replace(LARGE, groups=2), "up to 8 heads"),
        (replace(LARGE, hidden=8192), "128 elements a head"),
        (replace(LARGE, intermediate=2**17), "no room"),
    ],
)
def test_what_can_not_be_one_kernel_says_why(chip, config, reason):
    assert reason in _one_kernel.unfit(config, 129)


def test_each_head_of_keys_has_a_multiprocessor_or_there_is_no_such_step(chip):
    chip(7, 227 * 1024)
    assert "needs a multiprocessor" in _one_kernel.unfit(LARGE, 129)


def test_several_sequences_have_no_such_step(chip):
    refused = llama_decode.OP.variants["persistent"].unsupported
    assert (refused(case_of(5)), refused(case_of(5, size=2))) == (None, "for one sequence")
