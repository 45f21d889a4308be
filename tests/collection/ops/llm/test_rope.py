"""Rotary position embeddings: what their kernels are compiled for, their plan and their check."""

from __future__ import annotations

import pytest

from harness.collection.ops.llm.rope import OP, RopePlan
from harness.model import Case
from tests.one_test import one_test

COMPILED = [
    {"T": 1000, "Q": q, "K": k, "D": d, "P": 4096, "pairs": pairs, "way": way}
    for pairs, way in (("halves", "forward"), ("halves", "backward"), ("interleaved", "forward"))
    for q, k, d in [(32, 8, 128), (16, 16, 64), (3, 1, 6), (32, 32, 256)]
]


@pytest.mark.parametrize("pairs", ["halves", "interleaved"])
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_eager_is_right(trial, dtype, pairs, way):
    made = trial("rope", "eager", dtype, T=5, Q=4, K=2, D=8, P=9, pairs=pairs, way=way)
    assert made.complaint_after_call() is None


@pytest.mark.parametrize("output", ["q_out", "k_out"])
def test_the_check_sees_a_head_that_is_rotated_the_other_way(trial, output):
    made = trial("rope", "eager", "float32", T=5, Q=4, K=2, D=8, P=9)
    assert made.complaint_after_call(lambda t: getattr(t, output)[3, 1].neg_()) is not None


def test_the_backward_takes_the_forward_back(trial):
    import torch

    forward = trial("rope", "eager", "float32", T=5, Q=4, K=2, D=8, P=9)
    q = forward.call().q_out
    backward = trial("rope", "eager", "float32", T=5, Q=4, K=2, D=8, P=9, way="backward")
    back = backward.inputs.q.clone()
    backward.inputs.q.copy_(q)
    torch.testing.assert_close(backward.call().q_out, back)


@one_test("heads", [1, 2, 5, 9, 40, 72, 80, 128])
@one_test("elements", [64, 128, 256])
@one_test("itemsize", [2, 4])
@one_test("interleaved", [False, True])
def test_the_plans_threads_have_all_places_of_all_heads(heads, elements, itemsize, interleaved):
    plan = RopePlan.of(heads, elements, itemsize, interleaved=interleaved)
    size = 16 // itemsize
    assert plan.lanes * size * (1 if interleaved else 2) == elements
    assert plan.groups * plan.each >= heads > plan.groups * (plan.each - 1)
    assert plan.lanes * plan.groups * plan.tokens <= plan.threads <= 1024
    assert plan.threads % 32 == 0
    assert plan.each <= 8


@one_test(("heads", "elements"), [(8, 6), (8, 12), (0, 128), (4096, 128)])
def test_heads_without_a_plan(heads, elements):
    assert RopePlan.of(heads, elements, 2, interleaved=False) is None


def test_odd_heads_are_told():
    case = Case("rope", "tuned", "float32", (("T", 1), ("Q", 1), ("K", 1), ("D", 7), ("P", 1)))
    assert "D must be even" in OP.variants["tuned"].unsupported(case)
