"""Decoding by our kernels: on a CPU in a GPU's stead, and launches that are made again."""

from __future__ import annotations

import ctypes

import pytest
import torch

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


@pytest.fixture
def gpu(monkeypatch, emulated_folder):
    compiler()
    found = Gpu(emulated_folder)
    found.stand_in(monkeypatch)
    return found


@pytest.mark.parametrize(("size", "tokens"), [(3, 130), (_ours.MOST + 1, 5)])
def test_logits_are_right(gpu, size, tokens):
    """Three calls, so what a call leaves in the cache and in the counts of parts serves the next one."""
    ctx = context(size, tokens)
    t = Tensors(**llama_decode.make(ctx))
    t.before = Tensors(tokens=t.tokens.clone())
    with torch.inference_mode():
        model = llama_decode._of_ours(ctx)
        for _ in range(3):
            t.logits = model(t.tokens)
        assert [*llama_decode.check(ctx, t)] == []
    layers, few = 2, size <= _ours.MOST
    assert len(gpu.launched) == 3 * (layers * 5 + 1 if few else layers)


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
