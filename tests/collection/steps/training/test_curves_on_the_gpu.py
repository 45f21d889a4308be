"""Longer trainings of toys on a GPU: every rung skips what overflows, graphs too, and learns as float32 does."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from harness.collection.steps.training._curves import TrainingCurve, trained
from harness.collection.steps.training._ladders import LADDERS
from harness.model import Case

pytestmark = pytest.mark.gpu
MODELS = {"resnet50_train": "resnet_toy", "bert_train": "bert_toy", "swin_train": "swin_toy"}
"""Steps whose loss is scaled: a Llama's is in bfloat16, which has the exponents of float32."""
EVERY = [(op, rung.name) for op in MODELS for rung in LADDERS[op] if not rung.compiled]


@cache
def curve(op: str, variant: str) -> TrainingCurve:
    case = Case(op, variant, "float16", (("B", 64),), (("model", MODELS[op]),), device="cuda")
    return trained(case, torch.device("cuda", 0), size=8, seed=1, steps=30)


@pytest.mark.parametrize(("op", "variant"), EVERY)
def test_a_rung_learns_as_float32_does(op: str, variant: str) -> None:
    found, plain = curve(op, variant), curve(op, "float32")
    assert found.skipped == found.forced == (10, 20)
    assert all(map(math.isfinite, found.losses))
    fall = sum(plain.losses[:8]) - sum(plain.losses[-8:])
    assert fall > 0
    assert abs(sum(found.losses[-8:]) - sum(plain.losses[-8:])) < 0.5 * fall
