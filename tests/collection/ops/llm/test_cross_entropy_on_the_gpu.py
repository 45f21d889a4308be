"""Cross-entropy on a GPU: each loss and gradient of rows of extreme numbers, beside float64."""

from __future__ import annotations

import itertools

import pytest
import torch

from harness import check
from harness.collection.ops.llm import _cross_entropy as shared
from harness.collection.ops.llm import cross_entropy
from tests.collection.test_emulated_cross_entropy import extreme

pytestmark = pytest.mark.gpu
DTYPES = ("float32", "float16", "bfloat16")
SIZES = [{"M": rows, "V": columns} for rows, columns in ((10, 5), (33, 256), (40, 1001), (10, 128_256), (600, 50_257))]


def complaint(made, plan=None):
    """What is wrong with a call. plan: that is tried, in place of the rule's."""
    made.ctx.tried = plan
    extreme(made.inputs)
    variant = made.ctx.op.variants[made.ctx.case.variant]
    tensors = check.new_set(made.ctx, variant, made.inputs)
    variant.prepare(made.ctx)(tensors)
    torch.cuda.synchronize()
    return check.complaint(made.ctx, variant, made.inputs, tensors)


def wrong_losses(made, monkeypatch, plan=None):
    """The complaint of a forward, or the errors of its losses, which are no output."""
    losses = torch.full((made.ctx.s.M,), torch.nan, device="cuda")
    monkeypatch.setattr(cross_entropy, "_losses", lambda _: losses)
    found = complaint(made, plan)
    want, _ = shared.row_losses(made.inputs.logits, made.inputs.targets)
    off = (losses.double() - want).abs() / (1 + want.abs())
    return found or (None if off.max() <= 2**-19 else off.tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", ["online", "tuned"])
def test_each_loss_of_extreme_rows_is_right(trial, monkeypatch, variant, dtype):
    for values in SIZES:
        made = trial("cross_entropy", variant, dtype, device="cuda", **values)
        assert wrong_losses(made, monkeypatch) is None, values


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_each_loss_is_right_by_plans_that_may_be_tried(trial, monkeypatch, cluster):
    for (threads, units, resident), columns in itertools.product(
        ((64, 1, 2048), (256, 8, 1024), (512, 4, 2048), (1024, 2, 1024)), (50_257, 128_256)
    ):
        plan = {"threads": threads, "units": units, "resident": resident, "cluster": cluster}
        made = trial("cross_entropy", "tuned", "bfloat16", device="cuda", M=40, V=columns)
        assert wrong_losses(made, monkeypatch, plan) is None, (plan, columns)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", ["two_pass", "tuned"])
def test_each_gradient_of_extreme_rows_is_right(trial, variant, dtype):
    for values in SIZES:
        assert complaint(trial("cross_entropy_in_place", variant, dtype, device="cuda", **values)) is None, values
