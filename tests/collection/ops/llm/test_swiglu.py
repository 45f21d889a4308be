"""SwiGLU and its gradient: what their kernels are compiled for, and their checks."""

from __future__ import annotations

import pytest

from tests.one_test import one_test

COMPILED = [
    *({"M": 1000, "H": columns, "layout": layout} for layout in ("packed", "separate") for columns in (14_336, 77)),
    {"M": 2**20, "H": 14_336, "layout": "packed"},
]
OPS = ["swiglu", "swiglu_grad"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("layout", ["packed", "separate"])
def test_eager_is_right(trial, dtype, op, layout):
    assert trial(op, "eager", dtype, M=50, H=33, layout=layout).complaint_after_call() is None


def test_the_gradient_is_autograds(trial):
    import torch
    from torch.nn import functional

    made = trial("swiglu_grad", "eager", "float32", M=5, H=8, layout="separate")
    gate, up = made.inputs.gate.double().requires_grad_(), made.inputs.up.double().requires_grad_()
    wanted = torch.autograd.grad(functional.silu(gate) * up, (gate, up), made.inputs.dy.double())
    assert made.complaint(dgate=wanted[0].float(), dup=wanted[1].float()) is None


@one_test(("op", "output"), [("swiglu", "y"), ("swiglu_grad", "dgate")])
@one_test("layout", ["packed", "separate"])
def test_the_check_sees_a_wrong_element(trial, op, output, layout):
    made = trial(op, "eager", "float32", M=7, H=10, layout=layout)
    assert made.complaint_after_call(lambda t: getattr(t, output)[6, 3:4].mul_(1.0001).add_(1e-4)) is not None
