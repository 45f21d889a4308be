"""What users do to a model whose linear layers `nn.patch` joins: its forward and its layers compute the same still."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

from harness import nn as ours
from tests.one_test import one_test

X = torch.linspace(-1, 1, 2 * 5 * 12).view(2, 5, 12)
SCALE = torch.tensor(3.0)


class Pair(nn.Module):  # type: ignore[misc] # torch has no types
    """Two layers with one input."""

    def __init__(self, bias=True):
        super().__init__()
        self.query, self.key = (nn.Linear(12, 16, bias=bias) for _ in range(2))
        self.act = nn.ReLU(inplace=True)

    def forward(self, hidden):
        query = self.query(hidden)
        key = self.key(hidden)
        return query * key + query


@pytest.fixture(autouse=True)
def one(one_thread):
    torch.manual_seed(0)
    torch._dynamo.reset()


def step(model, call, *given):
    x = X.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = call(x, *given)
    y.float().sin().sum().backward()
    return [y.detach().float(), x.grad, *(one.grad for one in model.parameters())]


def assert_the_same(patched, plain, *given, backend="eager"):
    """Compiled, without a break, a patched model gives what the plain one gives, with the same gradients."""
    got = step(patched, torch.compile(patched, backend=backend, fullgraph=True), *given)
    for one, other in zip(got, step(plain, plain, *given), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2 * other.abs().max().item())


# ---- Layers.


def given_a_forward(model):
    """As libraries of adapters and of offloading do."""
    inner = model.key.forward
    model.key.forward = lambda x: inner(x) + 3


def without_a_bias(model):
    model.key.bias = None


def with_another_layer(model):
    torch.manual_seed(1)
    model.key = nn.Linear(12, 16, bias=False)


def one_layer_twice(model):
    model.key = model.query


def frozen(model):
    model.key.requires_grad_(False)


def parametrized(model):
    nn.utils.parametrizations.weight_norm(model.key)


def pruned(model):
    prune.l1_unstructured(model.key, "weight", 0.5)


CHANGES = [
    given_a_forward, without_a_bias, with_another_layer, one_layer_twice, frozen, parametrized, pruned,
]  # fmt: skip


@one_test("change", CHANGES)
def test_layers_that_are_changed_after_the_patch(change):
    torch._dynamo.reset()
    model = Pair()
    plain = copy.deepcopy(model)
    assert ours.patch(model).swapped
    change(model)
    change(plain)
    assert_the_same(model, plain)


@one_test("change", CHANGES)
def test_layers_that_are_changed_before_the_patch(change):
    torch._dynamo.reset()
    model = Pair()
    change(model)
    plain = Pair()
    change(plain)
    plain.load_state_dict(model.state_dict())
    ours.patch(model)
    assert_the_same(model, plain)


def test_weights_of_a_functional_call():
    model = Pair()
    plain, given = copy.deepcopy(model), {name: one.detach() + 1 for name, one in model.named_parameters()}
    ours.patch(model)
    got, want = (
        step(one, lambda x, one=one: torch.func.functional_call(one, given, (x,)))
        for one in (torch.compile(model, backend="aot_eager"), plain)
    )
    torch.testing.assert_close(got[:2], want[:2], rtol=3e-2, atol=0.3)


@one_test("sizes", [(12,), (0, 12), (3, 12), (2, 1, 3, 12)])
def test_inputs_of_other_sizes(sizes):
    torch._dynamo.reset()
    model = Pair()
    plain, x = copy.deepcopy(model), torch.randn(sizes)
    ours.patch(model)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = torch.compile(model, backend="eager", fullgraph=True)(x), plain(x)
    torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)


def test_a_second_patch_swaps_nothing():
    model = Pair()
    assert ours.patch(model).swapped
    assert not ours.patch(model).swapped


# ---- Forwards.


class InPlace(Pair):
    """It changes what the layers give, in place."""

    def forward(self, hidden):
        query = self.act(self.query(hidden))
        key = self.key(hidden)
        key *= 0.5
        return query * key + query


class Counting(Pair):
    """It stores in its module."""

    calls = 0

    def forward(self, hidden):
        query = self.query(hidden)
        key = self.key(hidden)
        self.calls += 1
        return query * key * self.calls


class Defaults(Pair):
    """Its defaults, and what must be named, stay."""

    def forward(self, hidden, /, scale=SCALE, *more, shift=2.0, **rest):
        query = self.query(hidden)
        key = self.key(hidden)
        return query * key * scale + shift + len(more) + len(rest)


class Nested(Pair):
    """It has a function in it."""

    def forward(self, hidden):
        def act(y):
            return self.act(y) + hidden.mean()

        query = act(self.query(hidden))
        key = act(self.key(hidden))
        return query * key


class Heir(Pair):
    """It has the forward of its parent."""


@one_test(
    ("kind", "given"),
    [(InPlace, ()), (Counting, ()), (Defaults, ()), (Defaults, (2, 3)), (Nested, ()), (Heir, ())],
)
def test_forwards_compute_the_same(kind, given):
    torch._dynamo.reset()
    model = kind()
    plain = copy.deepcopy(model)
    ours.patch(model)
    # What a forward changes in place concerns the rest of the compiler, too.
    assert_the_same(model, plain, *given, backend="aot_eager" if kind is InPlace else "eager")


def test_a_wrapper_that_the_source_does_not_show_stays(monkeypatch):
    calls, forward, model = [], Heir.forward, Heir()
    ours.patch(Heir())  # what is known of the class then doesn't stand for later

    @functools.wraps(forward)
    def recorded(self, hidden):
        calls.append(hidden.shape)
        return forward(self, hidden)

    monkeypatch.setattr(Heir, "forward", recorded)
    ours.patch(model)
    calls.clear()
    model(X)
    assert len(calls) == 1


class Drawing(Pair):
    """It draws in eval(), too, by a function that has a kernel of ours."""

    def forward(self, hidden):
        query = self.query(hidden)
        key = self.key(hidden)
        return functional.dropout(query, 0.5) * key


def test_a_forward_that_draws_and_calls_functions_has_both_swapped():
    model = Drawing()
    done = ours.patch(model)
    assert [one.now for one in done.swapped] == ["one product", "the same functions of nn"]
    done.undo()
    assert type(model) is Drawing


def test_weights_in_halves_are_not_copied_into_one():
    model, names = Pair().bfloat16(), []
    ours.patch(model)

    def recorded(graph, _inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    with torch.autocast("cpu", torch.bfloat16):
        torch.compile(model, backend=recorded, fullgraph=True)(X)
    assert not any("cat" in name for name in names)
    assert sum("linear" in name for name in names) == 2


class Normed(Pair):
    """A norm of as many channels as a try has rows."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.seen = {}

    def forward(self, hidden):
        query = self.query(hidden)
        key = self.key(hidden)
        self.seen[len(self.seen)] = query.shape
        return self.norm(query * key)


def test_a_try_leaves_no_trace():
    model, calls = Normed(), []
    model.norm.register_forward_hook(lambda *_: calls.append("hook"))
    before = copy.deepcopy(model.state_dict())
    assert ours.patch(model).swapped
    assert not calls
    assert not model.seen
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


def test_a_forward_that_counts_in_a_function_around_it_stays():
    count = 0

    class Local(Pair):
        def forward(self, hidden):
            nonlocal count
            query, key = self.query(hidden), self.key(hidden)
            count += 1
            return query * key

    assert not ours.patch(Local()).swapped
