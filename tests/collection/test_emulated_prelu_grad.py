"""Small layers of prelu_grad on a CPU, in one kernel: all forms of groups, in blocks and clusters."""

from __future__ import annotations

import math

import pytest

from tests.collection.conftest import case_of
from tests.collection.emulation import Gpu, compiler, complaint


@pytest.fixture
def gpu(emulated_folder):
    compiler()
    return Gpu(emulated_folder, multiprocessors=132)


def as_it_is(_):
    pass


def spoiled(inputs):
    """NaNs and infinities where x is above zero and where it isn't, in a channel each."""
    last = inputs.x.shape[0] - 1
    inputs.x[last, 0], inputs.x[0, 1] = math.nan, -math.inf
    inputs.dy[last, 2], inputs.x[last, 2] = math.inf, 1.0
    inputs.dy[0, 3], inputs.x[0, 3] = math.nan, 0.0


# (dtype, sizes, blocks of a cluster, the end of the kernel's name): one pack a thread and several; one sample, more
# samples than threads; groups of one channel, of eight in odd rows, and of channels that are last.
CASES = [
    ("float16", (33, 24, 7, 7), 2, "few"),
    ("bfloat16", (200, 8, 7, 7), 4, "few"),
    ("float32", (33, 8, 5, 3), 1, "few"),
    ("float16", (128, 8, 7, 7), 8, "few"),
    ("float16", (2, 4, 8, 8), 1, "one"),
    ("bfloat16", (5, 4, 28, 28), 2, "one"),
    ("float32", (1, 1, 64, 64), 4, "one"),
    ("float16", (33, 64, 1, 1), 1, "many"),
    ("bfloat16", (801, 24, 1, 1), 4, "many"),
    ("float32", (1, 8, 1, 1), 1, "many"),
]


@pytest.mark.slow  # test_kernels.py compiles each kernel; CONTRIBUTING.md says when to run this
@pytest.mark.parametrize(("dtype", "shape", "cluster", "form"), CASES)
def test_dx_and_sums_are_right_in_any_order_of_threads(catalogue, gpu, dtype, shape, cluster, form):
    op = catalogue["prelu_grad"]
    case = case_of(op, "tuned", dtype, dict(zip("NCHW", shape, strict=True)))
    for gpu.order, change in ((1, as_it_is), (2, as_it_is), (0, spoiled if shape[1] > 3 else as_it_is)):
        assert complaint(gpu, op, case, plan={"whole": cluster}, change=change) is None, change
    assert {*gpu.launched} == {f"prelu_grad_whole_{form}"}
