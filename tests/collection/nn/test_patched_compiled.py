"""Under torch.compile and autocast a patched norm has torch's forward and our backward, and softmax is torch's."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn import functional

from harness import nn as ours
from harness.collection.nn import _patched_compiled
from tests.one_test import one_test
from tests.rare import rare

WIDTH, EPS = 16, 1e-6


@pytest.fixture(autouse=True)
def one(one_thread):
    torch.manual_seed(0)
    torch._dynamo.reset()


class Called(nn.Module):  # type: ignore[misc] # torch has no types
    """A norm as a function of torch."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))

    def forward(self, x):
        return functional.layer_norm(x, (x.shape[-1],), self.weight, self.bias, EPS)


class Block(nn.Module):  # type: ignore[misc] # torch has no types
    """A residual connection around a norm and a linear layer, as in a vision transformer."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.dense = norm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.dense(self.norm(x))


KINDS = {
    "layer_norm": nn.LayerNorm,
    "rms_norm": lambda width: nn.RMSNorm(width, eps=EPS),
    "called": Called,
}


def models(norm=nn.LayerNorm):
    """A model and its patched copy, with weights of which none is 0 or 1."""
    model = nn.Sequential(Block(norm))
    for one in model.parameters():
        nn.init.uniform_(one, 0.2, 1.2)
    patched = copy.deepcopy(model)
    assert ours.patch(patched).swapped
    return model, patched


def compiled(model, **options):
    """The model, compiled without a break, and how often each operator of ours is in its graphs: forward, backward."""
    graphs = []

    def recorded(graph, _inputs):
        names = [str(node.target) for node in graph.graph.nodes if str(node.target).startswith("harness.")]
        graphs.append(Counter(name.split(".")[1] for name in names))
        return make_boxed_func(graph)

    backend = aot_autograd(fw_compiler=recorded, bw_compiler=recorded)
    return torch.compile(model, backend=backend, fullgraph=True, **options), graphs


def results(call, model, x, dtype=torch.bfloat16):
    """What a call gives, and the gradients of its input and of the model's weights."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        y = call(x)
    (y.float() * y.float()).sum().backward()
    return {"y": y.detach(), "x": x.grad, **{name: one.grad for name, one in model.named_parameters()}}


def distance(one, other):
    return float((one.double() - other.double()).norm() / other.double().norm())


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("layer_norm", torch.bfloat16), ("rms_norm", torch.float16), ("called", torch.bfloat16),
        rare("layer_norm", torch.float16), rare("rms_norm", torch.bfloat16), rare("called", torch.float16),
    ],
)  # fmt: skip
def test_the_forward_is_torchs_and_the_gradients_are_as_near_to_float32_as_torchs(kind, dtype):
    model, patched = models(KINDS[kind])
    x = torch.randn(3, 5, WIDTH) + 2
    exact = results(model, model, x, None)
    want = results(model, model, x, dtype)
    call, graphs = compiled(patched)
    got = results(call, patched, x, dtype)
    name = "rms_norm" if kind == "rms_norm" else "layer_norm"
    assert graphs == [{}, {f"{name}_grad": 1}]
    assert got.keys() == exact.keys()
    torch.testing.assert_close(got["y"], want["y"], rtol=1e-6, atol=1e-6)
    for one in exact:
        assert got[one].dtype == want[one].dtype
        # A rounding of one more value in a sum of two, each half of the spacing of the type's numbers at most.
        assert distance(got[one], exact[one]) <= distance(want[one], exact[one]) + torch.finfo(dtype).eps / 2, one


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_the_gradient_is_exact_but_for_the_type_in_which_rows_are_kept(kind):
    x = (torch.randn(4, 3, WIDTH) + 2).requires_grad_()
    vectors = [nn.Parameter(torch.rand(WIDTH) + 0.5) for _ in range(2 if kind == "layer_norm" else 1)]
    function = _patched_compiled._LayerNorm if kind == "layer_norm" else _patched_compiled._RMSNorm
    slopes = torch.randn(4, 3, WIDTH)
    y = function.apply(x, *vectors, EPS, torch.float32)
    want = getattr(functional, kind)(x, (WIDTH,), *vectors, eps=EPS)
    torch.testing.assert_close(y, want)
    for one, other in zip(*(torch.autograd.grad(given, [x, *vectors], slopes) for given in (y, want)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@one_test(
    ("given", "dtype"),
    [
        (torch.bfloat16, torch.bfloat16),  # what an operator of ours has made
        (torch.float32, None),
    ],
)
def test_of_halves_and_without_autocast_the_forward_is_ours(given, dtype):
    _, patched = models()
    call, graphs = compiled(patched[0].norm)
    results(call, patched[0].norm, torch.randn(3, WIDTH).to(given), dtype)
    assert graphs == [{"layer_norm": 1}, {"layer_norm_grad": 1}]


class Scores(nn.Module):  # type: ignore[misc] # torch has no types
    """Softmax as a module, and as a function, after the addition of a mask."""

    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(-1)

    def forward(self, x):
        return self.softmax(x + 1) * (x - 1).softmax(-1)


@one_test(
    ("given", "dtype", "wanted"),
    [
        (torch.float32, torch.bfloat16, [{}, {}]),
        (torch.bfloat16, torch.bfloat16, [{"softmax": 2}, {"softmax_grad": 2}]),
        (torch.float32, None, [{"softmax": 2}, {"softmax_grad": 2}]),
    ],
)
def test_softmax_of_float32_under_autocast_is_torchs(given, dtype, wanted):
    model, x = nn.Sequential(Scores()), torch.randn(3, WIDTH).to(given)
    patched = copy.deepcopy(model)
    assert len(ours.patch(patched).swapped) == 2
    call, graphs = compiled(patched)
    got, want = results(call, patched, x, dtype), results(model, model, x, dtype)
    assert graphs == wanted
    assert max(distance(got[name], want[name]) for name in got) < 1e-2
    assert given != torch.float32 or got["y"].dtype == want["y"].dtype


def test_vectors_in_halves_beside_a_float32_x_are_rounded_as_before():
    norm = nn.LayerNorm(WIDTH, dtype=torch.bfloat16)
    ours.patch(nn.Sequential(norm))
    call, graphs = compiled(norm)
    y = results(call, norm, torch.randn(3, WIDTH))["y"]
    assert y.dtype == torch.float32
    assert graphs[0] == {"layer_norm": 1}


def test_a_weight_of_another_width_is_an_error_and_is_not_repeated():
    norm = nn.RMSNorm(1, eps=EPS)
    ours.patch(nn.Sequential(norm))
    with pytest.raises(Exception, match="weight"), torch.autocast("cpu", torch.bfloat16):
        compiled(norm)[0](torch.randn(3, WIDTH))


def test_a_call_that_is_not_compiled_is_ours(monkeypatch):
    def refuse(*_):
        raise AssertionError("torch's forward is for compilers")

    monkeypatch.setattr(_patched_compiled._LayerNorm, "apply", refuse)
    _, patched = models()
    assert results(patched, patched, torch.randn(3, WIDTH))["x"] is not None


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_without_gradients_nothing_of_ours_is_left(kind):
    model, patched = models(KINDS[kind])
    call, graphs = compiled(patched)
    x = torch.randn(3, WIDTH)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(call(x), model(x), rtol=1e-6, atol=1e-6)
    assert graphs == [{}]


def test_frozen_weights_get_no_gradient_and_the_input_the_same():
    model, patched = models()
    for one in (*model.parameters(), *patched.parameters()):
        one.requires_grad_(False)
    x = torch.randn(3, WIDTH)
    want = results(model, model, x)
    got = results(compiled(patched)[0], patched, x)
    assert distance(got.pop("x"), want.pop("x")) < 1e-2
    assert [got[name] for name in got if name != "y"] == [None] * (len(got) - 1)


def test_one_graph_does_for_all_sizes():
    model, patched = models()
    call, graphs = compiled(patched, dynamic=True)
    for rows in (3, 7, 4):
        x = torch.randn(rows, 5, WIDTH)
        assert distance(results(call, patched, x)["x"], results(model, model, x)["x"]) < 1e-2
    assert len(graphs) == 2


def test_rows_that_do_not_lie_one_after_the_other():
    model, patched = models()
    x = torch.randn(5, WIDTH, 3).transpose(1, 2)
    got, want = results(compiled(patched)[0], patched, x), results(model, model, x)
    assert max(distance(got[name], want[name]) for name in got) < 1e-2


def test_transforms_in_compiled_code_take_torchs_formulas():
    model, patched = models()
    x = torch.randn(3, 5, WIDTH)

    def slopes(call):
        def gradients(x):
            with torch.autocast("cpu", torch.bfloat16):
                return torch.func.vmap(torch.func.grad(lambda row: call(row).square().sum()))(x)

        return gradients

    call, graphs = compiled(slopes(patched))
    torch.testing.assert_close(call(x), slopes(model)(x), rtol=1e-2, atol=1e-1)
    assert graphs == [{}]
