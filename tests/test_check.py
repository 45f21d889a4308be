"""The check that stands before every time: what it lets through, and what it says of the rest."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from harness import check
from harness.model import Case
from harness.ops import Context, Op, Tensor

N = 1000


def reference(_, t):
    return {"y": t.x.double() * 2}


@pytest.fixture
def ctx() -> Context:
    op = Op("twice", "", {"N": ""}, (Tensor("x", ("N",)),), (Tensor("y", ("N",)),), reference=reference)
    op.variant("ours", "", devices=("cpu",))(lambda _: lambda t: t.y.copy_(t.x * 2))
    place = torch.device("cpu")
    generator = torch.Generator(place).manual_seed(1)
    return Context(Case("twice", "ours", "float32", (("N", N),), "cpu"), torch.float32, place, generator, op)


def complaint(ctx: Context, change) -> str | None:
    before = check.make_inputs(ctx)
    y = before.x * 2
    change(y)
    return check.complaint(ctx, ctx.op.variants["ours"], before, check.merged(before, SimpleNamespace(y=y)))


def test_right_outputs_pass(ctx):
    assert complaint(ctx, lambda y: None) is None


def test_a_unit_in_the_last_place_passes(ctx):
    assert complaint(ctx, lambda y: y.copy_(torch.nextafter(y, torch.full_like(y, math.inf)))) is None


def test_one_wrong_element_is_found_and_named(ctx):
    found = complaint(ctx, lambda y: y[123].add_(1))
    assert found.startswith("y: 1 of 1000 elements are wrong by up to 1; element 123 is ")


def test_an_element_that_nothing_wrote_is_found(ctx):
    poisoned = check.make_outputs(ctx, ctx.op.variants["ours"]).y
    assert bool(poisoned.isnan().all())
    assert "1 of 1000 elements are wrong" in complaint(ctx, lambda y: y[7:8].copy_(poisoned[7:8]))


def test_infinities_and_nan_must_meet_their_like(ctx):
    special = torch.tensor([math.inf, -math.inf, math.nan])
    ctx.op.reference = lambda _, t: {"y": torch.cat([special.double(), t.x[3:].double() * 2])}
    assert complaint(ctx, lambda y: y[:3].copy_(special)) is None
    assert "3 of 1000" in complaint(ctx, lambda y: y[:3].copy_(special.roll(1)))


@pytest.mark.parametrize("wrong", [1.0, math.inf, math.nan])
def test_nothing_finite_or_opposite_passes_for_an_infinity(ctx, wrong):
    ctx.op.reference = lambda _, t: {"y": torch.full((N,), -math.inf, dtype=torch.float64)}
    assert "1000 of 1000" in complaint(ctx, lambda y: y.fill_(wrong))


def test_a_wrong_shape_is_said_as_such(ctx):
    ctx.op.reference = lambda _, t: {"y": torch.zeros(N, 2)}
    assert complaint(ctx, lambda y: None) == "y has shape (1000,), the reference (1000, 2)"


def test_inputs_are_seeded_with_negatives_and_no_zeros(ctx):
    first = check.make_inputs(ctx).x
    ctx.generator.manual_seed(1)
    assert torch.equal(first, check.make_inputs(ctx).x)
    assert bool((first < 0).any())
    assert bool((first != 0).all())


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "bool"])
def test_integers_are_made_poisoned_and_compared_exactly(ctx, dtype):
    ctx.op.inputs, ctx.op.outputs = (Tensor("x", ("N",), dtype),), (Tensor("y", ("N",), dtype),)
    ctx.op.reference = lambda _, t: {"y": t.x}
    variant = ctx.op.variants["ours"]
    before = check.make_inputs(ctx)
    same = check.merged(before, SimpleNamespace(y=before.x.clone()))
    assert check.complaint(ctx, variant, before, same) is None
    unwritten = check.merged(before, check.make_outputs(ctx, variant))
    assert "are wrong" in check.complaint(ctx, variant, before, unwritten)


def test_chunks_report_the_place_in_the_whole(ctx, monkeypatch):
    monkeypatch.setattr(check, "_CHUNK", 64)
    found = complaint(ctx, lambda y: y[500:502].add_(3))
    assert "2 of 1000" in found
    assert "element 500" in found
