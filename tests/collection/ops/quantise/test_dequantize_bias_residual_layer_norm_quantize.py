"""dequantize_bias_residual_layer_norm_quantize: what it compiles, and hard rows; test_quantise.py calls the kernels."""

from __future__ import annotations

import pytest

OP = "dequantize_bias_residual_layer_norm_quantize"
# Lanes of a warp with few units and with many, with and without missing ones, units of each size, blocks, tiles of rows
# that aren't whole units, and rows that are too long for a block.
COMPILED = [
    {"M": 4, "C": c, "scales": scales}
    for c in (1, 2, 3, 4, 49, 96, 97, 98, 100, 128, 511, 768, 1000, 1023, 1536, 4096, 6143, 8191, 16384, 16388)
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


# Rows of one unit and less, both ends of the lengths that lanes and blocks add up, and rows that begin at each place of
# a unit.
RUNS = [2, 3, 5, 6, 7, 13, 97, 98, 127, 255, 383, 509, 511, 513, 514, 1021, 1022, 1023, 1025, 2047, 6141, 7675]


@pytest.mark.gpu
@pytest.mark.parametrize("columns", RUNS)
@pytest.mark.parametrize("scales", ["tensor", "channel"])
def test_tiles_of_rows_that_are_not_whole_units(judge, columns, scales, dtype):
    # As many as one tile, a few tiles, and several tiles for each block of a GPU.
    for rows in (1, 2, 3, 4, 5, 31, 4099, 2**22 // columns + 1, 2**24 // columns + 3):
        assert judge(OP, "tuned", dtype, rows, columns, scales=scales) is None, rows


@pytest.mark.gpu
@pytest.mark.large
def test_more_than_2_to_31_elements_in_tiles_of_several_rows(judge):
    assert judge(OP, "tuned", "float16", 2**31 // 97 + 3, 97) is None
