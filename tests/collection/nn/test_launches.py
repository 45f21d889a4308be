"""All functions make their first call's launches again, through the real launcher: the driver alone is the test's.

Tensors lie on the CPU, where no kernel runs, so results mean nothing here. Which addresses the driver gets does.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch

from harness import cuda, nn
from harness.collection.nn import _dropout, _kernels, _memo
from harness.collection.ops.rows import rms_norm
from harness.cuda import launch
from harness.model import KernelFacts
from tests.cuda.drivers import driven_by

HALF, FLOAT = torch.float16, torch.float32


@pytest.fixture(scope="module")
def tools() -> ModuleType:
    """tests/collection/test_kernels.py, which knows how to prepare launches where there is no GPU."""
    spec = importlib.util.spec_from_file_location("kernels", Path(__file__).parents[1] / "test_kernels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = module
    spec.loader.exec_module(module)
    return module


class Loaded(cuda.Kernel):
    """A kernel that no driver has: its function is a number for the file's name, the entry and the macros."""

    every: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, *what: Any) -> None:
        if what not in self.every:
            self.every.append(what)
        self._function, self._shared = self.every.index(what) + 1, 2**30
        self.facts = KernelFacts(what[1], 0, 0, 0)

    def resident_clusters(self, *_: Any) -> int:
        return 1


class Seen(list[tuple[Any, ...]]):
    """What the driver was asked to launch. kept: memory that was asked for meanwhile, so that none has two owners."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []


@pytest.fixture(params=["Python", "C"])
def driver(request, tools, monkeypatch) -> Seen:
    """What the driver was asked to launch: the kernel, the grid, the stream, and the first words of arguments.

    Launches are made in each of the two ways.
    """
    seen = Seen()
    sizes: dict[int, int] = {}

    def launched(shape, function, arguments):
        count = sizes[int(function)]
        words = (ctypes.c_uint64 * count).from_address(arguments)
        values = [ctypes.c_uint32.from_address(at).value for at in words]
        pointers = [ctypes.c_uint64.from_address(at).value for at in words]
        seen.append((int(function), *shape, values, pointers))
        return 0

    class Counted(Loaded):
        def __call__(self, grid, block, *arguments, **options):
            sizes[int(self._function)] = len(arguments)
            super().__call__(grid, block, *arguments, **options)

    tools.pretend_gpu(monkeypatch, lambda file, entry, macros: Counted(file.name, entry, *sorted(macros.items())))
    driven_by(launched, request.param, monkeypatch)
    monkeypatch.setattr(launch, "stream_handle", lambda: 64)
    monkeypatch.setattr(_kernels, "_STREAM", lambda _: 64)
    monkeypatch.setattr(_kernels, "_DEVICE", lambda: -1)
    monkeypatch.setattr(_kernels, "_is_here", lambda _: True)
    monkeypatch.setattr(_dropout, "capturing", lambda: True)  # no GPU's generator tells the number of a call

    def keeping(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*what: Any, **options: Any) -> torch.Tensor:
            seen.kept.append(make(*what, **options))
            return seen.kept[-1]

        return made

    monkeypatch.setattr(_kernels, "_EMPTY", keeping(torch._C._dynamo.guards._empty_strided_cpu))
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty_strided")):
        monkeypatch.setattr(owner, name, keeping(getattr(owner, name)))
    monkeypatch.setattr(_kernels, "_obstacle", lambda _: None)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    for memo in _memo.Memo.every:
        monkeypatch.setattr(memo, "_known", {})
        monkeypatch.setattr(memo, "call", memo._first)
    for kernels in _kernels.OpKernels.every:
        monkeypatch.setattr(kernels, "_known", {})
    return seen


def rows(*shapes: tuple[int, ...], dtype: torch.dtype = FLOAT) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


RUNNING = torch.zeros(8), torch.ones(8)
MASKS = torch.zeros(4, 49, 49, dtype=HALF)


def images(order: torch.memory_format) -> list[torch.Tensor]:
    """Images, a residual, weight and bias."""
    pair = [torch.randn(2, 8, 4, 4).contiguous(memory_format=order).requires_grad_() for _ in range(2)]
    return [*pair, *rows((8,), (8,))]


def batch_norm(x: torch.Tensor, residual: torch.Tensor, *vectors: torch.Tensor) -> torch.Tensor:
    return nn.batch_norm_add_relu(x, residual, *RUNNING, *vectors)


FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], list[torch.Tensor]]]] = {
    "layer_norm": (nn.layer_norm, lambda: rows((12, 64), (64,), (64,))),
    "layer_norm of long rows": (nn.layer_norm, lambda: rows((200, 40000), (40000,), (40000,), dtype=HALF)),
    "rms_norm": (nn.rms_norm, lambda: rows((12, 80), (80,))),
    "rms_norm of odd rows": (nn.rms_norm, lambda: rows((300, 77), (77,))),
    "layer_norm of parameters": (nn.layer_norm, lambda: [*rows((12, 64), dtype=HALF), *rows((64,), (64,))]),
    "rms_norm of parameters": (nn.rms_norm, lambda: [*rows((12, 96), dtype=HALF), *rows((96,))]),
    "softmax": (nn.softmax, lambda: rows((2, 5, 96))),
    "dropout": (lambda x: nn.dropout(x, 0.25), lambda: rows((3, 100))),
    "dropout_add": (lambda x, r: nn.dropout_add(x, r, 0.25), lambda: rows((3, 100), (3, 100))),
    "bias_dropout_residual": (
        lambda x, b, r: nn.bias_dropout_residual(x, b, r, 0.25),
        lambda: rows((3, 64), (64,), (3, 64)),
    ),
    "batch_norm nchw": (batch_norm, lambda: images(torch.contiguous_format)),
    "batch_norm nhwc": (batch_norm, lambda: images(torch.channels_last)),
    "batch_norm alone": (
        lambda x, w, b: nn.batch_norm_add_relu(x, None, *RUNNING, w, b),
        lambda: rows((2, 8, 4, 4), (8,), (8,)),
    ),
    "window_partition": (lambda x: nn.window_partition(x, 7, 3), lambda: rows((2, 14, 14, 96), dtype=HALF)),
    "window_reverse": (lambda x: nn.window_reverse(x, 14, 14, 7, 3), lambda: rows((8, 49, 96), dtype=HALF)),
    "window_attention": (nn.window_attention, lambda: rows((8, 49, 192), (2, 49, 49), dtype=HALF)),
    "window_attention with masks": (
        lambda qkv, bias: nn.window_attention(qkv, bias, MASKS),
        lambda: rows((8, 49, 192), (2, 49, 49), dtype=HALF),
    ),
}


def lies_in(tensor: torch.Tensor, address: int) -> bool:
    return bool(tensor.data_ptr() <= address < tensor.data_ptr() + tensor.nbytes)


def trained(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs, the output and the gradients of a call."""
    y = function(*inputs)
    slope = torch.ones_like(y)
    return [*inputs, y, slope, *torch.autograd.grad(y, inputs, slope)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_second_call_launches_the_same_for_its_own_tensors(name, driver, request):
    function, make = FUNCTIONS[name]
    first = trained(function, make())
    launches, asked = [*driver], len(driver.kept)
    assert launches
    driver.clear()
    prepared = pytest.MonkeyPatch()
    with prepared.context() as patch:
        patch.setattr(_kernels.KernelCall, "context", lambda _: pytest.fail("a launch is planned anew"))
        second = trained(function, make())
    again = [*driver]
    learnt = [plan for memo in _memo.Memo.every for plan in memo._known.values()]
    assert bool(learnt) == (request.node.callspec.params["driver"] == "C")
    assert all(learnt)
    assert [(number, grid, stream) for number, grid, stream, *_ in again] == [
        (number, grid, stream) for number, grid, stream, *_ in launches
    ]
    for before, after in zip(launches, again, strict=True):
        for (value, pointer), (new_value, new_pointer) in zip(
            zip(*before[3:], strict=True), zip(*after[3:], strict=True), strict=True
        ):
            known = [index for index, tensor in enumerate(first) if tensor.data_ptr() == pointer and pointer]
            if known:
                assert new_pointer in {second[index].data_ptr() for index in known}
            elif pointer < 2**33:  # a number, not an address
                assert new_value == value
            elif any(lies_in(tensor, pointer) for tensor in driver.kept[:asked]):
                # Memory of the launches' own: asked for anew, and as far from its begin.
                assert any(lies_in(tensor, new_pointer) for tensor in driver.kept[asked:])


def test_tensors_that_begin_elsewhere_in_a_pack_are_planned_apart(driver):
    """A view that begins 4 bytes after a pack gets the launches of unaligned tensors, and keeps them."""
    room = torch.zeros(65)
    aligned, beside = room[:64].view(4, 16), room[1:].view(4, 16)
    with torch.no_grad():
        for x in (aligned, beside, aligned, beside):
            nn.softmax(x)
    kernels = [number for number, *_ in driver]
    assert kernels[:2] == kernels[2:]
    assert [launch[4][0] for launch in driver] == [x.data_ptr() for x in (aligned, beside, aligned, beside)]
    (found,) = (found for kernels in _kernels.OpKernels.every for found in kernels._known.values())
    assert len(found._replays) == 2


def test_the_default_stream_is_the_legacy_one_each_time(driver, monkeypatch):
    """Torch's handle of it is 0, which the driver may take for the default stream of each thread."""
    for module, name in ((launch, "stream_handle"), (_kernels, "_STREAM")):
        monkeypatch.setattr(module, name, lambda *_: 0)
    with torch.no_grad():
        for _ in range(3):
            nn.softmax(torch.randn(4, 16))
    assert [stream for _, _, stream, *_ in driver] == [cuda.LEGACY_STREAM] * 3


def test_places_without_end_are_not_kept(driver, monkeypatch):
    monkeypatch.setattr(_kernels, "_MOST_PLACES", 2)
    room = torch.zeros(80)
    with torch.no_grad():
        for begin in (0, 1, 2, 3, 0, 1):
            nn.softmax(room[begin : begin + 64].view(4, 16))
    (found,) = (found for kernels in _kernels.OpKernels.every for found in kernels._known.values())
    assert len(found._replays) <= 2
    assert len(driver) == 6


def test_a_tensor_of_another_device_is_named(driver):
    launch = _kernels.KernelLaunch(_kernels.KernelCall(rms_norm.OP, FLOAT, torch.device("cpu"), (("M", 2), ("N", 8))))
    x, weight = torch.randn(2, 8), torch.randn(8)
    launch(x, weight, x, x)
    launch._devices = {0}  # a CPU's tensors all have the number -1
    with pytest.raises(RuntimeError, match="rms_norm: gamma lies on meta, other tensors on cpu; move it there"):
        launch._launch((x, weight.to("meta"), x, x))


def test_launches_without_end_are_not_kept(driver, monkeypatch):
    monkeypatch.setattr(_kernels, "_KEPT", 3)
    with torch.no_grad():
        for rows_ in range(1, 9):
            nn.softmax(torch.randn(rows_, 8))
    assert [len(kernels._known) for kernels in _kernels.OpKernels.every if kernels._known] == [3]


def test_a_call_that_no_replay_can_repeat_is_planned_each_time(driver, monkeypatch):
    monkeypatch.setattr(_kernels.Replay, "of", classmethod(lambda _, call, tensors: call(*tensors)))
    with torch.no_grad():
        for times in (1, 2, 3):
            nn.softmax(torch.randn(4, 16))
            assert len(driver) == times
