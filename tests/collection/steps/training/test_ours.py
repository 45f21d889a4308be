"""Rungs with our operators, which fall back to plain torch on a CPU: what they are given, and that they train alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from functools import cache, partial
from typing import NamedTuple

import pytest
import torch

from harness.collection import nn
from harness.collection.models import MODELS
from harness.collection.nn import _dropout
from harness.collection.steps.training import _bert, _first_step, _operators, _settings, _steps, _trainer
from harness.collection.steps.training._bert import BERT
from harness.collection.steps.training._resnet import RESNET
from harness.collection.steps.training._rungs import DEFAULT, FLOAT32, UNSCALE, Rung
from harness.collection.steps.training._swin import SWIN
from harness.collection.steps.training._trainer import Setup, Trainer
from tests.one_test import one_test
from tests.rare import rare

LADDERS = {"resnet_toy": RESNET, "bert_toy": BERT, "swin_toy": SWIN}
SIZES = {"resnet_toy": 4, "bert_toy": 4, "swin_toy": 2}
"""Of batches: as small as losses fall with, since a CPU computes slowly in float16."""
TRIED = [
    (model, rung)
    for model, rungs in LADDERS.items()
    for rung in rungs
    # BERT's rung takes the fewest seconds to compile; a GPU compiles all.
    # Both modes of torch.compile trace the same.
    if rung.role == "ours" and not rung.graph and (not rung.compiled or (model, rung.compiled) == ("bert_toy", DEFAULT))
]
BASES = {(model, rung.base) for model, rung in TRIED}
"""What they hold, the rungs hold that stand on them."""
OURS = [
    # test_compiled_gradients.py has what is compiled, and that it is compiled once.
    # BERT has most operators of ours. test_first_step.py has the gradients of the other models' operators.
    (rare if rung.compiled or model != "bert_toy" or (model, rung.name) in BASES else pytest.param)(
        model, rung, id=f"{model}-{rung.name}"
    )
    for model, rung in TRIED
]


def named(rungs: Iterable[Rung], name: str) -> Rung:
    (found,) = (rung for rung in rungs if rung.name == name)
    return found


class Training(NamedTuple):
    """The losses of steps, and the length of each weight's gradient in the first step."""

    losses: list[float]
    lengths: dict[str, float]


def trained(rung: Rung, model: str, dtype: torch.dtype = torch.float16) -> Training:
    trainer = Trainer(rung, Setup(model, SIZES[model], 1, torch.device("cpu"), dtype))
    before = [master.detach().clone() for master in trainer.masters]
    first = [trainer.loss_of_step().item()]
    lengths = {one.name: one.grad.norm().item() for one in _first_step._trained(trainer, before)}
    first += [trainer.loss_of_step().item() for _ in range(1, _settings.EAGER)]
    # A graph is captured now, and no capture survives a compilation.
    with torch.compiler.set_stance("fail_on_recompile"):
        rest = [trainer.loss_of_step().item() for _ in range(_steps.STEPS - _settings.EAGER)]
    return Training(first + rest, lengths)


@cache
def exact(model: str) -> Training:
    return trained(FLOAT32, model, torch.float64)


@pytest.mark.parametrize(("model", "rung"), OURS)
def test_losses_and_gradients_are_as_those_of_float32(model, rung, monkeypatch, unmeasured_guards):
    """Losses tell of no factor of gradients, by which AdamW divides. Masks of dropout are others than torch's."""
    real = torch.compile
    options = {"backend": "aot_eager", "fullgraph": True, "dynamic": False}
    monkeypatch.setattr(torch, "compile", lambda made, **_: real(made, **options))
    wanted = exact(model)
    if rung.compiled:  # one layer after the other, so one shows it
        monkeypatch.setattr(_trainer, "MODELS", {model: replace(MODELS[model], layers=1)})
        wanted = exact.__wrapped__(model)
    found, fall = trained(rung, model), wanted.losses[0] - min(wanted.losses)
    apart = [abs(one - other) for one, other in zip(found.losses, wanted.losses, strict=True)]
    assert max(apart) < _steps.ALLOWED * fall
    long = {name: length for name, length in wanted.lengths.items() if length > max(wanted.lengths.values()) / 100}
    assert len(long) > 10
    assert {name: found.lengths[name] for name in long} == pytest.approx(long, rel=0.2)


@pytest.mark.parametrize("name", ["bit_masks_alone", "bit_masks"])
def test_our_dropout_drops_what_it_has_drawn_forward_and_backward(name):
    """In float64, where torch multiplies by the same masks."""
    drawn = []

    def dropout(x, p):
        drawn.append(_dropout._drawn(x, _dropout._draw(x), p))
        return x * drawn[-1] / (1 - p)

    setup = Setup("bert_toy", 4, 1, torch.device("cpu"), torch.float64)
    plain, ours = Trainer(FLOAT32, setup), Trainer(replace(named(BERT, name), half="none", tf32=False), setup)
    dense = partial(_bert.dense_dropout_add, dropout)
    for module in plain.model.modules():
        if hasattr(module, "operators"):
            module.operators = replace(module.operators, dropout=dropout, dense_dropout_add=dense)
    losses = []
    for trainer in (plain, ours):
        torch.manual_seed(3)
        losses.append(trainer.loss_of_step().item())
    p = MODELS["bert_toy"].dropout
    assert all(one.double().mean().item() == pytest.approx(1 - p, abs=0.03) for one in drawn)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)  # the share is one of 16 bits
    for one, other in zip(ours.weights, plain.weights, strict=True):
        assert (one.grad - other.grad).norm() <= 1e-3 * other.grad.norm() + 1e-9


@pytest.mark.parametrize("rungs", LADDERS.values(), ids=LADDERS)
def test_a_rung_keeps_what_its_base_has_and_comes_after_it(rungs):
    parts = [one.name for one in fields(Rung) if one.type == "bool"]
    assert {"tf32", "norm", "graph", "half_norm"} < {*parts}
    below = {}
    for rung in rungs:
        assert rung.name not in below
        assert rung.base in below or not below, rung.name
        if base := below.get(rung.base):
            assert all(getattr(rung, part) >= getattr(base, part) for part in parts), rung.name
            assert replace(rung, name=base.name, summary=base.summary, base=base.base, rows=base.rows) != base
        below[rung.name] = rung


@one_test(
    ("rungs", "path"),
    [
        (SWIN, "graph attention windows fused_norm_adam unscale amp tf32"),
        (SWIN, "compile_half_norm_graph compile_half_norm compile sdpa fused_optimizer amp tf32"),
        (BERT, "compile_ours_graph compile_ours fused_norm_adam bit_masks bit_masks_alone byte_masks unscale amp tf32"),
        (RESNET, "compile_ours_graph compile_ours fused_norm unscale amp tf32"),
    ],
)
def test_the_ladder_stands_on_float32(rungs, path):
    expected = path.split()
    found = [expected[0]]
    while base := named(rungs, found[-1]).base:
        found.append(base)
    assert found == [*expected, "float32"]


def test_masks_of_bits_and_of_bytes_are_compared_by_rungs_that_differ_in_the_dropout_alone():
    in_bytes, in_bits, joined = (named(BERT, name) for name in ("byte_masks", "bit_masks_alone", "bit_masks"))
    same = {"name": "", "summary": "", "base": "", "rows": ()}
    assert replace(in_bits, dropout=False, **same) == replace(in_bytes, **same)
    assert replace(joined, bias_residual=False, **same) == replace(in_bits, **same)
    one, other, last = (
        _operators.operators(rung, MODELS["bert_toy"], torch.device("cpu")) for rung in (in_bytes, in_bits, joined)
    )
    assert one.dropout is torch.nn.functional.dropout
    assert other.dropout is last.dropout is nn.dropout
    assert one.dense_dropout_add.func is other.dense_dropout_add.func is _bert.dense_dropout_add
    assert one.dense_dropout_add.args == (one.dropout,)
    assert other.dense_dropout_add.args == (nn.dropout,)
    assert replace(other, dense_dropout_add=last.dense_dropout_add) == last


def test_bits_alone_are_kept_of_each_dropout_and_nothing_else_changes():
    """What a forward keeps, in bytes, with masks of bytes and of bits."""
    kept = {}
    for name in ("byte_masks", "bit_masks_alone"):
        trainer = Trainer(named(BERT, name), Setup("bert_toy", 8, 1, torch.device("cpu"), torch.bfloat16))
        sizes = []

        def keep(tensor, sizes=sizes):
            sizes.append((tensor.dtype, tensor.numel()))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            trainer.loss_of_step()
        kept[name] = sizes
    config = MODELS["bert_toy"]
    hidden, scores = 8 * config.tokens * config.hidden, 8 * config.heads * config.tokens**2
    masks = [hidden] * (1 + 2 * config.layers) + [scores] * config.layers
    assert sorted(size for kind, size in kept["bit_masks_alone"] if kind == torch.int32) == sorted(
        n // 32 for n in masks
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("model", "rungs", "ours"), [("bert_toy", BERT, "bit_masks"), rare("swin_toy", SWIN, "fused_norm_adam")]
)
def test_half_norm_has_the_types_that_our_norms_leave(model, rungs, ours, device):
    """What LayerNorms are given and give, residuals among it. On a GPU, autocast's LayerNorms give float32."""

    def types(name):
        trainer = Trainer(named(rungs, name), Setup(model, SIZES[model], 1, torch.device(device), torch.float16))
        found, operators = [], trainer.model.operators

        def noted(norm, x):
            y = operators.layer_norm(norm, x)
            found.append((x.dtype, y.dtype))
            return y

        for module in trainer.model.modules():
            if hasattr(module, "operators"):
                module.operators = replace(operators, layer_norm=noted)
        trainer.loss_of_step()
        return found

    assert len(types(ours)) > 4
    assert types("half_norm") == types(ours)
    assert types("fused_optimizer") != types(ours) or (device, model) == ("cpu", "swin_toy")


def test_the_ladder_of_swin_is_that_of_the_talk():
    names = [rung.name for rung in SWIN]
    talk = ["float32", "tf32", "amp", "fused_norm_adam", "windows", "attention", "graph"]
    assert [name for name in names if name in talk] == talk
    assert len(set(names)) == len(names)


def test_rungs_have_our_optimizer_scaler_and_operators():
    setup = Setup("swin_toy", 4, 1, torch.device("cpu"), torch.float16)
    attention = named(SWIN, "attention")
    trainer = Trainer(attention, setup)
    assert isinstance(trainer.optimizer, nn.AdamW)
    assert isinstance(trainer.scaler, nn.GradScaler)
    assert trainer.model.operators.window_attention is nn.window_attention
    assert trainer.model.operators.window_partition is nn.window_partition
    without = Trainer(replace(attention, attention=False, windows=False), setup).model.operators
    assert without.window_attention is None
    assert without.window_partition is not nn.window_partition
    assert isinstance(Trainer(UNSCALE, setup).scaler, nn.GradScaler)


def test_halves_have_masters_in_the_optimizer_alone():
    trainer = Trainer(named(SWIN, "half"), Setup("swin_toy", 4, 1, torch.device("cpu"), torch.float16))
    assert all(one is other for one, other in zip(trainer.weights, trainer.masters, strict=True))
    assert {one.dtype for one in trainer.weights} == {torch.float16}
