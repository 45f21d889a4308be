"""Lists of tensors as files: the lists of known models, and what is said of a file that isn't as it should be."""

from __future__ import annotations

import math

import pytest

from harness.collection.ops.lists import _models
from harness.errors import UsageError
from tests.one_test import one_test

KNOWN = {
    "bert_base": (199, 109_482_240),
    "resnet50": (161, 25_557_032),
    "swin_t": (173, 28_288_354),
    "ernie_like": (300, 15_005_442),
}


def values(name, tensors=0, elements=0):
    return {"tensors": name, "T": tensors, "N": elements}


def test_every_list_is_known_and_may_be_chosen():
    assert _models.choice().values == ("equal", *sorted(KNOWN))
    assert _models.choice().usual == "equal"


@one_test("name", KNOWN)
def test_a_list_has_the_tensors_and_parameters_of_its_model(name):
    tensors = _models.tensors(name)
    assert (len(tensors), sum(math.prod(shape) for _, shape in tensors)) == KNOWN[name]
    assert len({tensor for tensor, _ in tensors}) == len(tensors)
    assert _models.shapes(values(name)) == [shape for _, shape in tensors]
    assert _models.count(values(name)) == KNOWN[name][1]


@pytest.mark.parametrize("name", ["resnet50", "swin_t"])
def test_a_list_is_torchvisions(name):
    models = pytest.importorskip("torchvision.models")
    expected = [(given, tuple(p.shape)) for given, p in getattr(models, name)().named_parameters()]
    assert sorted(_models.tensors(name)) == sorted(expected)


def test_a_list_is_that_of_transformers():
    transformers = pytest.importorskip("transformers")
    expected = [
        (given, tuple(p.shape)) for given, p in transformers.BertModel(transformers.BertConfig()).named_parameters()
    ]
    assert sorted(_models.tensors("bert_base")) == sorted(expected)


def test_further_tensors_come_after_the_models():
    assert _models.shapes(values("equal", 3, 7)) == [(7,)] * 3
    assert _models.shapes(values("equal")) == []
    assert _models.shapes(values("resnet50", 2, 5))[-3:] == [(1000,), (5,), (5,)]
    assert _models.count(values("resnet50", 2, 5)) == KNOWN["resnet50"][1] + 10


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(_models, "_folder", lambda: tmp_path)
    _models.tensors.cache_clear()
    _models._shapes.cache_clear()
    yield tmp_path
    _models.tensors.cache_clear()
    _models._shapes.cache_clear()


def test_a_new_file_is_a_new_list(folder):
    (folder / "mine.csv").write_text("name,shape\nscale,\nweight,3x0x5\n")
    assert _models.choice().values == ("equal", "mine")
    assert _models.tensors("mine") == (("scale", ()), ("weight", (3, 0, 5)))
    assert _models.count(values("mine")) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "mine.csv: the first line isn't 'name,shape'"),
        ("weight,3x5\n", "mine.csv: the first line isn't 'name,shape'"),
        ("name,shape\nweight,3x5\nbias\n", "mine.csv:3: 'bias' isn't a tensor"),
        ("name,shape\nweight,3,5\n", "mine.csv:2: 'weight,3,5' isn't a tensor"),
        ("name,shape\nweight,3x\n", "mine.csv:2: 'weight,3x' isn't a tensor"),
        ("name,shape\nweight,-3\n", "mine.csv:2: 'weight,-3' isn't a tensor"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(folder, text, said):
    (folder / "mine.csv").write_text(text)
    with pytest.raises(UsageError) as raised:
        _models.tensors("mine")
    assert said in str(raised.value)
