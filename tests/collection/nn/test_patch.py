"""`patch`: what it swaps computes the same, what it leaves has a reason, and nothing else of a model changes."""

from __future__ import annotations

import copy
import io
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

from harness import nn as ours
from harness.collection.models import MODELS
from harness.collection.nn import _modules, _patched_blocks, _patched_modules
from tests.one_test import one_test


@pytest.fixture(autouse=True)
def one(one_thread):
    torch.manual_seed(0)


class Head(nn.Module):  # type: ignore[misc] # torch has no types
    """Functions of torch in its forward, which is a method below it, too."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x):
        return self.normal(x) * x.softmax(-1)

    def normal(self, x):
        return functional.layer_norm(x, (8,), self.scale, self.scale)


class Residual(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self):
        super().__init__()
        self.dense, self.dropout, self.LayerNorm = nn.Linear(8, 8), nn.Dropout(1e-12), nn.LayerNorm(8)

    def forward(self, x, residual):
        x = self.dense(x)
        x = self.dropout(x)
        return self.LayerNorm(x + residual)


class Words(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self):
        super().__init__()
        self.first, self.second = Residual(), Residual()
        self.head, self.norm, self.soft = Head(), nn.RMSNorm(8, eps=1e-6), nn.Softmax(-1)

    def forward(self, x):
        return self.soft(self.norm(self.head(self.second(self.first(x, x), x))))


class Conv(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.bn2, self.relu = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.ReLU()

    def forward(self, x):
        y = self.bn2(self.conv(self.relu(self.bn(self.conv(x)))))
        y += x
        return functional.relu(y)


INPUTS = {Words: (4, 8), Conv: (4, 3, 5, 5)}


def made(kind):
    model = kind()
    for one in model.parameters():
        nn.init.normal_(one)
    return model


def results(model, x):
    model.zero_grad()
    y = model(x)
    (y * y).sum().backward()
    found = {name: one.grad.clone() for name, one in model.named_parameters()}
    return {**found, "y": y.detach(), **{name: one.clone() for name, one in model.named_buffers()}}


def alike(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-4, msg=name)


def swapped(done):
    return {(one.name, one.now) for one in done.swapped}


def left(done):
    return {one.name: one.why for one in done.left}


@pytest.mark.parametrize("kind", INPUTS)
def test_a_patched_model_computes_the_same_also_its_gradients_and_statistics(kind):
    model, x = made(kind), torch.randn(INPUTS[kind])
    plain, also = copy.deepcopy(model), copy.deepcopy(model)
    names = list(model.state_dict())
    done = ours.patch(model)
    assert done.swapped
    assert list(model.state_dict()) == names
    copied = copy.deepcopy(model)
    alike(results(model, x), results(plain, x))
    alike(results(copied, x), results(also, x))
    model.eval(), plain.eval()
    torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-4)


def test_what_is_swapped_is_ours_and_undone():
    model = made(Words)
    kinds = [type(module) for module in model.modules()]
    done = ours.patch(model)
    assert swapped(done) >= {
        ("first", "nn.bias_dropout_residual"), ("second", "nn.bias_dropout_residual"),
        ("first.LayerNorm", "nn.layer_norm"), ("norm", "nn.rms_norm"), ("soft", "nn.softmax"),
        ("head", "the same functions of nn"),
    }  # fmt: skip
    assert type(model.first) is type(model.second)
    assert all(isinstance(module, kind) for module, kind in zip(model.modules(), kinds, strict=True))
    again = ours.patch(model)
    assert not again.swapped
    done.undo()
    assert [type(module) for module in model.modules()] == kinds


CALLED = {
    Words: {"layer_norm": 3, "softmax": 2, "rms_norm": 1, "bias_dropout_residual": 2},
    Conv: {"batch_norm_add_relu": 2},
}


@pytest.mark.parametrize("kind", INPUTS)
def test_every_function_of_ours_is_called_in_a_step(kind, monkeypatch):
    calls = Counter()

    def counted(name, function):
        def call(*args, **kwargs):
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    for module in (_modules, _patched_blocks, _patched_modules):
        for name in vars(module).keys() & CALLED[kind].keys():
            monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    model = made(kind)
    ours.patch(model)
    results(model, torch.randn(INPUTS[kind]))
    assert calls == CALLED[kind]


def test_what_is_left_has_a_reason():
    class Own(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x) + 1

    class Same(nn.LayerNorm):
        def forward(self, x):
            return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    class GemmaRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.eps, self.weight = 1e-6, nn.Parameter(torch.zeros(8))

        def forward(self, x):
            return functional.rms_norm(x, (8,), self.weight + 1, self.eps)

    kinds = {
        "own": Own(8), "same": Same(8), "gemma": GemmaRMSNorm(), "bare": nn.LayerNorm(8, elementwise_affine=False),
        "planes": nn.LayerNorm((4, 8)), "columns": nn.Softmax(1), "inplace": nn.Dropout(0.5, inplace=True),
        "none": nn.Dropout(0.0), "eps": nn.RMSNorm(8),
    }  # fmt: skip
    kinds["replaced"] = nn.LayerNorm(8)
    kinds["replaced"].forward = lambda x: x
    done = ours.patch(nn.ModuleDict(kinds), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    assert swapped(done) == {("same", "nn.layer_norm"), ("gemma", "the same functions of nn")}
    assert left(done) == {
        "own": "its own forward computes something else",
        "gemma": "its own forward computes something else",
        "bare": "it has no weight or no bias",
        "planes": "it normalises over 2 dimensions, ours over the last one",
        "columns": "its dimension is 1, ours is the last one, -1",
        "inplace": "it works in place",
        "none": "it drops nothing",
        "eps": "its epsilon isn't given, so it depends on the type",
        "replaced": "its forward was replaced by somebody",
        "optimizer": "our optimizer is AdamW",
    }
    assert "9 x" not in str(done)
    assert "left: it works in place (inplace)" in str(done)


def test_hooks_ties_and_subclasses_stay():
    class Mine(nn.LayerNorm):
        """A subclass with torch's forward."""

    model = nn.Sequential(Mine(8), nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8))
    model[2].weight = model[1].weight
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append("after"))
    ours.patch(model)
    model(torch.randn(4, 8))
    assert calls == ["after"]
    assert model[2].weight is model[1].weight
    assert isinstance(model[0], Mine)


def test_batch_norm_with_a_hook_and_a_forward_that_depends_on_training_stay():
    watched = made(Conv)
    watched.bn.register_forward_hook(lambda *_: None)
    done = ours.patch(watched)
    assert [one.now for one in done.swapped] == ["nn.batch_norm_add_relu"]  # bn2 and the shortcut
    assert not done.left

    class Depends(Conv):
        def forward(self, x):
            return functional.relu(self.bn(x)) if self.training else functional.relu(self.bn(x)) * 2

    class Optional(Conv):
        def forward(self, x, scale=None):
            return functional.relu(self.bn(x)) if scale is None else x

    assert "torch.fx can't trace it" in left(ours.patch(Depends()))[""]
    assert left(ours.patch(Optional()))[""] == "its forward has arguments that may be left out"


def test_an_optimizer_and_a_scaler_go_on_from_their_state_and_back():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}])
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(optimizer, scaler):
        scaler.scale(model(torch.ones(1, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update(4.0)
        optimizer.zero_grad()

    step(optimizer, scaler)
    done = ours.patch(model, optimizer, scaler)
    assert isinstance(done.optimizer, ours.AdamW)
    assert isinstance(done.scaler, ours.GradScaler)
    assert [group["lr"] for group in done.optimizer.param_groups] == [0.1, 0.2]
    assert done.scaler.get_scale() == 4.0
    step(done.optimizer, done.scaler)
    done.undo()
    assert float(optimizer.state[model.weight]["step"]) == 2
    step(optimizer, scaler)
    file = io.BytesIO()
    torch.save(model, file)  # as before, also whole


def test_of_several_optimizers_each_adamw_becomes_ours_and_goes_back():
    model = nn.Linear(4, 4)
    given = {"weights": torch.optim.AdamW([model.weight]), "biases": (torch.optim.SGD([model.bias], lr=0.1),)}
    done = ours.patch(model, given)
    assert isinstance(done.optimizer["weights"], ours.AdamW)
    assert done.optimizer["biases"] == given["biases"]
    assert [(one.name, one.now) for one in done.swapped] == [("optimizer['weights']", "nn.AdamW")]
    assert left(done) == {"optimizer['biases'][0]": "our optimizer is AdamW"}
    model(torch.ones(1, 4)).sum().backward()
    done.optimizer["weights"].step()
    done.undo()
    assert float(given["weights"].state[model.weight]["step"]) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"amsgrad": True}, "our AdamW has no amsgrad"),
        ({"lr": torch.tensor(0.1)}, "its rate is a tensor, which a graph with our AdamW wouldn't follow"),
    ],
)
def test_an_adamw_with_other_options_is_left(change, why):
    model = nn.Linear(2, 2)
    given = torch.optim.AdamW(model.parameters(), **change)
    done = ours.patch(model, given)
    assert left(done)["optimizer"] == why
    assert done.optimizer is given


def test_an_adamw_that_maximizes_goes_on_doing_so():
    done = ours.patch(model := nn.Linear(2, 2), torch.optim.AdamW(model.parameters(), maximize=True))
    assert isinstance(done.optimizer, ours.AdamW)
    assert [group["maximize"] for group in done.optimizer.param_groups] == [True]


def test_our_models_get_our_operators():
    from harness.collection.models.swin import Swin

    model = Swin(MODELS["swin_toy"])
    done = ours.patch(model)
    assert model.operators == ours.swin_operators()
    assert sum(one.now == "nn's operators" for one in done.swapped) > 3
    done.undo()
    assert model.operators == type(model.operators)()


class Gated(nn.Module):  # type: ignore[misc] # torch has no types
    """As transformers has Llama's MLP."""

    def __init__(self, act=None, **options):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 12, **options), nn.Linear(8, 12, **options)
        self.down_proj, self.act_fn = nn.Linear(12, 8, **options), act or nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Swapped(Gated):
    def forward(self, x):
        return self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))


class Dropping(Gated):
    def forward(self, x):
        return functional.dropout(super().forward(x), 0.5, self.training)


class Routed(Gated):
    def forward(self, x, experts):
        return super().forward(x[experts])


@pytest.mark.parametrize("named", [False, True])
def test_a_gated_mlp_runs_by_swiglu_and_is_undone(named):
    model, x = nn.Sequential(made(Gated), made(lambda: Gated(bias=False))), torch.randn(4, 8)
    plain = copy.deepcopy(model)
    seen = []
    model[0].up_proj.register_forward_hook(lambda *_: seen.append(1))
    done = ours.patch(model)
    assert swapped(done) == {("0", "nn.swiglu"), ("1", "nn.swiglu")}
    assert not seen
    alike(results(model, x), results(plain, x))
    assert seen == [1]
    if named:
        torch.testing.assert_close(model[0](x=x), plain[0](x=x), rtol=1e-4, atol=1e-4)
    assert not ours.patch(model).swapped
    done.undo()
    assert type(model[0]) is Gated


@one_test(
    ("model", "why"),
    [
        (lambda: Gated(nn.GELU()), "its own forward computes something else"),
        (Swapped, "its own forward computes something else"),
        (Dropping, "its own forward computes something else"),
        (Routed, "its forward takes more than one argument"),
        (lambda: Gated(nn.PReLU()), "its activation has parameters"),
    ],
)
def test_another_mlp_stays_and_has_a_reason(model, why):
    tried, before = nn.Sequential(model()), torch.get_rng_state()
    done = ours.patch(tried)
    assert left(done)["0"] == why
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(one.now == "nn.swiglu" for one in done.swapped)


def test_projections_of_two_types_are_multiplied_as_torch_does():
    model, x = nn.Sequential(made(Gated)), torch.randn(4, 8)
    model[0].up_proj.register_forward_hook(lambda _module, _given, y: y.half())
    plain = copy.deepcopy(model)
    assert ours.patch(model).swapped
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain(x))


def test_an_activation_that_somebody_watches_stays():
    model = nn.Sequential(Gated())
    model[0].act_fn.register_forward_hook(lambda *_: None)
    assert left(ours.patch(model)) == {"0": "its activation has hooks"}
