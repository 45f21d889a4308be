"""What a file gives that the harness can't measure is refused before anything is measured, with what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.collection.steps import ladder
from harness.collection.steps.ladder import _given
from harness.errors import UsageError

FILE = """
import collections, dataclasses, torch
from torch import nn

@dataclasses.dataclass
class Pair:
    x: torch.Tensor

class Encoding(collections.UserDict):
    pass

def model(): return {model}
def batch(): return {batch}
def loss(model, x{more}): return model(x).square().mean()
def optimizer(parameters): return {optimizer}
"""
USUAL = {
    "model": "nn.Linear(4, 4)",
    "batch": "torch.ones(2, 4)",
    "optimizer": "torch.optim.AdamW(parameters)",
    "more": "",
}
REFUSED = {
    ("batch", "Pair(torch.ones(2, 4))"): "batch() gives a Pair, in which the harness finds no tensors",
    ("batch", "Encoding(x=torch.ones(2, 4))"): "batch() gives a Encoding, in which the harness finds no tensors",
    ("batch", "(torch.ones(2, 4), Pair(1))"): "batch() gives a Pair, in which the harness finds no tensors",
    ("batch", "torch.utils.data.DataLoader([1])"): "batch() gives a DataLoader, which isn't the items of one step",
    ("batch", "(one for one in [1])"): "batch() gives a generator, which isn't the items of one step",
    ("batch", "3"): "batch() gives no tensor with a first dimension",
    ("model", "nn.LazyLinear(4)"): "model() gives 2 parameters without a size, of lazy modules",
    ("optimizer", "(torch.optim.SGD(parameters), 3)"): "optimizer() gives a int in a tuple, not an optimizer of torch",
    ("optimizer", "()"): "optimizer() gives a tuple, not an optimizer of torch",
}


def surveyed(folder: Path, **given: str):
    file = folder / "given.py"
    file.write_text(FILE.format(**{**USUAL, **given}))
    return ladder.survey({"source": str(file), "device": "cpu", "size": 2, "prefix": "ladder_", "world": 1})


@pytest.mark.parametrize(("place", "told"), REFUSED.items())
def test_what_cant_be_measured_is_refused(tmp_path, place, told):
    name, text = place
    with pytest.raises(UsageError) as raised:
        surveyed(tmp_path, **{name: text})
    assert told in raised.value.message


@pytest.mark.parametrize(
    "batch", ["{'x': torch.ones(2, 4)}", "collections.OrderedDict(x=torch.ones(2, 4))", "[torch.ones(2, 4)]"]
)
def test_a_batch_may_be_a_dict_or_a_list(tmp_path, batch):
    assert surveyed(tmp_path, batch=batch)["size"] == 2


@pytest.mark.parametrize(("others", "warned"), [("4, 3", True), ("2, 3", False)])
def test_a_batch_whose_first_tensor_may_not_be_of_its_items_is_told(tmp_path, others, warned):
    batch = f"dict(x=torch.ones(2, 4), **{{str(n): torch.ones(n) for n in ({others})}})"
    found = surveyed(tmp_path, batch=batch, more=", **others")["warnings"]
    assert any("most tensors of batch() don't begin with 2" in one for one in found) == warned


def test_a_kind_of_transformers_without_a_language_model_is_refused(monkeypatch):
    """As CLIP is, whose configuration has no words either."""
    none = SimpleNamespace(_model_mapping={})
    config = SimpleNamespace(for_model=lambda name: SimpleNamespace(model_type=name))
    fake = SimpleNamespace(
        CONFIG_MAPPING={"clip": None}, AutoConfig=config, AutoModelForMaskedLM=none, AutoModelForCausalLM=none
    )
    monkeypatch.setitem(sys.modules, "transformers", fake)
    monkeypatch.setattr(_given, "_refuse_missing", lambda _: None)
    with pytest.raises(UsageError, match="transformers has no language model for 'clip'"):
        _given.given("transformers:clip", 2)
