"""Small layers of batch norm and its backward on a CPU, in one kernel: all forms of groups, in blocks and clusters."""

from __future__ import annotations

import math

import pytest

from tests.collection.conftest import case_of
from tests.collection.emulation import Gpu, compiler, complaint

pytestmark = pytest.mark.slow  # test_kernels.py compiles each kernel; CONTRIBUTING.md says when to run this


def as_it_is(_):
    pass


def far(inputs):
    """Means 100 deviations from zero, and an outlier where a shift looks first."""
    x = inputs.x
    x += (100 * x.float().std((0, 2), keepdim=True)).to(x.dtype)
    x[x.shape[0] // 6, :, x.shape[2] // 6] = 0


def spoiled(inputs):
    """A NaN, an infinity and equal values, in a channel each."""
    x = inputs.x
    x[-1, 0, -1], x[0, 1, 0], x[-1, -1, 0] = math.nan, math.inf, -math.inf
    x[:, 2] = 3.0


@pytest.fixture
def gpu(emulated_folder):
    compiler()
    return Gpu(emulated_folder, multiprocessors=132)


# (dtype, sizes, layout, blocks of a cluster, the end of the kernel's name): groups of one channel, of few in rows of
# odd lengths, and of many that are last; one pack a thread and several; one sample, and more than a block's.
CASES = [
    ("float16", (2, 3, 8, 8), "nchw", 1, "one"),
    ("float32", (33, 4, 14, 14), "nchw", 1, "few"),
    ("bfloat16", (5, 4, 28, 28), "nchw", 2, "one"),
    ("float32", (1, 3, 112, 112), "nchw", 4, "one"),
    ("bfloat16", (1, 8, 7, 7), "nchw", 1, "few"),
    ("float16", (33, 24, 7, 7), "nchw", 2, "few"),
    ("float32", (2, 8, 5, 3), "nchw", 1, "few"),
    ("float16", (2, 16, 14, 14), "nchw", 1, "few"),
    ("bfloat16", (200, 8, 7, 7), "nchw", 4, "few"),
    ("float16", (33, 64, 1, 1), "nchw", 1, "many"),
    ("float32", (1, 8, 1, 1), "nhwc", 1, "many"),
    ("float32", (2, 24, 5, 3), "nhwc", 2, "many"),
    ("bfloat16", (33, 24, 7, 7), "nhwc", 4, "many"),
    ("float16", (1, 64, 28, 28), "nhwc", 8, "many"),
    ("float16", (2, 16, 56, 56), "nhwc", 2, "many"),
]


@pytest.mark.parametrize(("dtype", "shape", "layout", "cluster", "form"), CASES)
def test_statistics_y_and_bits_are_right_in_any_order_of_threads(catalogue, gpu, dtype, shape, layout, cluster, form):
    op = catalogue["bn_add_relu"]
    case = case_of(op, "tuned", dtype, dict(zip("NCHW", shape, strict=True)) | {"layout": layout})
    several = math.prod(shape) > 4 * shape[1] and shape[1] > 2
    for gpu.order, change in ((1, as_it_is), (2, far if several else as_it_is), (0, spoiled if several else as_it_is)):
        assert complaint(gpu, op, case, plan={"turns": 0, "whole": cluster}, change=change) is None, change
    assert {*gpu.launched} == {f"bn_whole_{form}"}


def infinite(inputs):
    """An infinity and a NaN where the bit is 0, which count for nothing."""
    dy = inputs.dy.view(-1)
    masked = (inputs.y.view(-1) <= 0).nonzero().view(-1)
    if len(masked) > 1:
        dy[masked[0]], dy[masked[-1]] = math.inf, math.nan


@pytest.mark.parametrize(("dtype", "shape", "layout", "cluster", "form"), CASES)
def test_sums_dx_and_dz_are_right_in_any_order_of_threads(catalogue, gpu, dtype, shape, layout, cluster, form):
    op = catalogue["bn_add_relu_grad"]
    case = case_of(op, "tuned", dtype, dict(zip("NCHW", shape, strict=True)) | {"layout": layout})
    for gpu.order, change in ((1, as_it_is), (2, infinite)):
        assert complaint(gpu, op, case, plan={"turns": 0, "whole": cluster}, change=change) is None, change
    assert {*gpu.launched} == {f"bn_whole_grad_{form}"}
