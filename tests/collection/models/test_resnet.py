"""ResNet-50: the same as torchvision's with the same weights; and its operators."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from harness.collection.models import MODELS, resnet

TOY = MODELS["resnet_toy"]
WIDE = replace(TOY, width=64)


def inputs(tools):
    return resnet.ImageBatch(tools.numbers(4, 3, TOY.image, TOY.image), torch.tensor([1, 0, 9, 4]))


def test_equals_torchvision(tools):
    theirs_of = pytest.importorskip("torchvision.models.resnet")
    given, ours = inputs(tools), tools.seeded(resnet.ResNet(WIDE))
    theirs = theirs_of.ResNet(theirs_of.Bottleneck, [*WIDE.depths], WIDE.classes).double()
    theirs.load_state_dict(ours.state_dict())
    expected = functional.cross_entropy(theirs(given.images), given.labels, label_smoothing=0.1)
    tools.assert_same(
        tools.gradients(ours, resnet.loss(ours, given)) | ours.state_dict(),
        tools.gradients(theirs, expected) | theirs.state_dict(),
    )
    tools.assert_same({"": ours.eval()(given.images)}, {"": theirs.eval()(given.images)})


@pytest.mark.slow  # test_equals_torchvision has its numbers, test_steps.py its training
def test_fingerprint(tools):
    model, given = tools.seeded(resnet.ResNet(WIDE)), inputs(tools)
    loss = resnet.loss(model, given)
    slopes = tools.gradients(model, loss)
    outside = model.eval()(given.images)
    some = [slopes[name] for name in ("conv1.weight", "layer2.1.bn3.weight", "layer4.0.downsample.0.weight")]
    expected = [2.48479735445, 0.0796648313144, 0.554639415425, 102.656503881, 1.1755441111, 13.299363553]
    assert tools.fingerprint((outside,), loss, some) == pytest.approx(expected, rel=1e-9)


def test_operators_can_be_swapped(tools):
    given, plain = inputs(tools), tools.seeded(resnet.ResNet(TOY))

    def other(norm, x, residual):
        return (norm(x) if residual is None else norm(x) + residual).relu()

    operators, calls = tools.operators_counted(resnet.ResNetOperators, {"bn_add_relu": other})
    swapped = tools.seeded(resnet.ResNet(TOY, operators))
    losses = [resnet.loss(model, given) for model in (plain, swapped)]
    tools.assert_same(*(tools.gradients(model, loss) for model, loss in zip((plain, swapped), losses, strict=True)))
    assert calls == {"bn_add_relu": 1 + 3 * sum(TOY.depths)}


def test_bottlenecks_may_begin_as_the_identity():
    model = resnet.ResNet(replace(TOY, zero_last_gamma=True))
    last = [block.bn3.weight for block in model.modules() if isinstance(block, resnet.Bottleneck)]
    assert len(last) == sum(TOY.depths)
    assert not any(gamma.any() for gamma in last)
    assert all(block.bn3.weight.all() for block in resnet.ResNet(TOY).layer2)


def test_channels_last_gives_the_same(tools):
    model, given = tools.seeded(resnet.ResNet(TOY)).eval(), inputs(tools)
    expected = model(given.images)
    model.to(memory_format=torch.channels_last)
    actual = model(given.images.contiguous(memory_format=torch.channels_last))
    tools.assert_same({"": actual}, {"": expected})
