"""Attention under a mask expanded over the keys runs without the mask, and gives what torch gives with it."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn import functional

from harness import nn as ours
from harness.collection.nn._patched_attention import attention
from tests.one_test import one_test
from tests.rare import rare

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 3, 4, 5, 8


@pytest.fixture(autouse=True)
def one(one_thread):
    torch.manual_seed(0)
    torch._dynamo.reset()


def drawn(dtype=torch.float64):
    sizes = (BATCH, HEADS, QUERIES, WIDTH), (BATCH, HEADS, KEYS, WIDTH), (BATCH, HEADS, KEYS, WIDTH)
    return [torch.randn(size, dtype=dtype, requires_grad=True) for size in sizes]


def expanded(*rows):
    """A mask that differs by query alone. rows: its sizes before the last one."""
    kept = torch.arange(torch.Size(rows).numel()).view(*rows, 1) % 3 != 1
    return kept.expand(*rows, KEYS)


@one_test("rows", [(QUERIES,), (1, 1, QUERIES), (BATCH, 1, QUERIES), (BATCH, HEADS, QUERIES), (1, 1)])
@one_test("scale", [None, 0.3])
def test_numbers_and_gradients_are_torchs(rows, scale):
    given, mask = drawn(), expanded(*rows)
    got = attention(*given, attn_mask=mask, scale=scale)
    want = functional.scaled_dot_product_attention(*given, attn_mask=mask, scale=scale)
    assert got is not None
    assert rows == (1, 1) or (want == 0).any()
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    slopes = torch.randn_like(want)
    for one, other in zip(*(torch.autograd.grad(y, given, slopes) for y in (got, want)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_dropout_drops_the_weights_that_torch_would_drop():
    given, mask = drawn(), torch.ones(QUERIES, 1, dtype=torch.bool).expand(QUERIES, KEYS)
    made = []
    for function in (attention, functional.scaled_dot_product_attention):
        torch.manual_seed(1)
        made.append(function(*given, mask, 0.5))
    assert not torch.allclose(made[0], functional.scaled_dot_product_attention(*given))
    torch.testing.assert_close(*made, rtol=1e-12, atol=1e-12)


@one_test(
    "mask",
    [
        lambda: None,
        lambda: torch.ones(QUERIES, KEYS, dtype=torch.bool),
        lambda: torch.ones(1, KEYS, dtype=torch.bool).expand(QUERIES, KEYS),
        lambda: torch.zeros(QUERIES, 1).expand(QUERIES, KEYS),  # a mask that is added
        lambda: torch.ones(5, 1, 1, QUERIES, 1, dtype=torch.bool).expand(5, 1, 1, QUERIES, KEYS),
        lambda: torch.ones(QUERIES, 1, dtype=torch.bool),  # torch expands it
    ],
)
def test_another_mask_is_torchs(mask):
    assert attention(*drawn(), mask()) is None


def test_a_mask_that_makes_the_batch_larger_is_torchs():
    q, k, v = (one[:1] for one in drawn())
    assert attention(q, k, v, expanded(BATCH, 1, QUERIES)) is None


def test_what_torch_refuses_stays_an_error():
    q, k, v = drawn()
    assert attention(q, k, v, expanded(QUERIES), 0.0, True) is None
    assert attention(q, k[:, :, :2], v[:, :, :2], expanded(QUERIES)) is None


def decorated(forward):
    """A decorator as libraries have them around a forward."""

    @functools.wraps(forward)
    def called(self, *given):
        return forward(self, *given)

    return called


class Heads(nn.Module):  # type: ignore[misc] # torch has no types
    """Attention as libraries have it: by torch's function, or written out."""

    def __init__(self, by_torch=True):
        super().__init__()
        self.by_torch, self.dense = by_torch, nn.Linear(WIDTH, 3 * WIDTH)

    @decorated
    def forward(self, x):
        q, k, v = self.dense(x).view(*x.shape[:-1], 3, 2, -1).permute(2, 0, 3, 1, 4)
        mask = (torch.arange(x.shape[1])[None, None, :, None] >= 0).expand(len(x), 1, x.shape[1], x.shape[1])
        if self.by_torch:
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0)
        return (q @ k.mT).masked_fill(~mask, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, rare(torch.float16)])
def test_a_compiled_models_attention_has_no_mask(dtype):
    model = Heads()
    plain = copy.deepcopy(model)
    assert [one.was for one in ours.patch(model).swapped] == ["Heads with softmax"]
    graphs = []

    def recorded(graph, _inputs):
        graphs.append(graph)
        return make_boxed_func(graph)

    backend = aot_autograd(fw_compiler=recorded, bw_compiler=recorded)
    call = torch.compile(model, backend=backend, fullgraph=True)
    x = torch.randn(BATCH, KEYS, WIDTH)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        got, want = call(x), plain(x)
    (fused,) = [node for node in graphs[0].graph.nodes if "scaled_dot_product" in str(node.target)]
    assert "attn_mask" not in fused.kwargs
    assert got.dtype == want.dtype == dtype
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    for one in (got, want):
        one.float().square().sum().backward()
    torch.testing.assert_close(model.dense.weight.grad, plain.dense.weight.grad, rtol=2e-2, atol=2e-2)


def test_in_evaluation_and_without_a_compiler_it_is_the_same():
    model = Heads()
    plain, x = copy.deepcopy(model), torch.randn(BATCH, KEYS, WIDTH)
    ours.patch(model)
    torch.testing.assert_close(model(x), plain(x))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), plain.eval()(x))
