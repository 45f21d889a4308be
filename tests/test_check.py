"""The check that stands before every time: what it lets through, and what it says of the rest."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from harness import check
from harness.model import Case
from harness.ops import Choice, Context, Expected, Op, Tensor, comparer
from tests.one_test import one_test

N = 1000


def reference(_, t):
    return {"y": t.x.double() * 2}


@pytest.fixture
def ctx() -> Context:
    op = Op("twice", "", {"N": ""}, (Tensor("x", ("N",)),), (Tensor("y", ("N",)),), reference=reference)
    op.variant("ours", "", devices=("cpu",))(lambda _: lambda t: t.y.copy_(t.x * 2))
    place = torch.device("cpu")
    generator = torch.Generator(place).manual_seed(1)
    return Context(Case("twice", "ours", "float32", (("N", N),), device="cpu"), torch.float32, place, generator, op)


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


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "bool"])
def test_integers_are_made_poisoned_and_compared_exactly(ctx, dtype):
    ctx.op.inputs, ctx.op.outputs = (Tensor("x", ("N",), dtype),), (Tensor("y", ("N",), dtype),)
    ctx.op.reference = lambda _, t: {"y": t.x}
    variant = ctx.op.variants["ours"]
    before = check.make_inputs(ctx)
    same = check.merged(before, SimpleNamespace(y=before.x.clone()))
    assert check.complaint(ctx, variant, before, same) is None
    unwritten = check.merged(before, check.make_outputs(ctx, variant))
    assert "are wrong" in check.complaint(ctx, variant, before, unwritten)


@pytest.mark.parametrize(
    ("dtype", "lowest", "highest"),
    [
        ("int8", -(2**7), 2**7 - 1),
        ("int16", -(2**15), 2**15 - 1),
        ("int32", -(2**31) + 1, 2**31 - 1),
        ("int64", -(2**31) + 1, 2**31 - 1),
        ("uint8", 0, 2**8 - 1),
        ("bool", 0, 1),
    ],
)
def test_integers_take_all_values_with_both_signs(ctx, dtype, lowest, highest):
    """An INT8 kernel that takes its inputs for unsigned, or loses the sign of a product, must not pass."""
    ctx.op.inputs = (Tensor("x", ("50 * N",), dtype),)
    x = check.make_inputs(ctx).x
    assert x.dtype == getattr(torch, dtype)
    least, most = int(x.min()), int(x.max())
    assert lowest <= least <= lowest + (highest - lowest) / 1000
    assert highest - (highest - lowest) / 1000 <= most <= highest
    middle, sigma = (lowest + highest) / 2, (highest - lowest + 1) / math.sqrt(12 * x.numel())
    assert abs(float(x.double().mean()) - middle) < 5 * max(sigma, 0.5 / math.sqrt(x.numel()))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
def test_no_integers_are_all_zero(ctx, dtype):
    ctx.op.inputs = tuple(Tensor(f"x{i}", (1,), dtype) for i in range(2000))
    assert all(bool(x.any()) for x in vars(check.make_inputs(ctx)).values())


def test_shapes_may_follow_from_choices(ctx):
    """Also whether there is one tensor or a list of them."""

    def shape(s):
        return [(s["N"],), (2,)] if s["kind"] == "list" else (s["N"],)

    ctx.op.choices = {"kind": Choice("", ("one", "list"))}
    ctx.op.inputs, ctx.op.outputs = (Tensor("x", shape),), (Tensor("y", shape),)
    for kind, sizes in (("one", [(N,)]), ("list", [(N,), (2,)])):
        ctx.case = replace(ctx.case, choices=(("kind", kind),))
        made = check.merged(check.make_inputs(ctx), check.make_outputs(ctx, ctx.op.variants["ours"]))
        for tensors in (made.x, made.y):
            assert isinstance(tensors, list) == (kind == "list")
            assert [tuple(t.shape) for t in (tensors if kind == "list" else [tensors])] == sizes


@one_test(
    ("shape", "strides", "in_order"),
    [
        ((4, 6), (6, 1), True),
        ((4, 6), (1, 4), False),
        ((4, 6), (12, 2), True),  # with gaps
        ((2, 6), (1, 2), False),
        ((1, 6), (1, 1), True),
        ((6, 1), (1, 6), True),  # what has one index has no order
        ((2, 1, 3), (3, 1, 1), True),
        ((2, 1, 3), (1, 7, 2), False),
        ((), (), True),
    ],
)
def test_elements_lie_in_the_order_of_their_indices(shape, strides, in_order):
    assert check.is_in_order(torch.empty_strided(shape, strides)) == in_order


@pytest.mark.parametrize(
    ("role", "decode", "said"),
    [
        ("ours", False, True),
        ("published", False, True),
        ("baseline", False, False),
        ("peer", False, False),
        ("ours", True, False),
    ],
)
def test_an_output_whose_elements_are_out_of_order_is_named_as_far_as_users_get_it(ctx, role, decode, said):
    """A library may return a view, and what a variant decodes is only compared. A list is gone through."""
    ctx.op.outputs = (Tensor("y", lambda _: [(3, 5), (4, 6)]),)
    ctx.op.reference = lambda _, t: {"y": [torch.ones(3, 5).double(), torch.ones(4, 6).double()]}
    ours = replace(ctx.op.variants["ours"], role=role, decode=(lambda _, t: {"y": t.y}) if decode else None)
    ctx.op.variants["ours"] = ours
    y = [torch.ones(3, 5), torch.ones(6, 4).T]
    found = check.complaint(ctx, ours, SimpleNamespace(), SimpleNamespace(y=y))
    wanted = "y has the strides (1, 4): its elements must lie in order; return y.contiguous()"
    assert found == (wanted if said else None)
    y[1] = y[1].contiguous()
    assert check.complaint(ctx, ours, SimpleNamespace(), SimpleNamespace(y=y)) is None


def test_every_tensor_of_a_list_is_compared(ctx):
    ctx.op.reference = lambda _, t: {"y": [t.x.double(), t.x.double() * 2]}
    variant, before = ctx.op.variants["ours"], check.make_inputs(ctx)

    def said(*y):
        return check.complaint(ctx, variant, before, check.merged(before, SimpleNamespace(y=list(y))))

    assert said(before.x, before.x * 2) is None
    assert said(before.x, before.x).startswith("y[1]: 1000 of 1000 elements are wrong")
    assert said(before.x) == "y has 1 tensors, the reference 2"


def test_what_the_reference_leaves_out_is_not_taken_for_right(ctx):
    """An output, or an input that the op updates: nobody would see that it is wrong."""
    ctx.op.outputs = (Tensor("y", ("N",)), Tensor("z", ("N",)))
    left_out = ": the reference gives no value for it, so it can't be checked: return it too, or give the op a check"
    assert complaint(ctx, lambda y: None) == f"z{left_out}"
    assert complaint(ctx, lambda y: y[5].add_(1)).startswith("y: 1 of 1000 elements")
    ctx.op.inputs, ctx.op.outputs = (Tensor("x", ("N",), inplace=True),), (Tensor("y", ("N",)),)
    assert complaint(ctx, lambda y: None) == f"x{left_out}"
    ctx.op.reference = lambda _, t: {"y": t.x.double() * 2, "x": t.x}
    assert complaint(ctx, lambda y: None) is None


def test_chunks_report_the_place_in_the_whole(ctx, monkeypatch):
    monkeypatch.setattr(comparer, "CHUNK", 64)
    found = complaint(ctx, lambda y: y[500:502].add_(3))
    assert "2 of 1000" in found
    assert "element 500" in found


def test_the_tolerance_is_relative_and_absolute(ctx):
    ctx.op.tolerance = {"float32": (0.5, 0.25)}
    ctx.op.reference = lambda _, t: {"y": torch.tensor([0.0, 0.0, 2.0, 2.0], dtype=torch.float64)}
    variant, before = ctx.op.variants["ours"], check.make_inputs(ctx)

    def said(*y):
        return check.complaint(ctx, variant, before, check.merged(before, SimpleNamespace(y=torch.tensor(y))))

    assert said(0.25, -0.25, 3.25, 0.75) is None
    assert "1 of 4 elements are wrong by up to 0.5; element 1 is -0.5, the reference 0.0 within 0.25" in said(
        0, -0.5, 2, 2
    )
    assert "element 3 is 3.5, the reference 2.0 within 1.25" in said(0, 0, 2, 3.5)


@one_test(
    ("dtype", "relative", "absolute"),
    [("float64", 1e-12, 0), ("float32", 1e-6, 1e-7), ("float16", 1e-3, 1e-6), ("bfloat16", 8e-3, 1e-6), ("int8", 0, 0)],
)
@one_test("want", [0.0, -1e-4, 1e3])
@one_test(("role", "most"), [("ours", 1), ("published", 1), ("control", 1), ("baseline", 8), ("peer", 8)])
def test_what_is_allowed_unless_an_op_says_otherwise(ctx, dtype, relative, absolute, want, role, most):
    """To a few percent: `most` times the tolerance of the case's dtype, also where outputs have another dtype."""
    ctx.case = replace(ctx.case, dtype=dtype)
    ctx.op.reference = lambda _, t: {"y": torch.full((N,), want, dtype=torch.float64)}
    variant = replace(ctx.op.variants["ours"], role=role)
    allowed = absolute + relative * abs(want)

    def judged(times: float, **options: bool) -> comparer.Verdict:
        y = torch.full((N,), want, dtype=torch.float64)
        y[7] += times * allowed
        return check.verdict(ctx, variant, SimpleNamespace(), SimpleNamespace(y=y), **options)

    assert judged(0.99) == judged(-0.99) == comparer.Verdict()
    if allowed:
        assert (judged(1.01).inexact is not None) == (judged(-0.99 * most).inexact is not None) == (most > 1)
        assert judged(1.01 * most).wrong
        assert judged(-1.01 * most).wrong
        # By chance some numbers are rounded worse than those of the first call, whoever computes them.
        assert judged(7.9, strict=False).inexact
        assert judged(8.1, strict=False).wrong
    else:
        allowed = 1e-9
        assert judged(1).wrong
        assert judged(-1).wrong


def test_zeros_among_random_numbers_are_replaced(ctx, monkeypatch):
    monkeypatch.setattr(torch, "randn", lambda *_, **__: torch.tensor([0.0, -1.0, 1.0, 2.0]))
    assert check.make_inputs(ctx).x.tolist() == [1.0, -1.0, 1.0, 2.0]


@one_test("dtype", ["uint8", "int8", "int16", "int32", "int64", "float32", "float16"])
def test_poison_is_told_from_what_kernels_leave(dtype):
    """Also in a view with gaps, between which nothing is changed."""
    dtype = getattr(torch, dtype)
    whole = torch.zeros(4, 6, dtype=dtype)
    part = whole[:, ::2]
    check.poison([part])
    assert check.is_poison(part)
    assert bool((whole[:, 1::2] == 0).all())
    values = set(part.reshape(-1).tolist())
    assert not values & {-1, 0, 1}
    part[3, 2] = 0
    assert not check.is_poison(part)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "bool", "float32", "bfloat16"])
def test_outputs_are_poisoned_whatever_was_in_their_memory(ctx, monkeypatch, dtype):
    monkeypatch.setattr(torch, "empty", torch.zeros)
    ctx.op.outputs = (Tensor("y", ("N",), dtype),)
    assert check.is_poison(check.make_outputs(ctx, ctx.op.variants["ours"]).y)


def test_what_a_variant_makes_is_made_in_poisoned_memory(ctx, monkeypatch):
    made = []
    monkeypatch.setattr(check, "make_outputs", lambda *given: made.append(given))
    ours = ctx.op.variants["ours"]
    check.leave_poison(ctx, ours)
    assert made == []
    returning = replace(ours, returns=True)
    check.leave_poison(ctx, returning)
    assert made == [(ctx, returning)]


def test_buffers_begin_at_addresses_that_16_does_not_divide_where_that_is_asked_for(ctx):
    """Tensors of floating-point numbers, as far as they have no gaps; all have their values, whatever their address."""
    ctx.op.inputs = (Tensor("x", ("N",)), Tensor("n", ("N",), "int32"), Tensor("several", lambda _: [(3, 5), (7,)]))
    inputs = check.make_inputs(ctx)
    inputs.turned = torch.randn(4, 6).T
    ours = ctx.op.variants["ours"]
    usual, moved = check.new_set(ctx, ours, inputs), check.new_set(ctx, ours, inputs, is_aligned=False)

    def places(tensors: SimpleNamespace) -> dict[str, int]:
        parts = {"first": tensors.several[0], "second": tensors.several[1], **vars(tensors)}
        return {name: part.data_ptr() % 16 for name, part in parts.items() if name != "several"}

    assert places(usual) == dict.fromkeys(("first", "second", "x", "n", "turned", "y"), 0)
    assert places(moved) == {"first": 4, "second": 4, "x": 4, "n": 0, "turned": 0, "y": 4}
    for name in ("x", "n", "turned"):
        assert torch.equal(getattr(moved, name), getattr(inputs, name))
    assert all(map(torch.equal, moved.several, inputs.several))
    assert check.is_poison(moved.y)
    assert moved.y.shape == (N,)


def test_the_op_s_own_check_goes_through_the_same_comparison(ctx):
    """It sees the inputs as they were, and says what is wanted; the reference isn't asked."""

    def own(_, t):
        if bool((t.y > 1e6).any()):
            yield "y is far too large"
        yield Expected("y", t.y[10:], t.before.x[10:].double() * 2, 1e-3, start=10)

    ctx.op.check, ctx.op.reference = own, None
    assert complaint(ctx, lambda y: y[3].add_(1)) is None
    found = complaint(ctx, lambda y: y[123].add_(1))
    assert found.startswith("y: 1 of 990 elements are wrong by up to 1; element 123 is ")
    assert complaint(ctx, lambda y: y[3].fill_(1e7)) == "y is far too large"
