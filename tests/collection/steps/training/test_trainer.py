"""What rungs do differently in a step: masters of halves, unscaling one by one, torch's attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.collection.models import MODELS, bert, swin
from harness.collection.steps.training import _operators, _trainer
from harness.collection.steps.training._resnet import RESNET
from harness.collection.steps.training._rungs import AMP, FUSED, SDPA, UNSCALE_LOOP
from harness.collection.steps.training._trainer import Trainer
from tests.rare import rare

(HALF,) = (rung for rung in RESNET if rung.half == "pure" and rung.role == "baseline")


def weights(trainer):
    return [weight.detach().clone() for weight in trainer.weights]


def test_pure_halves_are_rounded_masters_after_each_step(setup):
    trainer = Trainer(HALF, setup)
    before = weights(trainer)
    for _ in range(2):
        trainer.loss_of_step()
        assert all(master.dtype == torch.float32 for master in trainer.masters)
        assert all(one.equal(other.to(one.dtype)) for one, other in zip(trainer.weights, trainer.masters, strict=True))
    changed = sum(not one.equal(other) for one, other in zip(before, trainer.weights, strict=True))
    assert changed > 0.9 * len(before)
    assert {weight.dtype for weight in trainer.weights} >= {torch.float16}


@pytest.mark.parametrize("training", ["resnet50_train", "bert_train", rare("swin_train")], indirect=True)
def test_batch_norms_of_a_model_in_halves_stay_in_float32(setup):
    trainer = Trainer(HALF, setup)
    norms = [one for one in trainer.model.modules() if isinstance(one, torch.nn.BatchNorm2d)]
    assert bool(norms) == (setup.model == "resnet_toy")
    assert all(one.weight.dtype == one.running_mean.dtype == torch.float32 for one in norms)
    kinds = {
        one.dtype for name, one in trainer.model.named_parameters() if "bn" not in name and "downsample.1" not in name
    }
    assert kinds == {torch.float16}


@pytest.mark.parametrize("scale", [2.0**10, 2.0**60], ids=["finite", "overflow"])
def test_unscaling_one_by_one_is_unscaling_all(setup, scale, monkeypatch):
    """Also where gradients overflow: no weight is changed then, and the scale is halved."""
    monkeypatch.setattr(_trainer, "SCALE", scale)
    loop, foreach = Trainer(UNSCALE_LOOP, setup), Trainer(AMP, setup)
    before = weights(loop)
    losses = []
    for trainer in (loop, foreach):
        torch.manual_seed(3)
        losses.append([trainer.loss_of_step().item() for _ in range(2)])
    assert losses[0] == losses[1]
    assert all(one.equal(other) for one, other in zip(weights(loop), weights(foreach), strict=True))
    skipped = all(one.equal(other) for one, other in zip(before, weights(loop), strict=True))
    assert skipped == (scale > 2**30)
    assert loop.scaler.get_scale() == foreach.scaler.get_scale() == (scale / 4 if skipped else scale)


@pytest.mark.parametrize("training", [rare("resnet50_train"), "bert_train", rare("swin_train")], indirect=True)
def test_the_fused_optimizer_makes_the_same_steps(setup):
    fused, foreach = Trainer(FUSED, setup), Trainer(AMP, setup)
    for trainer in (fused, foreach):
        torch.manual_seed(3)
        for _ in range(3):
            trainer.loss_of_step()
    for one, other in zip(weights(fused), weights(foreach), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_weights_do_not_depend_on_how_the_model_is_trained(setup):
    of_rungs = [weights(Trainer(rung, setup)) for rung in (AMP, replace(AMP, tf32=False), FUSED)]
    assert all(one.equal(other) for one, other in zip(of_rungs[0], of_rungs[1], strict=True))
    assert all(one.equal(other) for one, other in zip(of_rungs[0], of_rungs[2], strict=True))


def test_channels_last_holds_for_images_and_convolutions():
    setup = _trainer.Setup("resnet_toy", 4, 1, torch.device("cpu"), torch.float16, "nhwc")
    trainer = Trainer(AMP, setup)
    assert trainer.batch.images.is_contiguous(memory_format=torch.channels_last)
    assert trainer.model.layer1[0].conv2.weight.is_contiguous(memory_format=torch.channels_last)
    assert not trainer.model.layer1[0].conv2.weight.is_contiguous()


@pytest.mark.parametrize("model", ["bert_toy", "swin_toy"])
def test_torch_s_attention_is_that_of_the_model(model):
    """Losses and gradients in float64, with padding in BERT and with rolled windows in Swin."""
    config = MODELS[model]
    module, kind = (bert, bert.BertForPreTraining) if model == "bert_toy" else (swin, swin.Swin)
    given = module.batch(config, 4, torch.Generator().manual_seed(0), "cpu")
    given = type(given)(*(one.double() if one.is_floating_point() else one for one in given))
    found = []
    for operators in (None, _operators.operators(SDPA, config, torch.device("cpu"))):
        torch.manual_seed(0)
        net = kind(config, operators).double().eval()
        loss = module.loss(net, given)
        found.append((loss, torch.autograd.grad(loss, list(net.parameters()))))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-11)
