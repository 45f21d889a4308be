"""Products of few rows on a CPU, where each thread has columns of its own: all forms, in several orders of threads."""

from __future__ import annotations

import pytest

from harness.collection.ops.llm import _few_rows
from tests.collection.conftest import case_of
from tests.collection.emulation import Gpu, compiler, complaint
from tests.rare import rare

LINEAR, QKV = "linear_few_rows", "qkv_few_rows"
# (op, dtype, sizes, warps, stages): rows of x that fill a block's and that don't, one stage and several for a row, rows
# that end inside of a stage, more tiles than blocks, tiles that stick out.
CASES = [
    rare(LINEAR, "bfloat16", {"M": 1, "K": 2048, "N": 100, "form": "norm"}, 8, 3),
    (LINEAR, "bfloat16", {"M": 3, "K": 2600, "N": 37, "form": "gates"}, 4, 2),
    rare(LINEAR, "float16", {"M": 2, "K": 1032, "N": 30, "form": "add"}, 4, 1),
    rare(LINEAR, "float16", {"M": 4, "K": 8, "N": 1, "form": "plain"}, 8, 2),
    rare(LINEAR, "bfloat16", {"M": 1, "K": 512, "N": 1100, "form": "plain"}, 4, 4),
    rare(QKV, "bfloat16", {"M": 2, "E": 96, "H": 4, "G": 2, "D": 24}, 4, 3),
    rare(QKV, "float16", {"M": 4, "E": 2056, "H": 3, "G": 1, "D": 10}, 8, 2),
]


@pytest.mark.slow  # test_kernels.py compiles each kernel; CONTRIBUTING.md says when to run this
@pytest.mark.parametrize(("op", "dtype", "values", "warps", "stages"), CASES)
def test_products_are_right_in_any_order_of_threads(
    catalogue, monkeypatch, emulated_folder, op, dtype, values, warps, stages
):
    compiler()
    gpu, op = Gpu(emulated_folder), catalogue[op]
    monkeypatch.setattr(_few_rows, "rule", lambda *_: {"warps": warps, "columns": 0, "stages": stages, "blocks": 2})
    case = case_of(op, "tuned", dtype, values)
    for gpu.order in (1, 2):
        assert complaint(gpu, op, case, {}) is None
    assert gpu.launched == [f"{op.name}_tuned"] * 2
