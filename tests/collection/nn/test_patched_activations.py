"""GELU of halves in compiled code is ours, and as near to the exact one as torch's."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn import functional

from harness import nn as ours
from harness.collection.nn._patched_activations import _GELU
from tests.one_test import one_test


class Act(nn.Module):  # type: ignore[misc] # torch has no types
    """As transformers has it."""

    def __init__(self):
        super().__init__()
        self.act = functional.gelu

    def forward(self, input):
        return self.act(input)


HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def one(one_thread):
    torch.manual_seed(0)
    torch._dynamo.reset()


def every(dtype):
    """All finite numbers of a type of halves."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return numbers[numbers.isfinite()]


def gradients(function, x):
    x = x.clone().requires_grad_()
    y = function(x)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return y.detach(), dx


@pytest.mark.parametrize("dtype", HALVES)
def test_each_number_of_a_type_is_rounded_as_the_exact_one_or_next_to_it(dtype):
    x = every(dtype)
    got = gradients(_GELU.apply, x)
    want = gradients(functional.gelu, x.double())
    for one, exact in zip(got, want, strict=True):
        assert one.dtype == dtype
        # Half a spacing for the rounding, and what the polynomial is off by, times the largest x that has a tail.
        allowed = exact.abs() * torch.finfo(dtype).eps / 2 + 5e-7
        assert ((one.double() - exact).abs() <= allowed).all()


@one_test("dtype", HALVES)
def test_what_is_no_number_gives_what_the_formula_gives(dtype):
    x = torch.tensor([math.inf, -math.inf, math.nan], dtype=dtype)
    y, dx = gradients(_GELU.apply, x)
    assert y[0] == math.inf
    assert y[1:].isnan().all()
    assert dx.isnan().all()


def compiled(model):
    """The model, compiled without a break, and the functions in its graphs."""
    names = []

    def recorded(graph, _inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph)

    return torch.compile(model, backend=aot_autograd(fw_compiler=recorded, bw_compiler=recorded), fullgraph=True), names


@one_test(
    ("kind", "training", "given", "autocast", "is_ours"),
    [
        (nn.GELU, True, torch.float32, torch.bfloat16, True),
        (nn.GELU, False, torch.bfloat16, None, True),
        (nn.GELU, True, torch.float32, None, False),
        (Act, True, torch.float32, torch.float16, True),
        (Act, False, torch.float32, None, False),
    ],
)
def test_compiled_code_has_ours_for_halves_alone(kind, training, given, autocast, is_ours):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 16), kind(), nn.Linear(16, 8)).to(given).train(training)
    plain, x = copy.deepcopy(model), torch.randn(5, 8, dtype=given)
    done = ours.patch(model)
    assert [(one.name, one.was) for one in done.swapped] == [("1", kind.__name__)]
    call, names = compiled(model)
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        got, want = call(x), plain(x)
    assert got.dtype == want.dtype
    for one in (got, want):
        one.float().square().sum().backward()
    assert is_ours != any("gelu" in name for name in names)
    close = 1e-2 if is_ours else 1e-5
    torch.testing.assert_close(got, want, rtol=close, atol=close)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=5 * close, atol=5 * close)
    done.undo()
    assert type(model[1]) is kind


def test_without_a_compiler_it_is_torchs():
    model, x = nn.Sequential(nn.GELU()), torch.randn(50).to(torch.bfloat16)
    ours.patch(model)
    assert torch.equal(model(x), functional.gelu(x))


def test_an_approximation_stays_also_one_that_is_chosen_later():
    model = nn.Sequential(nn.GELU(), nn.GELU("tanh"))
    done = ours.patch(model)
    assert [(one.name, one.why) for one in done.left] == [("1", "it is an approximation by tanh")]
    model[0].approximate = "tanh"
    act = Act()
    ours.patch(act)
    act.act = functional.silu
    model.append(act)
    call, names = compiled(model)
    call(torch.randn(4).to(torch.bfloat16).requires_grad_())
    assert sum(name == "aten.gelu.default" for name in names) == 2
    assert any("silu" in name for name in names)
