"""What a launch refuses."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

import pytest

from harness import cuda
from harness.cuda import launch
from harness.errors import MachineError
from harness.model import KernelFacts

SOURCE = 'extern "C" __global__ void twice(float* x, long long n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }'


WITH_STRUCT = """
struct Sizes { unsigned n; float factor; unsigned step; };
extern "C" __global__ void scale(float* x, unsigned char first, const Sizes sizes) {
  for (unsigned i = first + threadIdx.x; i < sizes.n; i += sizes.step) x[i] *= sizes.factor;
}
"""


class Sizes(ctypes.Structure):
    _fields_ = (("n", ctypes.c_uint32), ("factor", ctypes.c_float), ("step", ctypes.c_uint32))


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
        launch.config(grid, 32, 0, 4, 0)


@pytest.mark.gpu
def test_more_shared_memory_than_every_block_may_have(twice):
    import torch

    x = torch.ones(8, device="cuda")
    twice(1, 32, x, ctypes.c_int64(8), shared=64 * 1024)
    assert x.tolist() == [2.0] * 8
    with pytest.raises(MachineError, match="twice can't have 1048576 bytes of shared memory"):
        twice(1, 32, x, ctypes.c_int64(8), shared=2**20)


def a_kernel(function: int = 77) -> cuda.Kernel:
    """A kernel that no driver has loaded."""
    kernel = object.__new__(cuda.Kernel)
    kernel._function, kernel._shared = launch.as_function(function), 0
    kernel.facts = KernelFacts("scale", 0, 0, 0)
    return kernel


@pytest.fixture
def driver_of_the_test(monkeypatch):
    """Function that sets what stands for the driver's launch. The stream is the default one."""
    monkeypatch.setattr(launch, "stream_handle", lambda: 0)
    return lambda launched: monkeypatch.setattr(launch, "driver_launch", lambda: launched)


def test_the_driver_gets_the_address_of_each_argument_and_a_struct_as_it_lies(driver_of_the_test):
    """The driver is a fake that reads the arguments as the driver does: so many bytes as the kernel's parameter has."""
    seen = {}

    def launched(shape, function, arguments, extra):
        addresses = (ctypes.c_void_p * 4).from_address(arguments)
        kinds = ctypes.c_uint64, ctypes.c_uint8, ctypes.c_uint64, Sizes
        pointer, first, null, sizes_read = (kind.from_address(at) for kind, at in zip(kinds, addresses, strict=True))
        seen["arguments"] = (pointer.value, first.value, null.value, (sizes_read.n, sizes_read.factor, sizes_read.step))
        seen["function"] = int(function), extra
        seen["grid"] = shape.gridDimX, shape.gridDimY, shape.gridDimZ
        seen["block"] = shape.blockDimX, shape.blockDimY, shape.blockDimZ
        seen["shared and stream"] = shape.sharedMemBytes, int(shape.hStream)
        seen["cluster"] = [attribute.value.clusterDim.x for attribute in shape.attrs]
        return (0,)

    driver_of_the_test(launched)
    tensor = SimpleNamespace(data_ptr=lambda: 2**40 + 64, is_contiguous=lambda: True)
    a_kernel()((6, 2), 128, tensor, ctypes.c_uint8(3), None, Sizes(8, 0.5, 32), shared=1024, cluster=2)
    assert seen.pop("arguments") == (2**40 + 64, 3, 0, (8, 0.5, 32))
    legacy_stream = 1
    assert seen == {
        "function": (77, 0),
        "grid": (6, 2, 1),
        "block": (128, 1, 1),
        "shared and stream": (1024, legacy_stream),
        "cluster": [2],
    }


def test_a_launch_that_the_driver_refuses_is_an_error(driver_of_the_test):
    from cuda.bindings import driver

    driver_of_the_test(lambda *_: (driver.CUresult.CUDA_ERROR_INVALID_VALUE,))
    with pytest.raises(
        MachineError, match=r"a launch of \(5, 2, 1\) blocks of 2048 threads failed: CUDA_ERROR_INVALID_VALUE"
    ):
        a_kernel()((5, 2), 2048, Sizes(8, 0.5, 32))


def test_launches_are_noted_for_the_thread_that_asks(driver_of_the_test):
    driver_of_the_test(lambda *_: (0,))
    kernel, size = a_kernel(), ctypes.c_uint8(3)
    kernel(1, 32, size)
    with launch.recorded() as outer:
        kernel(2, 32, size)
        with launch.recorded() as inner:
            kernel(0, 32, size)
            kernel((3, 4), 64, size, shared=16, cluster=3)
            other = threading.Thread(target=kernel, args=(9, 32, size))
            other.start()
            other.join()
        kernel(5, 32, size)
    kernel(6, 32, size)
    assert [made.shape.grid for made in outer] == [2, 5]
    assert [(made.shape, made.arguments, int(made.function)) for made in inner] == [
        (launch.LaunchShape((3, 4), 64, 16, 3), (size,), 77)
    ]


@pytest.mark.gpu
def test_a_kernel_gets_a_struct_by_value(tmp_path):
    import torch

    (tmp_path / "scale.cu").write_text(WITH_STRUCT)
    scale = cuda.load(tmp_path / "scale.cu", "scale", {})
    x = torch.ones(80, device="cuda")
    scale(1, 32, x, ctypes.c_uint8(3), Sizes(72, 0.5, 32))
    assert x.tolist() == [1.0] * 3 + [0.5] * 69 + [1.0] * 8
