"""Modules of harness.nn in place of torch's."""

from __future__ import annotations

import warnings

import pytest
import torch
import yaml

from harness import nn
from tests.collection.nn.features import TABLE
from tests.collection.nn.modules import PAIRS, TRIED
from tests.rare import rare

pytestmark = pytest.mark.usefixtures("unmeasured_guards")
RANKS = {"ddp", "fsdp"}
"""What tests of several ranks try."""


# That a compiler takes the functions of all modules, test_operators.py has, and test_patch_of_others.py has a module.
@pytest.mark.parametrize(
    ("name", "tried"),
    [(rare if tried == "compile" else pytest.param)(name, tried) for name in PAIRS for tried in TRIED],
)
def test_a_module_in_place_of_torchs(name, tried):
    TRIED[tried](PAIRS[name])


def test_everything_on_the_page_is_tried():
    modules = yaml.safe_load(TABLE.read_text(encoding="utf-8"))["modules"]
    assert {*modules} == {*TRIED} | RANKS
    public = {name for name in nn.__all__ if issubclass(type(getattr(nn, name)), type)}
    assert {name for name in public if issubclass(getattr(nn, name), torch.nn.Module)} == {*PAIRS}


def test_softmax_without_a_dimension_takes_the_one_that_torch_takes():
    x = torch.randn(2, 3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(nn.Softmax()(x), torch.nn.Softmax()(x))


def test_dropout_in_place_writes_to_its_input():
    x = torch.ones(64)
    y = nn.Dropout(0.5, inplace=True)(x)
    assert y is x
    assert {*x.tolist()} == {0.0, 2.0}


def test_a_norm_refuses_an_input_of_another_size():
    for norm in (nn.LayerNorm(8), nn.LayerNorm(8, elementwise_affine=False), nn.RMSNorm((3, 8))):
        with pytest.raises(ValueError, match="must be"):
            norm(torch.ones(2, 4))


def test_dropout_of_modules_is_repeated_by_torchs_seed():
    model = torch.nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    torch.manual_seed(5)
    first = model(torch.ones(512))
    torch.manual_seed(5)
    assert torch.equal(model(torch.ones(512)), first)
    assert 90 < int((first > 0).sum()) < 170


def test_a_resumed_training_is_equal_bit_by_bit(tmp_path):
    """What is saved: the parameters, the optimizer's state, and the state of torch's generator."""

    def made():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.5))
        return model, nn.AdamW(model.parameters(), lr=1e-2)

    def train(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            nn.dropout_add(model(torch.full((4, 8), step + 1.0)), torch.ones(4, 8), 0.3).square().mean().backward()
            optimizer.step()
        return [one.detach().clone() for one in model.parameters()]

    model, optimizer = made()
    train(model, optimizer, range(3))
    torch.save([model.state_dict(), optimizer.state_dict(), torch.get_rng_state()], tmp_path / "saved")
    wanted = train(model, optimizer, range(3, 6))
    model, optimizer = made()
    parameters, state, generator = torch.load(tmp_path / "saved")
    model.load_state_dict(parameters)
    optimizer.load_state_dict(state)
    torch.set_rng_state(generator)
    assert all(map(torch.equal, train(model, optimizer, range(3, 6)), wanted))
