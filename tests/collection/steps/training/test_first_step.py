"""The comparison of a rung's first step with a reference: honest rungs pass it, and whatever isn't trained is found."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from harness.collection.models import MODELS
from harness.collection.nn import _dropout
from harness.collection.steps.training import _first_step, _trainer
from harness.collection.steps.training._bert import BERT
from harness.collection.steps.training._resnet import RESNET
from harness.collection.steps.training._rungs import AMP, FLOAT32, FUSED, TF32, Rung
from harness.collection.steps.training._swin import SWIN
from harness.collection.steps.training._trainer import Setup, Trainer
from tests.rare import rare

LADDERS = {"swin_toy": SWIN, "bert_toy": BERT, "resnet_toy": RESNET}
HALVES = {model: next(r for r in ladder if r.half == "pure") for model, ladder in LADDERS.items()}
OURS = {
    model: [r for r in ladder if r.role == "ours" and not r.graph and not r.compiled]
    for model, ladder in LADDERS.items()
}
HONEST = [
    # The last rung of ours stands on the others.
    (pytest.param if rung == OURS[model][-1] else rare)(model, rung, dtype, id=f"{model}-{rung.name}-{dtype}")
    for model in LADDERS
    for rung, dtype in [
        *((rung, "float16") for rung in (TF32, HALVES[model])),
        *((rung, "bfloat16") for rung in (AMP, OURS[model][-2], OURS[model][-1])),
    ]
]


def setup_of(model: str, dtype: str = "float16") -> Setup:
    size = 2 if model == "swin_toy" else 8  # a CPU computes slowly in float16, and batch norm needs more
    return Setup(model, size, 1, torch.device("cpu"), getattr(torch, dtype))


def found(model: str, rung: Rung, dtype: str = "float16") -> str:
    return "; ".join(_first_step.complaints(rung, setup_of(model, dtype)))


@pytest.fixture
def changed(monkeypatch):
    """changed(change): every trainer from now on is changed when it is made. The reference has no trainer."""
    real = Trainer.__init__

    def put(change):
        def make(trainer, *arguments):
            real(trainer, *arguments)
            change(trainer)

        monkeypatch.setattr(Trainer, "__init__", make)

    return put


@pytest.mark.parametrize(("model", "rung", "dtype"), HONEST)
def test_honest_rungs_pass(model, rung, dtype):
    assert not found(model, rung, dtype)


def test_a_tolerance_finds_what_is_twice_as_large_or_absent():
    for model in MODELS:
        for rung in (FLOAT32, AMP, replace(AMP, half="pure")):
            for dtype in (torch.float16, torch.bfloat16):
                setup = Setup(model, 8, 1, torch.device("cuda"), dtype)
                assert 0 < _first_step.allowed(rung, setup) <= 0.8
    wide = Setup("swin_large", 8, 1, torch.device("cuda"), torch.float16)
    assert _first_step.allowed(AMP, wide) < 0.05
    assert _first_step.allowed(FLOAT32, wide) < 1e-3


KINDS = [
    rare("swin_toy", "attn.qkv.weight"),
    rare("swin_toy", "norm1"),
    ("swin_toy", "relative_position_bias_table"),
    rare("swin_toy", "features.1.0.mlp.3.bias"),
    rare("bert_toy", "self.query"),
    rare("bert_toy", "LayerNorm"),
    ("bert_toy", "layer.1.intermediate.dense.weight"),
    rare("resnet_toy", "bn2"),
    rare("resnet_toy", "layer3.0.conv1"),
]


@pytest.mark.parametrize(("model", "kind"), KINDS)
def test_a_kind_of_weights_that_is_frozen_is_found(model, kind, changed):
    frozen = []

    def freeze(trainer):
        frozen[:] = [name for name, _ in trainer.model.named_parameters() if kind in name]
        for name in frozen:
            trainer.model.get_parameter(name).requires_grad_(False)

    changed(freeze)
    complaint = found(model, AMP)
    assert complaint.startswith(f"weights: {len(frozen)} of ")
    assert f"had no gradient: {frozen[0]}" in complaint


@pytest.mark.parametrize("rung", [rare(AMP), OURS["swin_toy"][-1]], ids=lambda rung: rung.name)
def test_gradients_of_zeros_are_found(rung, changed):
    def cut(trainer):
        for block in (trainer.model.features[1], trainer.model.features[3]):
            block[0].attn.qkv.weight.register_hook(torch.zeros_like)

    changed(cut)
    cut_off = "features.1.0.attn.qkv.weight, features.3.0.attn.qkv.weight"
    assert found("swin_toy", rung).startswith(f"weights: 2 of 63 had no gradient: {cut_off}")


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        *(("bert_toy", "float16"), ("resnet_toy", "bfloat16"), rare("swin_toy", "float16")),
        *(rare(*given) for given in (("bert_toy", "bfloat16"), ("resnet_toy", "float16"), ("swin_toy", "bfloat16"))),
    ],
)
def test_gradients_that_are_not_unscaled_are_found(model, dtype, changed):
    """AdamW alone wouldn't show it: its first update is the same for any multiple of the gradient."""
    changed(lambda trainer: [weight.register_hook(lambda grad: 2 * grad) for weight in trainer.weights])
    assert "the gradient in the first step is off" in found(model, AMP, dtype)


@pytest.mark.parametrize("model", ["bert_toy", rare("swin_toy"), rare("resnet_toy")])
def test_another_epsilon_of_norms_is_found(model, changed):
    def widen(trainer):
        for module in trainer.model.modules():
            if hasattr(module, "eps"):
                module.eps = 1e-5 if model == "bert_toy" else 1e-2  # torch's own, where BERT has another

    changed(widen)
    assert "the gradient in the first step is off" in found(model, FLOAT32)


UPDATES = [{"weight_decay": 0.0}, {"lr": 1e-3}, {"eps": 1e-6}, {"betas": (0.9, 0.99)}]


@pytest.mark.parametrize(
    ("rung", "wrong"),
    [
        *((OURS["swin_toy"][-1], wrong) for wrong in UPDATES[::3]),
        *(rare(OURS["swin_toy"][-1], wrong) for wrong in UPDATES[1:3]),
        *(rare(AMP, wrong) for wrong in UPDATES),
    ],
    ids=lambda given: getattr(given, "name", str(given)),
)
def test_another_update_is_found(rung, wrong, changed):
    changed(lambda trainer: trainer.optimizer.param_groups[0].update(wrong))
    assert "the update in the first step is off" in found("swin_toy", rung)


def test_another_rate_of_sgd_is_found(changed):
    changed(lambda trainer: trainer.optimizer.param_groups[0].update(lr=1e-3))
    assert "the update in the first step is off" in found("resnet_toy", AMP)


def test_weights_that_are_not_their_masters_are_found(monkeypatch):
    real = Trainer._step

    def step(trainer):
        real(trainer)
        trainer.weights[1].data.mul_(2)

    monkeypatch.setattr(Trainer, "_step", step)
    assert "features.0.0.bias differ" in found("swin_toy", HALVES["swin_toy"])


def test_a_wrong_gradient_of_dropout_is_found_though_nothing_is_dropped(monkeypatch):
    rung = next(rung for rung in BERT if rung.name == "bit_masks")
    real = _dropout._dropout_grad_by_torch
    monkeypatch.setattr(_dropout, "_dropout_grad_by_torch", lambda dy, bits, p: 1.5 * real(dy, bits, p))
    assert "the gradient in the first step is off" in found("bert_toy", rung)


# ---- The replay of a graph, which a CPU has none of.


@pytest.fixture
def graphs(monkeypatch):
    """graphs(replay): a graph is what this makes of a step."""

    def put(replay):
        monkeypatch.setattr(_first_step, "side_stream", nullcontext)
        monkeypatch.setattr(_trainer, "captured", lambda step, **_: replay(step))

    return put


@pytest.mark.slow  # test_graphs.py has steps of a graph, the tests above what a first step lacks
@pytest.mark.parametrize("model", ["bert_toy", rare("swin_toy"), rare("resnet_toy")])
def test_a_replay_is_judged_as_a_first_step(model, graphs):
    rungs = replace(FUSED, graph=True), replace(OURS[model][-1], graph=True)
    graphs(lambda step: step)
    assert [found(model, rung, "bfloat16") for rung in rungs] == ["", ""]
    graphs(lambda _: lambda: None)
    assert "had no gradient" in found(model, rungs[0])


# ---- The trainer that is timed.


def test_a_weight_that_has_no_gradient_in_any_step_is_found(setup):
    trainer = Trainer(AMP, setup)
    trainer.loss_of_step()
    assert not [*_first_step.untrained(trainer, setup)]
    trainer = Trainer(AMP, setup)
    trainer.weights[0].requires_grad_(False)
    trainer.loss_of_step()
    name = next(name for name, _ in trainer.model.named_parameters())
    (complaint,) = _first_step.untrained(trainer, setup)
    assert complaint.endswith(f"had no gradient: {name}")
