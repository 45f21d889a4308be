"""What a launch refuses."""

from __future__ import annotations

import ctypes

import pytest

from harness import cuda
from harness.cuda.launch import _config
from harness.errors import MachineError

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


@pytest.mark.gpu
def test_blocks_of_a_cluster_are_counted_as_blocks(tmp_path):
    import torch

    if not cuda.has_clusters():
        pytest.skip("clusters came with sm_90")
    (tmp_path / "ranks.cu").write_text(
        'extern "C" __global__ void ranks(int* x) { x[blockIdx.x] = 10 * __clusterSizeInBlocks() + '
        "__clusterRelativeBlockRank(); }"
    )
    ranks = cuda.load(tmp_path / "ranks.cu", "ranks", {})
    x = torch.zeros(8, device="cuda", dtype=torch.int32)
    ranks(8, 32, x, cluster=4)
    assert x.tolist() == [40, 41, 42, 43, 40, 41, 42, 43]


@pytest.mark.parametrize("grid", [10, (10, 4), (3,)])
def test_a_grid_that_clusters_do_not_fill_is_refused(grid):
    first = grid if isinstance(grid, int) else grid[0]
    with pytest.raises(ValueError, match=f"a grid of {first} blocks can't be cut into clusters of 4"):
        _config(grid, 32, 0, 4)


@pytest.mark.gpu
def test_more_shared_memory_than_every_block_may_have(twice):
    import torch

    x = torch.ones(8, device="cuda")
    twice(1, 32, x, ctypes.c_int64(8), shared=64 * 1024)
    assert x.tolist() == [2.0] * 8
    with pytest.raises(MachineError, match="twice can't have 1048576 bytes of shared memory"):
        twice(1, 32, x, ctypes.c_int64(8), shared=2**20)
