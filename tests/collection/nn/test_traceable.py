"""A forward that does more than a trace of it holds stays as it is, with the reason; other forwards are swapped."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from harness import nn as ours
from tests.one_test import one_test

SEEN: list[int] = []
SCALE = 0.5


@pytest.fixture(autouse=True)
def one(one_thread):
    torch.manual_seed(0)


class Norm(nn.LayerNorm):  # type: ignore[misc] # torch has no types
    def doubled(self, x):
        return x * 2 if self.training else x


class Block(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self):
        super().__init__()
        self.dense, self.dropout, self.norm = nn.Linear(8, 8), nn.Dropout(1e-12), Norm(8)
        self.skip, self.alpha = None, 1.0
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def frozen(self, x):
        return self.dense(x)

    def counted(self, x):
        self.count += 1
        return x

    def scaled(self, x):
        return scaled(x) if self.skip is None else self.skip(x)


def scaled(x):
    return x * SCALE


class Reversed(torch.autograd.Function):  # type: ignore[misc] # torch has no types
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return -dy


def with_buffer(self, x):
    self.count += 1
    return x + self.dropout(self.dense(x))


def with_attribute(self, x):
    self.seen = x.detach().mean()
    return x + self.dropout(self.dense(x))


def with_setting(self, x):
    return x * self.alpha + self.dropout(self.dense(x))


def with_draw(self, x):
    if torch.rand(()) < 0.5:
        return x
    return x + self.dropout(self.dense(x))


def with_random(self, x):
    return x * random.random() + self.dropout(self.dense(x))


def without_gradient(self, x):
    with torch.no_grad():
        y = self.dense(x)
    return y + self.dropout(self.norm(x))


def with_decorated(self, x):
    return self.frozen(x) + self.dropout(self.norm(x))


def with_counted(self, x):
    return self.counted(x) + self.dropout(self.norm(x))


def with_function(self, x):
    return x + self.dropout(Reversed.apply(self.dense(x)))


def with_checkpoint(self, x):
    return x + self.dropout(checkpoint(self.dense, x, use_reentrant=False))


def with_list(self, x):
    SEEN.append(1)
    return x + self.dropout(self.dense(x))


def with_type(self, x):
    y = x * 2 if isinstance(x, torch.Tensor) else x
    return y + self.dropout(self.dense(x))


def with_none(self, x):
    y = x * 2 if x is None else x
    return y + self.dropout(self.dense(x))


def in_place_on_an_alias(self, x):
    y = self.norm(x)
    kept = y
    y += self.dropout(self.dense(x))
    return y * kept


def in_place_on_a_part(self, x):
    y = self.norm(x)
    part = y.view(-1)
    y += self.dropout(self.dense(x))
    return y, part


def in_place_on_a_listed(self, x):
    kept, y = [], self.norm(x)
    kept.append(y)
    y += self.dropout(self.dense(x))
    return y, kept


def in_place_on_a_view(self, x):
    y = self.norm(x)
    part = torch.flatten(y)
    y += self.dropout(self.dense(x))
    return y, part


def in_place_on_twins(self, x):
    y = kept = self.norm(x)
    y += self.dropout(self.dense(x))
    return y * kept


def with_mode_of_a_child(self, x):
    return self.dense(x) + self.dropout(self.norm.doubled(x))


def in_place_in_a_loop(self, x):
    y, kept = self.norm(x), x
    for _ in range(2):
        y += self.dropout(self.dense(x))
        kept = y
    return y * kept


def in_place_on_the_callers(self, x):
    x += self.dropout(self.dense(self.norm(x)))
    return x


def with_lambda(self, x):
    double = lambda y: y * 2  # noqa: E731
    return double(x) + self.dropout(self.dense(x))


LEFT = {
    with_buffer: "its forward stores in self.count",
    with_attribute: "its forward stores in self.seen",
    with_setting: "its forward reads self.alpha, which may change",
    with_draw: "its forward uses torch.rand",
    with_random: "its forward uses random.random",
    without_gradient: "its forward has a 'with' statement",
    with_decorated: "its forward calls self.frozen, which has a decorator",
    with_counted: "its forward calls self.counted, which stores in self.count",
    with_function: "its forward uses Reversed.apply",
    with_checkpoint: "its forward uses checkpoint",
    with_list: "its forward uses SEEN.append",
    with_type: "its forward uses isinstance",
    with_none: "its forward asks what x is",
    in_place_on_an_alias: "its forward changes y in place, which may have other names",
    in_place_on_a_part: "its forward changes y in place, which may have other names",
    in_place_on_a_listed: "its forward changes y in place, which may have other names",
    in_place_on_a_view: "its forward changes y in place, which may have other names",
    in_place_on_twins: "its forward changes y in place, which may have other names",
    with_mode_of_a_child: "its forward calls self.norm.doubled, which reads self.training, which may change",
    in_place_in_a_loop: "its forward changes y in place, which may have other names",
    in_place_on_the_callers: "its forward changes x in place, which may have other names",
    with_lambda: "its forward has a function in it",
}


def block(forward):
    return type("Own", (Block,), {"forward": forward})()


def results(model, x):
    torch.manual_seed(1)
    random.seed(1)
    y = model(x)
    total = sum((one * one).sum() for one in (y if isinstance(y, tuple) else (y,)) if isinstance(one, torch.Tensor))
    total.backward()
    gradients = {name: one.grad for name, one in model.named_parameters()}
    return total.detach(), gradients, dict(model.named_buffers())


@one_test("forward", LEFT)
def test_a_forward_that_does_more_than_a_trace_holds_stays(forward):
    model = block(forward)
    plain, names, random_state = copy.deepcopy(model), set(vars(model)), torch.get_rng_state()
    done = ours.patch(model)
    assert {one.name: one.why for one in done.left} == {"": LEFT[forward]}
    assert {one.name for one in done.swapped} == {"dropout", "norm"}
    assert set(vars(model)) == names
    assert torch.equal(torch.get_rng_state(), random_state)
    if forward is in_place_on_the_callers:  # torch itself refuses its backward
        return
    x = torch.randn(4, 8)
    for _ in range(2):
        torch.testing.assert_close(results(model, x), results(plain, x), rtol=1e-4, atol=1e-4)
        model.eval(), plain.eval()


def in_place_on_a_new_one(self, x):
    kept = x
    x = self.dense(x)
    x = self.dropout(x)
    x += kept
    return x


def by_helpers(self, x):
    y: torch.Tensor = self.dense(x)
    if self.skip is not None:
        x = self.skip(x)
    return self.scaled(x) + self.dropout(functional.relu(y))


def one_or_the_other(self, x):
    if self.training:
        return x + self.dropout(self.dense(x))
    return x + self.dropout(self.dense(x))


@pytest.mark.parametrize(
    ("forward", "now"),
    [
        (in_place_on_a_new_one, "nn.bias_dropout_residual"),
        (by_helpers, "nn.dropout_add"),
        (one_or_the_other, "nn.bias_dropout_residual"),
    ],
)
def test_a_forward_that_a_trace_holds_is_swapped(forward, now):
    model, x = block(forward), torch.randn(4, 8)
    plain = copy.deepcopy(model)
    done = ours.patch(model)
    assert [one.now for one in done.swapped if not one.name] == [now]
    torch.testing.assert_close(results(model, x), results(plain, x), rtol=1e-4, atol=1e-4)


def test_a_forward_that_does_other_things_in_training_says_so():
    def forward(self, x):
        y = self.dropout(self.dense(x))
        return x + y if self.training else x - y

    assert ours.patch(block(forward)).left[0].why == "torch.fx can't trace it (it does other things in training)"


def test_a_forward_without_source_stays():
    names = {}
    exec("def forward(self, x):\n    return x + self.dropout(self.dense(x))\n", names)
    assert ours.patch(block(names["forward"])).left[0].why == "its forward has no source that can be read"
