"""Decoding by our kernels: on a CPU in a GPU's stead, and launches that are made again."""

from __future__ import annotations

import ctypes

import pytest
import torch

from harness.collection.ops.llm import decode_attention, linear_few_rows, qkv_few_rows
from harness.collection.steps.decoding import _chain, _ours, llama_decode
from harness.cuda.launch import LAUNCHES, Launched, LaunchShape
from harness.model import Case
from harness.ops import Context, Tensors
from tests.collection.emulation import Gpu, compiler

pytestmark = pytest.mark.usefixtures("one_thread")


def context(size: int, tokens: int) -> Context:
    case = Case(
        "llama_decode", "ours", "bfloat16", (("B", size), ("C", tokens)), (("model", "llama_toy"),), device="cpu"
    )
    generator = torch.Generator().manual_seed(1)
    return Context(case, torch.bfloat16, torch.device("cpu"), generator, llama_decode.OP)


def complaints(size: int, tokens: int) -> list[str]:
    """What is wrong with the last of three calls: what a call leaves in memory serves the next one."""
    ctx = context(size, tokens)
    t = Tensors(**llama_decode.make(ctx))
    t.before = Tensors(tokens=t.tokens.clone())
    with torch.inference_mode():
        model = llama_decode._of_ours(ctx)
        for _ in range(3):
            t.logits = model(t.tokens)
        return [*llama_decode.check(ctx, t)]


@pytest.fixture
def by_torch(monkeypatch):
    """The names of ops that are launched, by torch's functions in place of our kernels."""
    made = []

    def eager_of(op):
        def prepare(ctx, stride=0):
            eager = op.variants["eager"].prepare(ctx)

            def launch(t):
                made.append(op.name)
                for output, result in zip(op.outputs, eager(t), strict=True):
                    to = getattr(t, output.name)
                    if stride and output.name in ("k", "v"):
                        to.as_strided((ctx.s.M * ctx.s.G, ctx.s.D), (stride, 1)).copy_(result.flatten(0, 1))
                    else:
                        to.copy_(result.view(to.shape))

            return launch

        return prepare

    monkeypatch.setattr(linear_few_rows, "tuned", eager_of(linear_few_rows.OP))
    monkeypatch.setattr(decode_attention, "tuned", eager_of(decode_attention.OP))
    monkeypatch.setattr(qkv_few_rows, "prepared", eager_of(qkv_few_rows.OP))
    return made


def test_five_launches_a_layer_make_the_logits_of_few_sequences(by_torch):
    assert complaints(_ours.MOST, 5) == []
    layer = ["qkv_few_rows", "decode_attention", *["linear_few_rows"] * 3]
    assert by_torch == 3 * (2 * layer + ["linear_few_rows"])


def test_torch_makes_the_products_of_more_sequences(by_torch):
    assert complaints(_ours.MOST + 1, 5) == []
    assert by_torch == 3 * 2 * ["decode_attention"]


@pytest.mark.slow
def test_logits_of_our_kernels_are_right(monkeypatch, emulated_folder):
    compiler()
    gpu = Gpu(emulated_folder)
    gpu.stand_in(monkeypatch)
    assert complaints(3, 130) == []
    assert len(gpu.launched) == 3 * (2 * 5 + 1)


@pytest.fixture
def driver(monkeypatch):
    """Launches that the driver is asked for: function, arguments, and whether they may begin early."""
    made = []

    def launch(shape, function, arguments):
        addresses = (ctypes.c_uint64 * 2).from_address(arguments)
        values = tuple(ctypes.c_uint64.from_address(address).value for address in addresses)
        made.append((function, shape.gridDimX, shape.sharedMemBytes, values, shape.numAttrs))

    monkeypatch.setattr(_chain, "launch", launch)
    monkeypatch.setattr(_chain, "_divide_alike", lambda function: made.append(("divided", function)))
    monkeypatch.setattr(_chain.cuda, "stream_handle", lambda: 7)
    return made


def test_a_chain_makes_its_launches_again_and_all_but_the_first_may_begin_early(driver):
    x = torch.zeros(3)

    def call():
        for function in (11, 12, 11):
            LAUNCHES.add(
                Launched(function, LaunchShape(function + 1, 64, function * 10), (x, ctypes.c_uint64(function)))
            )

    chain = _chain.Chain.of(call)
    assert sorted(driver) == [("divided", 11), ("divided", 12)]
    for _ in range(2):
        driver.clear()
        chain()
        assert driver == [
            (function, function + 1, function * 10, (x.data_ptr(), function), early)
            for function, early in ((11, 0), (12, 1), (11, 1))
        ]
