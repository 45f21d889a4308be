"""Linear layers that a forward calls with one input are one product in compiled code, and torch's elsewhere."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from harness import nn as ours
from harness.collection.steps.ladder._compiled import begin_compiling
from tests.one_test import one_test


class Attention(nn.Module):  # type: ignore[misc] # torch has no types
    """As transformers has it. sizes: of queries, keys and values."""

    def __init__(self, bias=True, sizes=(16, 16, 16)):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(12, size, bias=bias) for size in sizes)
        self.out = nn.Linear(sizes[0], 12)

    def forward(self, hidden, mask=None):
        shape = (*hidden.shape[:-1], -1, 8)
        query = self.query(hidden).view(shape).transpose(1, 2)
        key = self.key(hidden).view(shape).transpose(1, 2)
        value = self.value(hidden).view(shape).transpose(1, 2)
        made = functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
        return self.out(made.transpose(1, 2).flatten(2))


def doubled(forward):
    @functools.wraps(forward)
    def inner(self, hidden):
        return 2 * forward(self, hidden)

    return inner


class Decorated(Attention):
    """Its decorator is called, as before."""

    @doubled
    def forward(self, hidden):
        query, key = self.query(hidden), self.key(hidden)
        return query * key


class Once(Attention):
    """In one statement."""

    def forward(self, hidden):
        return (self.query(hidden) * self.key(hidden)).relu() - self.value(hidden)


@pytest.fixture(autouse=True)
def one(one_thread):
    torch.manual_seed(0)
    torch._dynamo.reset()


def compiled(model):
    """The model, compiled without a break, and how many products its forward and its backward have."""
    products = []

    def recorded(graph, _inputs):
        products.append(sum("mm" in str(node.target) for node in graph.graph.nodes))
        return make_boxed_func(graph)

    backend = aot_autograd(fw_compiler=recorded, bw_compiler=recorded)
    return torch.compile(model, backend=backend, fullgraph=True), products


def gradients(call, model, x, autocast=True):
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = call(x)
    y.float().sin().sum().backward()
    made = [y.detach(), x.grad, *(one.grad for one in model.parameters())]
    model.zero_grad()
    return made


def assert_alike(got, want, close=3e-2):
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=close, atol=close * other.abs().max().item())


@one_test(
    ("model", "names", "count"),
    [
        (Attention(), "query, key, value", [2, 4]),
        (Attention(bias=False, sizes=(32, 16, 16)), "query, key, value", [2, 4]),
        (Decorated(), "query, key", [1, 2]),
        (Once(), "query, key, value", [1, 2]),
    ],
)
def test_compiled_code_has_one_product(model, names, count):
    torch._dynamo.reset()
    model = copy.deepcopy(model)
    plain, x, state = copy.deepcopy(model), torch.randn(2, 5, 12), [*model.state_dict()]
    done = ours.patch(model)
    kind = type(plain).__name__
    assert [(one.was, one.now) for one in done.swapped] == [(f"{kind} with {names}", "one product")]
    assert [*model.state_dict()] == state
    assert not ours.patch(model).swapped
    call, products = compiled(model)
    assert_alike(gradients(call, model, x), gradients(plain, plain, x))
    assert products == count
    done.undo()
    assert type(model) is type(plain)


@one_test(("is_compiled", "autocast"), [(False, True), (False, False), (True, False)])
def test_elsewhere_each_layer_has_its_own(is_compiled, autocast):
    torch._dynamo.reset()
    model = Attention()
    plain, x = copy.deepcopy(model), torch.randn(2, 5, 12)
    ours.patch(model)
    call, products = compiled(model) if is_compiled else (model, [4])
    assert_alike(gradients(call, model, x, autocast), gradients(plain, plain, x, autocast), 0 if autocast else 1e-5)
    assert products[0] == 4


class Checkpointed(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x):
        return checkpoint(self.attention, x, use_reentrant=False)


def test_a_checkpoint_around_it_is_no_break():
    model = Checkpointed()
    plain, x = copy.deepcopy(model), torch.randn(2, 5, 12)
    ours.patch(model)
    call, products = compiled(model)
    assert_alike(gradients(call, model, x), gradients(plain, plain, x))
    assert products[0] == 2


def hooked(model, calls):
    model.key.register_forward_hook(lambda *_: calls.append("hook"))


def adapted(model, calls):
    inner = model.key
    model.key = nn.Sequential(inner)
    inner.register_forward_hook(lambda *_: calls.append("adapter"))


def halved(model, calls):
    model.bfloat16()
    calls.append("halves")


@one_test("change", [hooked, adapted, halved])
def test_layers_that_changed_after_the_patch_are_called(change):
    torch._dynamo.reset()
    model, calls, x = Attention(), [], torch.randn(2, 5, 12)
    ours.patch(model)
    change(model, calls)
    plain = Attention()
    change(plain, [])
    plain.load_state_dict(model.state_dict())
    with torch.autocast("cpu", torch.bfloat16):
        got, want = torch.compile(model, backend="eager")(x), plain(x)
    assert torch.equal(got, want)
    assert calls


def test_a_copy_has_its_own_weights():
    model, x = Attention(), torch.randn(2, 5, 12)
    ours.patch(model)
    other = copy.deepcopy(model)
    torch.nn.init.zeros_(other.out.weight)
    call, products = compiled(other)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(call(x), other.out.bias.bfloat16().expand(2, 5, 12))
    assert products == [2]


class Branching(Attention):
    def forward(self, hidden, cross=None):
        query = self.query(hidden)
        if cross is not None:
            hidden = cross
        return query * self.key(hidden)


class Choosing(Attention):
    def forward(self, hidden):
        query = self.query(hidden)
        key = self.key(hidden) if self.training else query
        return query * key


class Between(Attention):
    def forward(self, hidden):
        query = self.query(hidden)
        hidden.mul_(2)
        return query * self.key(hidden)


class Twice(Attention):
    def forward(self, hidden):
        query = self.query(hidden)
        key = self.key(hidden)
        return query * key + self.key(query[..., :12])


class Apart(Attention):
    def forward(self, hidden, other):
        query = self.query(hidden)
        key = self.key(other)
        return query * key


class Derived(Attention):
    def forward(self, hidden, mask=None):
        return super().forward(hidden, mask)


class Private(Attention):
    """The source alone doesn't tell the name that its class makes of a private one, nor does a try come by."""

    def __init__(self):
        super().__init__()
        self.__scale = 2

    def forward(self, hidden, mask=None):
        query = self.query(hidden)
        key = self.key(hidden)
        return query * key if mask is None else query * key * mask * self.__scale


class Storing(Attention):
    def forward(self, hidden):
        hidden[..., :6] = self.query(hidden)[..., :6]
        key = self.key(hidden)
        return hidden.sum() * key


class Weighed(Attention):
    def forward(self, hidden):
        query = self.query(hidden)
        key = self.key(hidden)
        return query * key * self.key.weight.sum()


@one_test("kind", [Branching, Choosing, Between, Twice, Apart, Derived, Private, Storing, Weighed])
def test_other_forwards_are_not_told_of(kind):
    assert not ours.patch(kind()).swapped


class Merging(Attention):
    def forward(self, hidden):
        query = self.query(hidden).view(-1, 8)
        key = self.key(hidden).view(-1, 8)
        return query * key


class Giving(Attention):
    """A caller may want a view of what it gives, which a part of one product hasn't."""

    def forward(self, hidden):
        return self.query(hidden), self.key(hidden), self.value(hidden)


class Wanting(Attention):
    def forward(self, hidden, mask):
        query = self.query(hidden)
        key = self.key(hidden)
        return query * key * mask


class Uneven(Attention):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(12, 16, bias=False)


@one_test(
    ("kind", "why"),
    [
        (Merging, "its forward can't be tried with parts of one product: RuntimeError"),
        (Giving, "its forward can't be tried with parts of one product: AssertionError"),
        (Wanting, "its forward can't be tried with parts of one product: TypeError"),
        (Uneven, "their inputs, biases or types differ"),
    ],
)
def test_what_stays_is_told_why(kind, why):
    model, state = kind(), torch.get_rng_state()
    done = ours.patch(model)
    assert [one.why for one in done.left] == [why]
    assert not done.swapped
    assert type(model) is kind
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_torchs_cache_keeps_compiled_code_of_a_patched_model():
    begin_compiling()
    model = nn.Sequential(nn.LayerNorm(12), Attention(), nn.GELU(), nn.RMSNorm(12, eps=1e-6), nn.Softmax(-1))
    model = nn.Sequential(nn.Linear(12, 12), model, nn.Dropout(0.1))
    ours.patch(model)
    counters.clear()
    with torch.autocast("cpu", torch.bfloat16):
        torch.compile(model)(torch.randn(2, 5, 12, requires_grad=True)).sum().backward()
    known = counters["aot_autograd"]
    assert known["autograd_cache_hit"] + known["autograd_cache_saved"] == known["total"] > 0
