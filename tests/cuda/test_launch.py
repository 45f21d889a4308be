"""What a launch refuses."""

from __future__ import annotations

import ctypes

import pytest

from harness import cuda

SOURCE = 'extern "C" __global__ void twice(float* x, long long n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }'


@pytest.fixture
def twice(tmp_path):
    (tmp_path / "twice.cu").write_text(SOURCE)
    return cuda.load(tmp_path / "twice.cu", "twice", {})


@pytest.mark.gpu
def test_tensors_with_gaps_are_refused(twice):
    import torch

    x = torch.ones(8, device="cuda")
    twice(1, 32, x, ctypes.c_int64(8))
    with pytest.raises(ValueError, match=r"shape \(4,\) with strides \(2,\) isn't contiguous; pass `tensor.contig"):
        twice(1, 32, x[::2], ctypes.c_int64(4))
    assert x.tolist() == [2.0] * 8


@pytest.mark.gpu
def test_an_empty_grid_does_nothing(twice):
    import torch

    x = torch.ones(8, device="cuda")
    twice(0, 32, x, ctypes.c_int64(8))
    assert x.tolist() == [1.0] * 8
