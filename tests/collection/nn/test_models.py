"""Models with our operators in place of torch's: the same results in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.collection import nn
from harness.collection.models import MODELS, bert, resnet, swin
from tests.rare import rare


def both(kind, config, operators):
    """The model with torch's operators, and with ours, of equal weights in float64."""
    torch.manual_seed(0)
    plain = kind(config).double()
    ours = kind(config, operators).double()
    ours.load_state_dict(plain.state_dict())
    return plain, ours


def after_a_step(module, model, given):
    """Loss and gradients by name, and then what the model keeps."""
    loss = module.loss(model, given)
    loss.backward()
    return (
        {"loss": loss.detach()}
        | {name: one.grad for name, one in model.named_parameters()}
        | dict(model.named_buffers())
    )


def assert_same(plain, ours):
    for name, value in plain.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


SWIN = replace(MODELS["swin_toy"], drop_path=0.0)


def images(config):
    torch.manual_seed(1)
    return swin.ImageBatch(torch.randn(3, 3, config.image, config.image).double(), torch.tensor([1, 0, 5]))


@pytest.mark.parametrize(
    "chosen",
    [{}, *map(rare, ({"norm": False}, {"windows": False}, {"attention": False}, {"norm": False, "attention": False}))],
)
def test_swin(chosen):
    plain, ours = both(swin.Swin, SWIN, nn.swin_operators(**chosen))
    given = images(SWIN)
    assert_same(after_a_step(swin, plain, given), after_a_step(swin, ours, given))
    with torch.no_grad():
        assert_same({"": plain.eval()(given.images)}, {"": ours.eval()(given.images)})


def test_none_of_ours_is_what_swin_has_by_itself():
    assert nn.swin_operators(norm=False, windows=False, attention=False) == swin.SwinOperators()


@pytest.mark.slow  # test_operators.py has each operator in compiled code, the tests here what the models make of them
def test_swin_compiles_in_one_graph():
    plain, ours = both(swin.Swin, SWIN, nn.swin_operators())
    given = images(SWIN)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager_default_partitioner")
    torch.testing.assert_close(compiled(given.images), plain(given.images), rtol=1e-9, atol=1e-11)


def test_resnet():
    config = MODELS["resnet_toy"]
    plain, ours = both(resnet.ResNet, config, nn.resnet_operators())
    given = images(config)
    assert_same(after_a_step(resnet, plain, given), after_a_step(resnet, ours, given))
    assert_same(dict(plain.named_buffers()), dict(ours.named_buffers()))
    assert_same({"": plain.eval()(given.images)}, {"": ours.eval()(given.images)})


def test_bert_without_dropout():
    config = replace(MODELS["bert_toy"], dropout=0.0)
    plain, ours = both(bert.BertForPreTraining, config, nn.bert_operators())
    given = bert.batch(config, 2, torch.Generator().manual_seed(0), "cpu")
    assert_same(after_a_step(bert, plain, given), after_a_step(bert, ours, given))


def test_bert_with_dropout_makes_a_step():
    config = MODELS["bert_toy"]
    _, ours = both(bert.BertForPreTraining, config, nn.bert_operators())
    made = after_a_step(bert, ours, bert.batch(config, 2, torch.Generator().manual_seed(0), "cpu"))
    assert all(bool(torch.isfinite(one).all()) for one in made.values() if one is not None)
