"""Launches that are made again do what the first call did, with other tensors."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from harness import cuda
from harness.cuda import launch, replay
from harness.cuda.replay import Replay
from harness.errors import MachineError
from harness.model import KernelFacts
from tests.cuda.drivers import driven_by


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint32), ("second", ctypes.c_float), ("third", ctypes.c_uint32))


@dataclass
class Driver:
    """What stands for the driver: it reads arguments of the given kinds, by kernel, as the driver does."""

    kinds: dict[int, tuple[type, ...]]
    seen: list[tuple[object, ...]] = field(default_factory=list)
    status: int = 0

    def __call__(self, shape, function, arguments):
        kinds = self.kinds[function]
        addresses = (ctypes.c_uint64 * len(kinds)).from_address(arguments)
        read = [kind.from_address(at) for kind, at in zip(kinds, addresses, strict=True)]
        values = [(r.first, r.second, r.third) if isinstance(r, Pair) else r.value for r in read]
        (blocks, *_), stream = shape
        self.seen.append((function, blocks, stream, *values))
        return self.status


WORD, INT, BYTE = ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint8
STREAM = 96


@pytest.fixture
def driver(monkeypatch):
    """The driver of a test, with kernels 1 (two tensors, two numbers), 2 (tensors, a struct) and 3 (workspaces)."""
    made = Driver({1: (WORD, WORD, INT, BYTE), 2: (WORD, Pair, WORD), 3: (WORD, WORD, WORD, INT)})
    driven_by(made, "Python", monkeypatch)
    monkeypatch.setattr(launch, "stream_handle", lambda: STREAM)
    return made


def kernel(number: int) -> cuda.Kernel:
    made = object.__new__(cuda.Kernel)
    made._function, made._shared, made.facts = number, 0, KernelFacts("k", 0, 0, 0)
    return made


def tensors(count: int) -> list[torch.Tensor]:
    return [torch.empty(8) for _ in range(count)]


def addresses(given: list[torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in given]


def test_the_same_launches_are_made_with_other_addresses(driver):
    def call(x, y):
        kernel(1)(7, 32, x, y, ctypes.c_int32(-5), ctypes.c_uint8(9))
        kernel(2)((3, 2), 32, y, Pair(4, 0.25, 2**31), None)

    first, others = tensors(2), tensors(2)
    made = Replay.of(call, first)
    assert made.workspace == 0
    x, y = addresses(first)
    assert driver.seen == [(1, 7, STREAM, x, y, -5, 9), (2, 3, STREAM, y, (4, 0.25, 2**31), 0)]
    driver.seen.clear()
    made(STREAM, addresses(others))
    made(32, [64, 128])
    x, y = addresses(others)
    assert driver.seen == [
        (1, 7, STREAM, x, y, -5, 9),
        (2, 3, STREAM, y, (4, 0.25, 2**31), 0),
        (1, 7, 32, 64, 128, -5, 9),
        (2, 3, 32, 128, (4, 0.25, 2**31), 0),
    ]


def test_tensors_that_were_the_same_once_are_told_from_each_other(driver):
    (x,) = tensors(1)
    made = Replay.of(lambda one, other: kernel(1)(1, 32, other, one, ctypes.c_int32(0), ctypes.c_uint8(0)), [x, x])
    made(STREAM, [64, 128])
    assert driver.seen[-1][3:5] == (128, 64)


def test_memory_of_the_launches_own_is_asked_for_at_each_call(driver):
    def call(x):
        sums, kept = torch.empty(3, 50), torch.empty(5, dtype=torch.uint8)
        kernel(3)(1, 32, x, sums[1], kept, ctypes.c_int32(1))
        kernel(3)(1, 32, sums, sums[1], torch.empty(0), ctypes.c_int32(2))

    made = Replay.of(call, tensors(1))
    assert made.workspace == 2 * 1024 - 512  # 600 bytes and 5 bytes, each as torch's allocator places it
    driver.seen.clear()
    made(STREAM, [64], 4096)
    first, second = (row[3:] for row in driver.seen)
    assert first == (64, 4096 + 200, 4096 + 1024, 1)
    assert second == (4096, 4096 + 200, 0, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: kernel(3)(1, 32, x[2:], x, x, ctypes.c_int32(1)),
        lambda x: kernel(3)(1, 32, x, torch.zeros(3), x, ctypes.c_int32(1)),
        lambda x: x.add_(1),
    ],
    ids=["a part of a tensor", "memory with contents", "work by torch"],
)
def test_what_no_replay_can_repeat_gives_none(driver, call):
    assert Replay.of(call, tensors(1)) is None


def test_a_view_of_a_whole_tensor_cannot_be_told_either(driver):
    assert Replay.of(lambda x: kernel(3)(1, 32, x, x.view(2, 4), x, ctypes.c_int32(1)), tensors(1)) is None


def test_threads_have_arguments_of_their_own(driver, monkeypatch):
    """While one thread is inside of the driver, another one makes the same launches."""
    made = Replay.of(lambda x, y: kernel(1)(1, 32, x, y, ctypes.c_int32(0), ctypes.c_uint8(0)), tensors(2))
    seen = []

    def launched(*arguments):
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=made, args=(STREAM, [3 * 64, 4 * 64]))
            other.start()
            other.join()
        driver(*arguments)
        seen.append(driver.seen[-1][3:5])
        return 0

    driven_by(launched, "Python", monkeypatch)
    made(STREAM, [64, 2 * 64])
    assert seen == [(3 * 64, 4 * 64), (64, 2 * 64)]


def test_a_launch_that_fails_names_its_size(driver):
    made = Replay.of(lambda x, y: kernel(1)(5, 32, x, y, ctypes.c_int32(0), ctypes.c_uint8(0)), tensors(2))
    driver.status = 719
    with pytest.raises(MachineError, match=r"a launch of \(5, 1, 1\) blocks of 32 threads failed: CUDA_ERROR_LAUNCH_F"):
        made(STREAM, [64, 128])


def test_streams_without_end_keep_no_more_than_some(driver, monkeypatch):
    monkeypatch.setattr(replay, "_STREAMS", 2)
    made = Replay.of(lambda x, y: kernel(1)(1, 32, x, y, ctypes.c_int32(0), ctypes.c_uint8(0)), tensors(2))
    for stream in (16, 32, 48, 16):
        made(stream, [64, 128])
    assert [row[2] for row in driver.seen[1:]] == [16, 32, 48, 16]
    assert len(made._shapes) <= 2


SOURCE = """
extern "C" __global__ void sums(const float* x, float* part, int n) {
  if (threadIdx.x == 0) { float s = 0; for (int i = 0; i < n; ++i) s += x[i]; *part = s; }
}
extern "C" __global__ void scale(const float* x, const float* part, float* y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] * *part;
}
"""


@pytest.mark.gpu
def test_a_replay_computes_in_graphs_on_streams_and_in_threads(tmp_path):
    (tmp_path / "sums.cu").write_text(SOURCE)
    sums, scale = (cuda.load(tmp_path / "sums.cu", name, {}) for name in ("sums", "scale"))
    stream_of = torch._C._cuda_getCurrentRawStream

    def call(x, y):
        part = torch.empty(1, device="cuda")
        sums(1, 32, x, part, ctypes.c_int32(8))
        scale(1, 32, x, part, y, ctypes.c_int32(8))

    x, y = torch.ones(8, device="cuda"), torch.empty(8, device="cuda")
    made = Replay.of(call, [x, y])
    assert y.tolist() == [8.0] * 8

    def again(factor: float) -> torch.Tensor:
        given, out = torch.full((8,), factor, device="cuda"), torch.empty(8, device="cuda")
        space = torch.empty(made.workspace, dtype=torch.uint8, device="cuda")
        made(stream_of(0), [given.data_ptr(), out.data_ptr()], space.data_ptr())
        return out

    assert again(2.0).tolist() == [32.0] * 8
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert again(3.0).tolist() == [72.0] * 8
    got = SimpleNamespace()
    thread = threading.Thread(target=lambda: setattr(got, "y", again(4.0).tolist()))
    thread.start()
    thread.join()
    assert got.y == [128.0] * 8
    graph, kept = torch.cuda.CUDAGraph(), torch.full((8,), 1.0, device="cuda")
    with torch.cuda.graph(graph):
        out, space = torch.empty(8, device="cuda"), torch.empty(made.workspace, dtype=torch.uint8, device="cuda")
        made(stream_of(0), [kept.data_ptr(), out.data_ptr()], space.data_ptr())
    kept.fill_(5.0)
    graph.replay()
    assert out.tolist() == [200.0] * 8
