"""Cross-entropy on a CPU: each loss and gradient of rows of extreme numbers, beside float64."""

from __future__ import annotations

import math

import pytest
import torch

from harness.collection.ops.llm import _cross_entropy as shared
from harness.collection.ops.llm import cross_entropy
from tests.collection.conftest import case_of
from tests.collection.emulation import Gpu, compiler, complaint, guarded
from tests.rare import rare

pytestmark = pytest.mark.slow  # test_kernels.py compiles each kernel; CONTRIBUTING.md says when to run this
ROWS = 10
IGNORED_ROW = 7


def extreme(inputs):
    """Make rows of each kind. Where only one logit counts it is the target's: otherwise the loss would hide the sum."""
    logits, targets = inputs.logits, inputs.targets
    columns, big = logits.shape[1], min(2.0**100, float(torch.finfo(logits.dtype).max) / 2)
    logits[0] = 3
    logits[1] *= 30
    logits[2] += 1000
    logits[3] = -math.inf
    logits[3, columns // 2] = 1.5
    logits[4, -1] = big
    logits[5] = -big
    logits[6] *= 1e-3
    logits[IGNORED_ROW, ::2] = math.nan
    logits[8, 0] = 40_000
    logits[9] -= 1000
    targets[0], targets[3], targets[4], targets[8] = 0, columns // 2, columns - 1, 0
    assert targets[IGNORED_ROW] == shared.IGNORED


@pytest.fixture
def gpu(emulated_folder):
    compiler()
    return Gpu(emulated_folder)


# Rows that begin inside of packs, and rows that don't.
LENGTHS = [("bfloat16", 50_257), rare("float16", 4096), rare("float32", 5003)]


@pytest.mark.parametrize(
    ("dtype", "columns", "plan"),
    [
        ("bfloat16", 50_257, None),
        ("bfloat16", 250, None),  # lanes of a warp share a row
        *(rare(dtype, columns, None) for dtype, columns in (("float16", 4096), ("float32", 5003), ("bfloat16", 5))),
        *(rare(dtype, columns, None) for dtype, columns in (("bfloat16", 1001), ("float16", 256), ("float32", 129))),
        rare("bfloat16", 50_257, {"threads": 256, "units": 4, "resident": 2048, "cluster": 4}),
        rare("float16", 33_001, {"threads": 64, "units": 3, "resident": 1024, "cluster": 8}),
        rare("float32", 5003, {"threads": 128, "units": 1, "resident": 2048, "cluster": 2}),
    ],
)
def test_each_loss_of_extreme_rows_is_right(catalogue, gpu, monkeypatch, dtype, columns, plan):
    op, seen = catalogue["cross_entropy"], {}

    def change(inputs):
        extreme(inputs)
        seen["want"], _ = shared.row_losses(inputs.logits, inputs.targets)

    def losses(_):
        seen["losses"] = guarded(torch.full((ROWS,), math.nan))
        return seen["losses"]

    monkeypatch.setattr(cross_entropy, "_losses", losses)
    case = case_of(op, "tuned", dtype, {"M": ROWS, "V": columns})
    for gpu.order in (1, 2):
        assert complaint(gpu, op, case, plan=plan, change=change) is None
        want = seen["want"]
        off = (seen["losses"].double() - want).abs() / (1 + want.abs())
        assert off.max() <= 2**-19, off
    assert "cross_entropy_tuned" in gpu.launched


def targets_at_edges(inputs):
    """Make the same rows, with targets in their first, middle and last columns."""
    extreme(inputs)
    last = inputs.logits.shape[1] - 1
    places = torch.tensor([0, 1, 6, 7, 8, last // 2, last - 8, last - 7, last - 1, last])
    inputs.targets[:] = places.where(inputs.targets != shared.IGNORED, shared.IGNORED)


@pytest.mark.parametrize(
    ("dtype", "columns"), [*LENGTHS, *(rare("bfloat16", columns) for columns in (256, 500, 1001, 33_001))]
)
def test_each_gradient_of_extreme_rows_is_right(catalogue, gpu, dtype, columns):
    op = catalogue["cross_entropy_in_place"]
    case = case_of(op, "tuned", dtype, {"M": ROWS, "V": columns})
    for gpu.order, change in ((1, extreme), (2, targets_at_edges)):
        assert complaint(gpu, op, case, change=change) is None
    assert "cross_entropy_in_place_tuned" in gpu.launched
