"""Cross-entropy, its backward, and both in place: what their kernels are compiled for, and their checks."""

from __future__ import annotations

import math

import pytest

from harness import check
from harness.model import Traffic
from harness.ops import Catalogue
from tests.one_test import one_test

# Blocks of all sizes and clusters; rows that begin inside of packs; rows that no team's registers hold.
COMPILED = [
    {"M": rows, "V": columns}
    for rows, columns in [
        (1000, 5),
        (1000, 256),
        (1000, 1001),
        (10_000, 32_000),
        (1000, 50_257),
        (1, 128_256),
        (1000, 128_256),
        (1000, 151_936),
        (1000, 262_144),
        (1, 262_144),
        (1000, 600_000),
    ]
]
OPS = ["cross_entropy", "cross_entropy_grad", "cross_entropy_in_place"]


def call(made):
    """What a call gives, and its complaint; the inputs stay as they are."""
    before = check.clone(made.inputs)
    op, variant = made.ctx.op, made.ctx.op.variants[made.ctx.case.variant]
    tensors = check.merged(check.clone(before), check.make_outputs(made.ctx, variant))
    returned = variant.prepare(made.ctx)(tensors)
    after = check.collect(op, variant, tensors, check.as_tuple(made.ctx, variant, returned))
    return after, lambda: check.complaint(made.ctx, variant, before, after)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (30, 7), (9, 1000)])
def test_eager_is_right(trial, dtype, op, rows, columns):
    _, complaint = call(trial(op, "eager", dtype, M=rows, V=columns))
    assert complaint() is None


@one_test(
    ("op", "output", "place"),
    [
        ("cross_entropy", "loss", 0),
        ("cross_entropy", "valid", 0),
        ("cross_entropy_grad", "dlogits", 5),
        ("cross_entropy_in_place", "losses", 3),
        ("cross_entropy_in_place", "logits", 5),
    ],
)
def test_the_checks_see_a_wrong_element(trial, op, output, place):
    after, complaint = call(trial(op, "eager", "float32", M=8, V=50))
    getattr(after, output).view(-1)[place] += 1e-3
    assert complaint() is not None


@pytest.mark.parametrize("op", ["cross_entropy_grad", "cross_entropy_in_place"])
def test_the_checks_see_a_target_that_is_forgotten(trial, op):
    made = trial(op, "eager", "bfloat16", M=8, V=50)
    after, complaint = call(made)
    output = after.dlogits if op == "cross_entropy_grad" else after.logits
    output[2, made.inputs.targets[2]] += 1 / 7
    assert complaint() is not None


def test_a_row_that_does_not_count_has_no_gradient_and_no_loss(trial):
    made = trial("cross_entropy_in_place", "eager", "float32", M=8, V=50)
    after, _ = call(made)
    assert made.inputs.targets[7] == -100
    assert not after.logits[7].any()
    assert after.losses[7] == 0
    assert math.isclose(float(after.logits.sum()), 0, abs_tol=1e-6)  # each row's shares add up to the target's


def test_tuned_reads_logits_once_as_long_as_registers_hold_a_row():
    traffic = Catalogue()["cross_entropy_in_place"].variants["tuned"].traffic
    assert traffic({"M": 10, "V": 262_144}, 4) == Traffic(10 * 2**20, 10 * 2**20)
    assert traffic({"M": 10, "V": 300_000}, 4) == Traffic(2 * 12_000_000, 12_000_000)
