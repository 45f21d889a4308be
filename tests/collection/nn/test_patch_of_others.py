"""`patch` and what others do with a module before it or after it: own classes, hooks, adapters, schedulers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from harness import nn as ours
from tests.one_test import one_test


@pytest.fixture(autouse=True)
def one(one_thread):
    torch.manual_seed(0)


# ---- Norms with a forward of their own.


class OfImages(nn.LayerNorm):  # type: ignore[misc] # torch has no types
    def forward(self, x):
        y = x.permute(0, 2, 3, 1) if x.ndim == 4 else x
        y = super().forward(y)
        return y.permute(0, 3, 1, 2) if x.ndim == 4 else y


class InTraining(nn.LayerNorm):  # type: ignore[misc] # torch has no types
    def forward(self, x):
        return super().forward(x) * (2 if self.training else 1)


class Storing(nn.LayerNorm):  # type: ignore[misc] # torch has no types
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Counting(nn.LayerNorm):  # type: ignore[misc] # torch has no types
    def __init__(self, width):
        super().__init__(width)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class OwnRMSNorm(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return functional.rms_norm(x, (8,), self.weight, 1e-6)


class Gated(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self, width):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        self.gate = functional.silu(self.gate_proj(x))
        return self.down_proj(self.gate * self.up_proj(x))


@one_test(
    ("kind", "why"),
    [
        (OfImages, "its own forward can't be tried: RuntimeError"),
        (InTraining, "its own forward computes something else"),
        (lambda width: InTraining(width).eval(), "its own forward computes something else"),
        (Storing, "its own forward stores calls"),
        (Counting, "it has buffers, which its own forward may change"),
        (OwnRMSNorm, "it has no epsilon of the name eps or variance_epsilon or epsilon"),
        (Gated, "its own forward stores gate"),
    ],
)
def test_a_class_that_does_more_or_less_than_ours_stays(kind, why):
    model = kind(8)
    before = copy.deepcopy(model)
    assert {one.why for one in ours.patch(nn.Sequential(model)).left} == {why}
    assert vars(model).keys() == vars(before).keys()
    torch.testing.assert_close(model.state_dict(), before.state_dict())


def test_parametrized_weights_stay_so_that_the_parametrization_can_be_removed():
    model = parametrize.register_parametrization(nn.LayerNorm(8), "weight", nn.Softplus())
    assert [one.why for one in ours.patch(model).left] == ["it is parametrized, by a class of its own"]
    parametrize.remove_parametrizations(model, "weight")


def test_a_module_that_got_another_class_since_says_so_when_the_patch_is_undone():
    model = nn.LayerNorm(8)
    done = ours.patch(model)
    parametrize.register_parametrization(model, "weight", nn.Softplus())
    with pytest.raises(RuntimeError, match="a LayerNorm has become a ParametrizedLayerNorm since it was patched"):
        done.undo()


def test_functions_may_be_called_with_the_names_of_torchs_arguments():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8))

        def forward(self, x):
            w = self.weight
            x = functional.softmax(input=x, dim=-1) + torch.softmax(input=x, dim=-1)
            x = functional.layer_norm(input=x, normalized_shape=(8,), weight=w, bias=w)
            x = functional.dropout(input=x, p=1e-12)
            return functional.rms_norm(input=x, normalized_shape=(8,), weight=w, eps=1e-5)

    model, x = Named(), torch.randn(4, 8)
    want = model(x)
    assert ours.patch(model).swapped
    torch.testing.assert_close(model(x), want)


# ---- What is done with a patched model.


class Block(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU()
        self.dense, self.dropout = nn.Linear(5, 5), nn.Dropout(1e-12)

    def forward(self, x):
        y = self.relu(self.bn(self.conv(x)) + x)
        return y + self.dropout(self.dense(y))


class Adapted(nn.Linear):  # type: ignore[misc] # torch has no types
    def forward(self, x):
        return super().forward(x) + 1


def patched():
    model = Block()
    plain = copy.deepcopy(model)
    assert {one.now for one in ours.patch(model).swapped if not one.name} == {
        "nn.batch_norm_add_relu", "nn.bias_dropout_residual",
    }  # fmt: skip
    return model, plain


def same(model, plain, steps=3):
    for _ in range(steps):
        x = torch.randn(4, 3, 5, 5)
        torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-4)


@one_test("name", ["bn", "relu", "dense", "dropout"])
def test_a_hook_that_is_registered_after_the_patch_is_called(name):
    model, plain = patched()
    calls = []
    model.get_submodule(name).register_forward_hook(lambda *_: calls.append(name))
    same(model, plain, steps=2)
    assert calls == [name, name]


def test_a_module_that_is_replaced_after_the_patch_is_called():
    model, plain = patched()
    for one in (model, plain):
        adapted = Adapted(5, 5)
        adapted.load_state_dict(plain.dense.state_dict())
        one.dense = adapted
        one.bn = nn.InstanceNorm2d(3, affine=True)
        one.dropout = nn.Identity()
    same(model, plain)


@one_test("name", ["bn", "relu", "dense", "dropout"])
def test_a_forward_that_a_module_gets_after_the_patch_is_called(name):
    model, plain = patched()
    for one in (model, plain):
        module = one.get_submodule(name)
        module.forward = lambda x, inner=module.forward: inner(x) + 3
    same(model, plain)


def test_a_layer_that_loses_its_bias_after_the_patch_has_none():
    model, plain = patched()
    model.dense.bias = plain.dense.bias = None
    same(model, plain)


@pytest.mark.parametrize("change", [{"track_running_stats": False}, {"momentum": None}, {"training": False}])
def test_a_setting_of_batch_norm_that_is_changed_after_the_patch_counts(change):
    model, plain = patched()
    for one in (model, plain):
        vars(one.bn).update(change)
    same(model, plain)


def test_a_sequence_may_be_cut_and_grow_after_the_patch():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 1))
    plain, x = copy.deepcopy(model), torch.randn(2, 3, 5, 5)
    assert ours.patch(model).swapped
    torch.testing.assert_close(model[:3](x), plain[:3](x), rtol=1e-4, atol=1e-4)
    for one in (model, plain):
        one.append(nn.Sigmoid())
    torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-4)
    for one in (model, plain):
        del one[3]
    torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # test_operators.py has compiled functions, the test above a patched sequence
def test_a_patched_sequence_is_compiled_as_a_whole():
    model, x = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU(inplace=True)), torch.randn(2, 3, 5, 5)
    plain = copy.deepcopy(model)
    assert ours.patch(model).swapped
    seen = []
    compiled = torch.compile(model, fullgraph=True, backend=lambda graph, _: seen.append(str(graph.graph)) or graph)
    torch.testing.assert_close(compiled(x), plain(x), rtol=1e-4, atol=1e-4)
    assert len(seen) == 1
    assert "harness.bn_add_relu" in seen[0]


# ---- The optimizer.


def adamw(**options):
    model = nn.Linear(2, 2)
    groups = [{"params": [model.weight], "name": "matrices", "share": 0.5}, {"params": [model.bias]}]
    return model, torch.optim.AdamW(groups, lr=0.1, **options)


def test_an_optimizer_keeps_what_others_store_in_its_groups_and_its_hooks():
    model, given = adamw()
    calls = []
    given.register_step_pre_hook(lambda *_: calls.append("before"))
    given.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer = ours.patch(model, given).optimizer
    assert isinstance(optimizer, ours.AdamW)
    assert [group.get("name") for group in optimizer.param_groups] == ["matrices", None]
    assert optimizer.param_groups[0]["share"] == 0.5
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert calls == ["before", "after"]


def test_an_optimizer_with_a_scheduler_stays_since_the_scheduler_knows_it_alone():
    model, given = adamw()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(given, 0.5)
    done = ours.patch(model, given)
    assert [one.why for one in done.left] == [
        "it has a scheduler of the rate, which ours wouldn't follow: make the scheduler after the patch"
    ]
    done.optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in done.optimizer.param_groups] == [0.05, 0.05]


def test_an_optimizer_with_tensors_as_betas_stays():
    model, given = adamw(betas=(torch.tensor(0.9), torch.tensor(0.99)), capturable=True)
    assert [one.why for one in ours.patch(model, given).left] == ["its betas are tensors, ours numbers"]


def test_an_optimizer_of_complex_weights_stays_and_makes_steps():
    weight = nn.Parameter(torch.ones(3, dtype=torch.cfloat))
    done = ours.patch(nn.Sequential(nn.LayerNorm(3)), torch.optim.AdamW([weight]))
    assert [one.why for one in done.left] == ["it has complex weights, which our AdamW doesn't take"]
    weight.abs().sum().backward()
    done.optimizer.step()
    assert bool((weight != 1).all())


@one_test(
    ("module", "sizes"),
    [
        (nn.GELU(), (2, 4)),
        (nn.LayerNorm(4), (2, 4)),
        (nn.Softmax(-1), (2, 4)),
        (nn.Dropout(0.5), (2, 4)),
        (nn.Conv2d(3, 8, 4, 4), (2, 3, 8, 8)),
    ],
)
@one_test("device", ["cpu", "meta"])
def test_a_patched_module_takes_its_input_by_name_and_without_numbers(module, sizes, device):
    model, x = nn.Sequential(copy.deepcopy(module).to(device)), torch.ones(sizes, device=device)
    want = model[0](x).shape
    assert ours.patch(model).swapped
    assert model[0](input=x).shape == want


class Calling(nn.Module):  # type: ignore[misc] # torch has no types
    def forward(self, x):
        return functional.softmax(x.unflatten(-1, (2, 4)), -1).flatten(-2)


class Keeping(nn.Module):  # type: ignore[misc] # torch has no types
    """As models of transformers say that they keep no activations."""

    def __init__(self):
        super().__init__()
        self.inner, self.gradient_checkpointing = Calling(), True

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


@one_test("kind", [Calling, Keeping])
def test_functions_in_compiled_code_are_no_break(kind):
    torch._dynamo.reset()
    model = kind()
    assert [one.now for one in ours.patch(model).swapped] == ["the same functions of nn"]
    x = torch.randn(3, 8, requires_grad=True)
    y = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    want = functional.softmax(x.view(3, 2, 4), -1).view(3, 8)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(*(torch.autograd.grad(one.square().sum(), x)[0] for one in (y, want)))
