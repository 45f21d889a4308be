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
from tests.cuda.drivers import driven_by

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
        launch.config(grid, 32, 0, 4, 1)


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
    kernel._function, kernel._shared = function, 0
    kernel.facts = KernelFacts("scale", 0, 0, 0)
    return kernel


@pytest.fixture(params=["Python", "C"])
def driver_of_the_test(request, monkeypatch):
    """Function that sets what stands for the driver's launch, in both ways. The stream is the default one."""
    monkeypatch.setattr(launch, "stream_handle", lambda: 0)
    return lambda launched: driven_by(launched, request.param, monkeypatch)


def tensor(address: int, contiguous: bool = True) -> SimpleNamespace:
    """Just what a launch asks of a tensor."""
    return SimpleNamespace(data_ptr=lambda: address, is_contiguous=lambda: contiguous, shape=(4,), stride=lambda: (2,))


def test_the_driver_gets_the_address_of_each_argument_and_a_struct_as_it_lies(driver_of_the_test):
    """The driver is a fake that reads the arguments as the driver does: so many bytes as the kernel's parameter has."""
    seen = []

    def launched(shape, function, arguments):
        addresses = (ctypes.c_void_p * 4).from_address(arguments)
        kinds = ctypes.c_uint64, ctypes.c_uint8, ctypes.c_uint64, Sizes
        pointer, first, null, sizes_read = (kind.from_address(at) for kind, at in zip(kinds, addresses, strict=True))
        read = pointer.value, first.value, null.value, (sizes_read.n, sizes_read.factor, sizes_read.step)
        seen.append((function, shape, read))
        return 0

    driver_of_the_test(launched)
    arguments = tensor(2**40 + 64), ctypes.c_uint8(3), None, Sizes(8, 0.5, 32)
    a_kernel()((6, 2), 128, *arguments, shared=1024, cluster=2)
    legacy_stream = 1
    read = 2**40 + 64, 3, 0, (8, 0.5, 32)
    assert seen == [(77, ((6, 2, 128, 1024, 2), legacy_stream), read)]


def test_a_launch_that_the_driver_refuses_is_an_error(driver_of_the_test):
    driver_of_the_test(lambda *_: 1)
    with pytest.raises(
        MachineError, match=r"a launch of \(5, 2, 1\) blocks of 2048 threads failed: CUDA_ERROR_INVALID_VALUE"
    ):
        a_kernel()((5, 2), 2048, Sizes(8, 0.5, 32))


def test_a_thread_without_a_context_gets_one(driver_of_the_test, monkeypatch):
    """The driver says once that there is no context. Then the device's is made current, and the launch is made."""
    statuses, current = [201, 0, 201, 201], []
    driver_of_the_test(lambda *_: statuses.pop(0))
    device = SimpleNamespace(set_current=lambda: current.append(0))
    monkeypatch.setattr("cuda.core.Device", lambda _: device)
    monkeypatch.setattr(launch, "_torch_cuda", lambda: SimpleNamespace(current_device=lambda: 0))
    a_kernel()(1, 32, ctypes.c_int32(1))
    assert current == [0]
    with pytest.raises(MachineError, match="CUDA_ERROR_INVALID_CONTEXT"):
        a_kernel()(1, 32, ctypes.c_int32(1))
    assert statuses == []


def test_what_a_kernel_cannot_take_is_refused_before_a_launch(driver_of_the_test):
    driver_of_the_test(lambda *_: pytest.fail("it is launched"))
    with pytest.raises(ValueError, match=r"shape \(4,\) with strides \(2,\) isn't contiguous; pass `tensor.contiguous"):
        a_kernel()(1, 32, tensor(64, contiguous=False))
    with pytest.raises(ValueError, match="a grid of 6 blocks can't be cut into clusters of 4"):
        a_kernel()((6, 2), 32, tensor(64), cluster=4)


def test_launches_are_noted_for_the_thread_that_asks(driver_of_the_test):
    driver_of_the_test(lambda *_: 0)
    kernel, size = a_kernel(), ctypes.c_uint8(3)
    kernel(1, 32, size)
    with launch.LAUNCHES.taken() as outer:
        kernel(2, 32, size)
        with launch.LAUNCHES.taken() as inner:
            for empty in (0, (0, 4), (4, 0), (1, 1, 0)):
                kernel(empty, 32, size)
            kernel((0, 4), 32, size)
            kernel((4, 0), 32, size)
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
