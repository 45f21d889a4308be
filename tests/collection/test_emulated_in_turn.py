"""LayerNorm whose teams take rows in turn, on a CPU: rows of whole packs, and rows that begin inside of packs."""

from __future__ import annotations

import math

import pytest

from tests.collection.conftest import case_of
from tests.collection.emulation import Gpu, compiler, complaint

# (dtype, columns): single elements of each number there can be (13 at most), teams of a block and of a cluster, several
# of which share a multiprocessor; and whole packs.
CASES = [
    ("bfloat16", 2061),
    ("float16", 5002),
    ("bfloat16", 12_345),
    ("float16", 30_522),
    ("float32", 8203),
    ("float32", 50_257),
    ("float16", 65_544),
    ("float32", 132_000),  # a cluster of 16
]
ROWS = {"bfloat16": 277, "float16": 165, "float32": 45}


@pytest.fixture
def gpu(emulated_folder):
    compiler()
    return Gpu(emulated_folder, multiprocessors=16)


@pytest.mark.slow  # test_kernels.py compiles each kernel; CONTRIBUTING.md says when to run this
@pytest.mark.parametrize(("dtype", "columns"), CASES)
def test_rows_in_turn_are_right_in_any_order_of_threads(catalogue, gpu, dtype, columns):
    def change(inputs):
        """Rows far from their first elements, whose sums are made again, and rows that end with what isn't finite."""
        x = inputs.x
        x[1::3, :8] = 300
        for row, place, value in ((3, 0, math.nan), (4, columns - 1, math.inf), (5, columns // 2, -math.inf)):
            x[row :: 5 * 7 * 9, place] = value
        x[6::9] = 1.5

    rows = ROWS[dtype] if columns < 60_000 else 9
    case = case_of(catalogue["layer_norm"], "tuned", dtype, {"M": rows, "N": columns})
    for gpu.order in (1, 2):
        assert complaint(gpu, catalogue["layer_norm"], case, change=change) is None
    assert set(gpu.launched) == {"layer_norm_in_turn"}
