"""The check of inference, and what its work is."""

from __future__ import annotations

import pytest
import torch

from harness.models import MODELS
from harness.ops.training import swin_infer


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("variant", ["eager", "sdpa"])
def test_logits_in_halves_are_right(variant, dtype, ready):
    with ready("swin_infer", variant, dtype) as session:
        assert session.check() is None
        assert session.warnings == []
        assert len(session.calls()) == 1


@pytest.mark.parametrize("factor", [0.0, -1.0, 2.0])
def test_other_logits_are_wrong(factor, ready, monkeypatch):
    def other(model):
        def launch(t):
            t.logits = factor * model(t.images).detach()

        return launch

    monkeypatch.setattr(swin_infer, "launching", other)
    with ready("swin_infer", "eager") as session:
        assert session.check().startswith("logits: ")


def test_a_call_without_logits_is_wrong(ready, monkeypatch):
    monkeypatch.setattr(swin_infer, "launching", lambda _: lambda _: None)
    with ready("swin_infer", "eager") as session:
        assert session.check() == "logits: the call made none"


def test_a_difference_of_one_image_is_wrong(ready, monkeypatch):
    def swapped(model):
        def launch(t):
            t.logits = model(t.images).detach()[torch.tensor([1, 0, *range(2, 8)])]

        return launch

    monkeypatch.setattr(swin_infer, "launching", swapped)
    with ready("swin_infer", "eager") as session:
        assert session.check().startswith("logits: ")


def test_the_work_reads_each_weight_once():
    work = swin_infer.OP.work_of({"B": 2, "model": "swin_tiny"}, "float16")
    config = MODELS["swin_tiny"]
    assert work.read == 2 * (config.parameters() + 2 * 3 * 224 * 224)
    assert work.written == 2 * 2 * 1000
    assert work.flops == (("float16", 2 * config.flops()),)
    assert (work.items, work.item) == (2, "images")
