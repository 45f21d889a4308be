"""RMSNorm with a residual in 8 bits: what its kernels are compiled for, and its check."""

from __future__ import annotations

import pytest

from tests.one_test import one_test

COMPILED = [
    {"M": rows, "N": columns, "to": to, "scales": scales}
    for to in ("e4m3", "int8")
    for scales in ("row", "tensor")
    for rows, columns in [
        (1000, 77),
        (1000, 128),
        (10_000, 2048),
        (10_000, 5120),
        (10_000, 8192),
        (10_000, 131_072),
        (1, 2**18),
    ]
]
WAYS = [(to, scales) for to in ("e4m3", "int8") for scales in ("row", "tensor")]


@pytest.mark.parametrize(("to", "scales"), WAYS)
def test_eager_is_right(trial, dtype, to, scales):
    made = trial("add_rms_norm_quantize", "eager", dtype, M=50, N=100, to=to, scales=scales)
    assert made.complaint_after_call() is None


@one_test(("to", "scales"), WAYS)
def test_the_check_sees_a_number_that_is_one_step_off(trial, to, scales):
    made = trial("add_rms_norm_quantize", "eager", "float32", M=7, N=100, to=to, scales=scales)
    found = made.complaint_after_call(lambda t: t.q[5, 3:4].add_(1 if int(t.q[5, 3]) % 128 < 100 else 255))
    assert found is not None
    assert found.startswith("q: ")


def test_the_check_sees_a_wrong_scale_of_a_row(trial):
    made = trial("add_rms_norm_quantize", "eager", "float32", M=7, N=100)
    assert made.complaint_after_call(lambda t: t.scale[5:6].mul_(1.01)) is not None


@pytest.mark.parametrize("to", ["e4m3", "int8"])
def test_the_largest_number_of_a_row_is_the_types_largest(trial, to):
    from harness.collection.ops.rows.add_rms_norm_quantize import LARGEST, numbers

    after = trial("add_rms_norm_quantize", "eager", "float32", M=7, N=100, to=to).call()
    assert numbers(after.q, to).abs().amax(1).tolist() == [LARGEST[to]] * 7
