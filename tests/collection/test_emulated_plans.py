"""Plans that `harness tune` may try, on a CPU: each is right, at sizes that leave parts of tiles and threads empty."""

from __future__ import annotations

import pytest

from tests.collection.conftest import case_of
from tests.collection.emulation import Gpu, compiler, complaint

# (op, dtype, sizes and choices, plans): plans that no rule takes at these sizes. Each compilation takes a second, so
# these tests are slow: tests of each op's plan say which elements its threads have, without a compiler.
CASES = [
    (
        "nchw_to_nhwc",
        "float16",
        {"N": 2, "C": 144, "H": 16, "W": 17},
        [{"tiles": "registers1"}, {"tiles": "packs16x16"}],
    ),
    ("nchw_to_nhwc", "float32", {"N": 2, "C": 67, "H": 9, "W": 15}, [{"tiles": "packs8x16"}, {"tiles": "words16"}]),
    ("dequantize_bias", "bfloat16", {"M": 5, "C": 97}, [{"elements": 4, "units": 1, "threads": 64, "row_part": 0}]),
    # Two elements a unit, without a rest: whole units in a row, and units that lie in two rows.
    (
        "dequantize_bias_residual",
        "float16",
        {"M": 10, "C": 129, "scales": "channel"},
        [{"elements": 2, "units": units, "threads": 64, "row_part": 0} for units in (1, 2)],
    ),
    (
        "quantize",
        "bfloat16",
        {"M": 7, "C": 130, "scales": "channel"},
        [{"elements": 2, "units": 2, "threads": 64, "row_part": 0}],
    ),
    ("quantize", "float32", {"M": 6, "C": 77}, [{"elements": 2, "units": 1, "threads": 64, "row_part": 0}]),
    # A block has a part of one row: with threads behind its end, and of a matrix that is one row.
    (
        "dequantize_bias_residual",
        "bfloat16",
        {"M": 3, "C": 1100, "scales": "channel"},
        [{"elements": 2, "units": 1, "threads": 256, "row_part": 1}],
    ),
    (
        "quantize",
        "float16",
        {"M": 5, "C": 24, "scales": "channel"},
        [{"elements": elements, "units": 1, "threads": 64, "row_part": 1} for elements in (2, 8)],
    ),
    ("permute", "float32", {"B": 3, "S": 33, "H": 2, "D": 10}, [{"unroll": 4, "heads": 0}]),
    ("quantize", "bfloat16", {"M": 7, "C": 52}, [{"elements": 4, "units": 1, "threads": 64, "row_part": 1}]),
    (
        "dequantize_bias_residual_layer_norm_quantize",
        "float16",
        {"M": 37, "C": 100, "scales": "channel"},
        [
            {"lanes": 16, "count": 2, "together": 2, "early": 1},
            {"lanes": 32, "count": 1, "together": 4, "early": 1},
            {"lanes": 0, "count": 1, "together": 1, "early": 0},
        ],
    ),
    (
        "dequantize_bias_gelu_quantize",
        "float32",
        {"M": 3, "C": 64},
        [{"elements": 2, "units": 2, "threads": 64, "row_part": 0}],
    ),
    ("swiglu", "bfloat16", {"M": 13, "H": 264}, [{"units": 2}]),
    (
        "cross_entropy",
        "bfloat16",
        {"M": 5, "V": 5003},
        [
            {"threads": 64, "units": 8, "resident": 1024, "cluster": 1},
            {"threads": 128, "units": 1, "resident": 1536, "cluster": 4},
        ],
    ),
    ("cross_entropy_grad", "bfloat16", {"M": 9, "V": 5003}, [{"units": 1}]),
    ("rope", "bfloat16", {"T": 7, "Q": 8, "K": 2, "D": 128, "P": 20}, [{"each": 1}]),
    ("bias_residual", "float16", {"R": 5, "C": 264}, [{"bytes": 16, "threads": 64}, {"bytes": 4, "threads": 64}]),
    (
        "window_attention",
        "float16",
        {"W": 6, "H": 2, "T": 81, "D": 30, "G": 3, "mask": "shift"},
        [
            {"tables": 2, "teams": 1, "parts": 3, "stay": 1},
            {"tables": 0, "teams": 2, "parts": 1, "stay": 1},
            {"tables": 0, "teams": 1, "parts": 2, "stay": 0},
        ],
    ),
    (
        "window_attention_grad",
        "float16",
        {"W": 6, "H": 2, "T": 81, "D": 32, "G": 3, "mask": "shift"},
        [{"sharers": 2}],
    ),
    ("window_attention_grad", "bfloat16", {"W": 3, "H": 1, "T": 144, "D": 64, "G": 1}, [{"sharers": 2}]),
    (
        "layer_norm_grad",
        "bfloat16",
        {"M": 9, "N": 9016},
        [
            {"way": "tiles", "cluster": 2, "at_once": 2, "stages": 2, "alone": 0},
            {"way": "tiles", "cluster": 8, "at_once": 1, "stages": 3, "alone": 0},
        ],
    ),
    ("add_rms_norm_grad", "bfloat16", {"M": 20, "N": 2048}, [{"way": "stages", "kept": 2, "resident": 1}]),
]


@pytest.fixture
def gpu(emulated_folder):
    compiler()
    return Gpu(emulated_folder)


@pytest.mark.slow  # test_plans.py has that all plans are legal, test_kernels.py compiles each kernel
@pytest.mark.parametrize(("op", "dtype", "values", "plans"), CASES)
def test_plans_that_may_be_tried_are_right(catalogue, gpu, op, dtype, values, plans):
    case = case_of(catalogue[op], "tuned", dtype, values)
    tuning = catalogue[op].variants["tuned"].tuning
    for plan in plans:
        assert complaint(gpu, catalogue[op], case, plan=plan) is None, plan
        with pytest.MonkeyPatch.context() as patch:
            gpu.stand_in(patch)
            assert plan != tuning.rule(case)
            assert tuning.obstacle(case, plan) is None, plan
