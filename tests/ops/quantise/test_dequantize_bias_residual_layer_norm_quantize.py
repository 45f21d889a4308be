"""dequantize_bias_residual_layer_norm_quantize: what it compiles, and hard rows; test_quantise.py calls the kernels."""

from __future__ import annotations

import pytest

OP = "dequantize_bias_residual_layer_norm_quantize"
# Lanes of a warp with few units and with many, with and without missing ones, units of each size, blocks, and rows that
# are too long for a block.
COMPILED = [
    {"M": 4, "C": c, "scales": scales}
    for c in (1, 3, 4, 49, 96, 97, 98, 100, 128, 768, 1000, 1023, 1536, 4096, 8191, 16384, 16388)
    for scales in ("tensor", "channel")
]
OURS = ["separate", "fused", "tuned"]


def test_y_is_judged_by_the_h_that_was_written(trial):
    """An h that is one rounding off gives another y, which isn't wrong for that h."""
    made = trial(OP, "eager", "bfloat16", M=7, C=96, scales="channel")
    after = made.call()
    assert made.complaint(**vars(after)) is None
    after.y[2, 3] += -3 if after.y[2, 3] > 0 else 3
    assert made.complaint(**vars(after)).startswith("y: 1 of 672 elements are wrong")


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(("scale", "mean"), [(0.0, 1.5), (1e-3, 8.0), (1.0, 1000.0), (100.0, 0.0)])
def test_means_that_are_far_larger_than_deviations(judge, variant, scale, mean, dtype):
    def change(made):
        made["acc"].zero_()
        made["residual"].mul_(scale).add_(mean)

    for columns in (96, 97, 768, 1023, 4096, 16388):
        assert judge(OP, variant, dtype, 9, columns, change=change) is None, columns


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_spoils_no_other_and_its_integers_are_0(judge, variant, value, dtype):
    def change(made):
        made["residual"][3, 5] = value

    for columns in (96, 97, 1024):
        assert judge(OP, variant, dtype, 9, columns, change=change) is None, columns
