"""Products of int8 on a CPU: each kernel, with copies of each width, in several orders of threads."""

from __future__ import annotations

import pytest

from harness.collection.ops.gemm import _int8_plan
from tests.collection.conftest import case_of
from tests.collection.emulation import Gpu, compiler, complaint
from tests.rare import rare

# (sizes, a plan or the rule's, the kernel, elements by which tensors begin past 16 bytes): several tiles a block, tiles
# that stick out, clusters that share sums, rows of x and of y that begin anywhere. Each compilation takes seconds.
TILE = {"tile": "32x64", "warps": 4, "depth": 64, "stages": 3, "blocks": 1, "split": 1}
CASES = [
    rare({"M": 70, "K": 208, "N": 264, "scales": "channel"}, TILE, "tiles", {}),
    ({"M": 70, "K": 208, "N": 264, "scales": "token"}, TILE, "tiles", {"y": 1}),
    rare({"M": 70, "K": 208, "N": 264, "scales": "token"}, TILE, "tiles", {}),
    rare({"M": 37, "K": 520, "N": 75, "scales": "token"}, {**TILE, "split": 4}, "tiles", {}),
    rare({"M": 33, "K": 133, "N": 72}, None, "tiles", {}),
    rare({"M": 3, "K": 1004, "N": 40, "scales": "channel"}, None, "few", {"x": 4}),
    rare({"M": 9, "K": 2048, "N": 20}, None, "few", {"weight": 3}),
    rare({"M": 9, "K": 2048, "N": 20, "scales": "token"}, None, "few", {}),
]


@pytest.mark.slow  # test_kernels.py compiles each kernel; CONTRIBUTING.md says when to run this
@pytest.mark.parametrize(("values", "plan", "kernel", "offsets"), CASES)
def test_products_are_exact_in_any_order_of_threads(
    catalogue, monkeypatch, emulated_folder, values, plan, kernel, offsets
):
    compiler()
    gpu, op = Gpu(emulated_folder), catalogue["int8_linear"]
    if plan:
        monkeypatch.setattr(_int8_plan, "_ruled", lambda *_: plan)
    case = case_of(op, "fused", "float16", values)
    for gpu.order in (1, 2):
        assert complaint(gpu, op, case, offsets) is None
    assert gpu.launched == [f"int8_linear_{kernel}"] * 2
