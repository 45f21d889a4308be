"""Queries, keys and values of few tokens: what their kernels are compiled for, and their check."""

from __future__ import annotations

import pytest

COMPILED = [
    *({"M": m, "E": 2048, "H": 32, "G": 8, "D": 64} for m in (1, 16)),
    {"M": 4, "E": 4096, "H": 32, "G": 8, "D": 128},
    {"M": 2, "E": 33, "H": 3, "G": 1, "D": 6},
]
SIZES = {"M": 3, "E": 40, "H": 4, "G": 2, "D": 6}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_eager_is_right(trial, dtype):
    assert trial("qkv_few_rows", "eager", dtype, **SIZES).complaint_after_call() is None


@pytest.mark.parametrize("output", ["q", "k", "v"])
def test_the_check_sees_a_head_that_is_another(trial, output):
    made = trial("qkv_few_rows", "eager", "bfloat16", **SIZES)
    assert made.complaint_after_call(lambda t: getattr(t, output)[2, 1].copy_(getattr(t, output)[2, 0])) is not None


@pytest.mark.parametrize("output", ["q", "k"])
def test_the_check_sees_a_head_that_is_turned_the_other_way(trial, output):
    made = trial("qkv_few_rows", "eager", "bfloat16", **SIZES)
    right = made.inputs.sin.clone()

    def turn(t):
        made.inputs.sin.copy_(-right)
        getattr(t, output).copy_(dict(zip("qkv", _again(made, t), strict=True))[output])
        made.inputs.sin.copy_(right)

    assert made.complaint_after_call(turn) is not None


def _again(made, t):
    return made.ctx.op.variants["eager"].prepare(made.ctx)(t)


def test_heads_that_can_not_be_turned_are_told(trial):
    made = trial("qkv_few_rows", "eager", "bfloat16", M=1, E=8, H=1, G=1, D=4)
    odd = made.ctx.op.variants["tuned"].unsupported
    assert odd(made.ctx.case) is None
    from tests.collection.conftest import case_of

    assert "must be even" in odd(case_of(made.ctx.op, "tuned", "bfloat16", {"M": 1, "E": 8, "H": 1, "G": 1, "D": 3}))
