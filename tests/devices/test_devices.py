"""Devices: which there are, and the CPU's clock and caches."""

from __future__ import annotations

import hashlib
import os
from itertools import islice
from types import SimpleNamespace

import pytest

from harness import devices, environment
from harness.devices import _timing
from harness.devices import cuda as cuda_device
from harness.devices._matrices import products
from harness.devices.cpu import Cpu, _parse_size
from harness.devices.cuda import Cuda
from harness.errors import UsageError
from harness.model import COMPUTE_KINDS


def test_cuda_is_preferred_and_the_cpu_always_there():
    assert list(devices.kinds()) == ["cuda", "cpu"]
    assert devices.choose("cpu") == "cpu"


def test_an_unknown_device():
    with pytest.raises(UsageError, match="no device named 'tpu'") as error:
        devices.choose("tpu")
    assert "cpu" in error.value.advice


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_is_not_used(monkeypatch, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert "hides every GPU" in Cuda().missing()
    assert devices.choose(None) == "cpu"
    with pytest.raises(UsageError, match="hides every GPU"):
        devices.choose("cuda")


def test_facts_of_the_cpu():
    machine = Cpu().machine()
    assert machine.kind == "cpu"
    [processor] = machine.devices
    assert processor.memory_bytes > 2**28
    assert processor.cache_bytes >= 2**17
    assert machine == Cpu().machine()
    assert Cpu().count is None
    assert "torch" in dict(machine.versions)


class FakeTime:
    """A clock that stands still except while a call sleeps, so that no test depends on what else the machine does."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-7  # Reading a clock takes time, too.
        return self.now

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(_timing, "time", fake)
    return fake


@pytest.mark.parametrize("timer", ["graph", "launch", "host"])
def test_the_cpu_times_calls_by_the_clock(clock, timer):
    batch = Cpu().batch([lambda: clock.sleep(2e-3)] * 2, timer=timer, keep=1, seconds=9e-3)
    assert (batch.timer, batch.calls) == ("host", 6), "whole passes"
    assert batch.run(3) == pytest.approx([2e-3] * 3, rel=1e-3)


def test_the_cpu_times_steady_calls_in_blocks(clock):
    batch = Cpu().batch([lambda: clock.sleep(2e-3)] * 2, timer="steady", keep=1, seconds=8e-3)
    assert (batch.timer, batch.calls) == ("steady", 4)
    assert batch.run(3) == pytest.approx([2e-3] * 3, rel=1e-3)


def test_quick_calls_are_timed_together(clock):
    batch = Cpu().batch([lambda: clock.sleep(1e-6)], timer="graph", keep=1, seconds=4e-3)
    assert batch.calls == pytest.approx(4000, rel=1e-3)
    assert batch.run(3) == pytest.approx([1e-6] * 3, rel=1e-3)


@pytest.mark.parametrize("late", [0, 1, 5], ids=["first call", "first timed call", "later call"])
def test_a_call_that_is_held_up_once_does_not_leave_quick_calls_alone(clock, late):
    """The first call may load a kernel; and other programs may run in between."""
    pauses = iter([*[0.0] * late, 8e-3])
    calls = [lambda: clock.sleep(1e-6 + next(pauses, 0.0))]
    batch = Cpu().batch(calls, timer="graph", keep=1, seconds=4e-3)
    assert batch.calls == pytest.approx(4000, rel=0.1)


def test_a_long_call_is_not_repeated_to_find_out_how_long_it_takes(clock):
    """The first call isn't timed; the second one is."""
    made = []
    Cpu().batch([lambda: (made.append(1), clock.sleep(1.0))], timer="host", keep=1, seconds=4e-3)
    assert len(made) == 2


@pytest.mark.parametrize("timer", ["graph", "steady"])
def test_results_of_the_latest_calls_stay_alive(timer):
    alive: set[int] = set()

    class Result:
        def __init__(self) -> None:
            alive.add(id(self))

        def __del__(self) -> None:
            alive.discard(id(self))

    batch = Cpu().batch([Result] * 5, timer=timer, keep=5, seconds=1e-3)
    batch.run(2)
    assert len(alive) == 5


def test_cache_sizes():
    assert [_parse_size(text) for text in ("48K\n", "2M", "1G")] == [49152, 2**21, 2**30]


class FakeGpu:
    """What cuda.core tells of a GPU."""

    compute_capability = (9, 0)

    def __init__(self, index: int) -> None:
        self.device_id = index
        self.name = "NVIDIA H200"
        self.uuid = f"GPU-{index}"
        self.properties = SimpleNamespace(l2_cache_size=2**20 + index, multiprocessor_count=132)


@pytest.fixture
def gpus(monkeypatch):
    """A host with two GPUs, the processes that compute on each, and a driver that tells nothing else."""
    import pynvml

    import harness.cuda

    visible = [FakeGpu(0), FakeGpu(1)]
    busy = {0: [11, 12], 1: [12, os.getpid()]}

    def silent(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(harness.cuda, "devices", lambda: tuple(visible))
    monkeypatch.setattr(cuda_device, "_handle", lambda device: device.device_id)
    for name in ("nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetEnforcedPowerLimit"):
        monkeypatch.setattr(pynvml, name, silent)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "570.1")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: SimpleNamespace(total=2**37 + handle))
    processes = "nvmlDeviceGetComputeRunningProcesses"
    monkeypatch.setattr(pynvml, processes, lambda handle: [SimpleNamespace(pid=pid) for pid in busy[handle]])
    return visible, busy


def test_a_machine_has_every_visible_gpu(gpus):
    machine = Cuda().machine()
    assert [device.memory_bytes for device in machine.devices] == [2**37, 2**37 + 1]
    assert [device.cache_bytes for device in machine.devices] == [2**20, 2**20 + 1]
    assert machine.name == "2 x NVIDIA H200"
    assert (machine.device.compute_capability, machine.device.power_limit_w) == ("9.0", None)
    assert Cuda().count == 2


def test_the_fingerprint_of_one_gpu_is_that_of_version_1(gpus):
    visible, _ = gpus
    both = Cuda().machine().fingerprint
    del visible[1]
    one = Cuda().machine().fingerprint
    assert one == hashlib.sha256(b"NVIDIA H200|GPU-0|570.1").hexdigest()[:12]
    assert one != both


def test_others_on_any_visible_gpu_are_seen(gpus):
    visible, busy = gpus
    assert Cuda().shared() == "2 other processes on the GPUs"
    busy[0].clear()
    assert Cuda().shared() == "1 other process on the GPUs"
    busy[1].remove(12)
    assert Cuda().shared() is None
    del visible[1]
    busy[0].append(11)
    assert Cuda().shared() == "1 other process on the GPU"


def test_others_on_the_gpu_in_use_are_counted_without_this_process(gpus, monkeypatch):
    """In a container its number may be another one, or the list is empty."""
    visible, busy = gpus
    monkeypatch.setattr("harness.cuda.device", lambda: visible[1])
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature",
                 "nvmlDeviceGetPowerUsage"):  # fmt: skip
        monkeypatch.setattr(f"pynvml.{name}", lambda *_: 0)
    assert Cuda().conditions().others == 1
    busy[1][:] = [4711]
    assert Cuda().conditions().others == 0
    busy[1].clear()
    assert Cuda().conditions().others == 0


def test_gpus_are_held_by_their_uuids(gpus, monkeypatch):
    monkeypatch.setattr(Cuda, "missing", lambda _: None)
    assert Cuda().hardware == ("GPU 0", "GPU 1")
    gpus[0].reverse()
    assert Cuda().hardware == ("GPU 1", "GPU 0")
    monkeypatch.setattr(Cuda, "missing", lambda _: "no driver")
    assert Cuda().hardware == (), "the command tells that itself"


def test_the_survey_tells_of_each_gpu(gpus):
    facts = list(islice(environment._devices({"cuda": None}), 2))
    assert [fact.name for fact in facts] == ["cuda 0", "cuda 1"]
    assert facts[0].value.startswith("NVIDIA H200, compute capability 9.0, 132 multiprocessors, 137.4 GB memory")
    del gpus[0][1]
    assert next(environment._devices({"cuda": None})).name == "cuda"


def test_rings_need_as_many_gpus(gpus):
    assert {ring.world for ring in Cuda().rings(2)} == {2}
    assert list(Cuda().rings(3)) == list(Cuda().rings(1)) == list(Cpu().rings(2)) == []


@pytest.mark.parametrize(
    ("capability", "kinds"),
    [
        ((9, 0), {"float32", "tf32", "float16", "bfloat16", "float8", "int8"}),
        ((8, 0), {"float32", "tf32", "float16", "bfloat16", "int8"}),
        ((7, 0), {"float32", "float16"}),
    ],
)
def test_products_of_kinds_that_the_gpu_multiplies(capability, kinds):
    assert {kind for kind in (*COMPUTE_KINDS, "float64") if list(products(kind, capability))} == kinds


def test_cublaslt_is_another_way_for_int8_where_it_can(monkeypatch):
    monkeypatch.setattr("harness.cuda.cublaslt.obstacle", lambda product: None)
    found = list(products("int8", (9, 0)))
    assert [product.way for product in found] == ["torch._int_mm, B by columns", "cuBLASLt, int8 out"] * 3
    assert {product.way for product in products("float16", (9, 0))} == {"torch.mm, B by rows", "torch.mm, B by columns"}


def test_kinds_that_this_torch_lacks_are_left_out(monkeypatch):
    monkeypatch.delattr("torch._scaled_mm")
    assert not list(products("float8", (9, 0)))


def test_products_of_the_cpu():
    small = Cpu()
    small.product_sizes = (32, 64)
    found = [product for kind in COMPUTE_KINDS for product in small.products(kind)]
    assert [(product.kind, product.operations) for product in found] == [
        ("float32", 2 * 32**3), ("float32", 2 * 64**3), ("bfloat16", 2 * 32**3), ("bfloat16", 2 * 64**3),
    ]  # fmt: skip
    assert tuple(found[0].prepare()().shape) == (32, 32)


@pytest.mark.gpu
def test_facts_and_state_of_the_gpu():
    device = Cuda()
    machine, state = device.machine(), device.conditions()
    assert machine.device.multiprocessors > 0
    assert machine.device.cache_bytes == device.cache_bytes > 2**20
    assert 0 < state.temperature_c < 120
    assert device.free_bytes() <= machine.device.memory_bytes
    assert len(machine.devices) == device.count


@pytest.mark.gpu
@pytest.mark.alone
def test_what_cannot_be_captured_is_timed_launch_by_launch():
    import torch

    x = torch.ones(2**20, device="cuda")
    batch = Cuda().batch([lambda: x.sum().item()], timer="graph", keep=1, seconds=1e-3)
    assert batch.timer == "launch"
    assert "captur" in batch.not_captured
    assert all(sample > 1e-6 for sample in batch.run(3))
    # A failed capture leaves the device usable.
    assert Cuda().batch([lambda: x.add_(1)], timer="graph", keep=1, seconds=1e-3).timer == "graph"


@pytest.mark.gpu
@pytest.mark.alone
def test_memory_that_runs_out_during_a_capture_is_raised():
    import torch

    calls = 0

    def grows():
        """Allocate little until the estimate is over: ten calls."""
        nonlocal calls
        calls += 1
        return torch.empty(2**50 if calls > 10 else 1, dtype=torch.uint8, device="cuda")

    with pytest.raises(torch.OutOfMemoryError):
        Cuda().batch([grows], timer="graph", keep=1, seconds=1e-3)
    x = torch.ones(2**20, device="cuda")
    assert Cuda().batch([lambda: x.add_(1)], timer="graph", keep=1, seconds=1e-3).timer == "graph"


@pytest.mark.gpu
@pytest.mark.alone
def test_a_graph_whose_first_call_took_long_is_captured_all_the_same():
    import torch

    x = torch.ones(2**20, device="cuda")
    first = iter([2**27])  # clock cycles, more than 50 ms

    def call():
        torch.cuda._sleep(next(first, 1))
        x.add_(1)

    batch = Cuda().batch([call], timer="graph", keep=1, seconds=1e-3)
    assert batch.timer == "graph"
    assert batch.run(3)[0] < 1e-3


@pytest.mark.gpu
@pytest.mark.alone
def test_graph_steady_and_launch_times_agree_on_a_long_kernel():
    import torch

    x, y = torch.randn(2, 2**27, device="cuda")
    times = [
        min(Cuda().batch([lambda: torch.add(x, 1, out=y)], timer=timer, keep=1, seconds=5e-3).run(5))
        for timer in ("graph", "launch", "steady", "host")
    ]
    assert times == pytest.approx([times[0]] * 4, rel=0.05)


@pytest.mark.gpu
@pytest.mark.alone
def test_calls_that_take_long_are_timed_one_by_one_and_made_seldom():
    import torch

    made = []
    calls = [lambda: (made.append(0), torch.cuda._sleep(2**28))] * 4
    batch = Cuda().batch(calls, timer="graph", keep=4, seconds=5e-3)
    assert (batch.timer, batch.calls) == ("launch", 1)
    assert len(made) <= 3
    assert batch.run(1)[0] > 20e-3


@pytest.mark.gpu
@pytest.mark.parametrize("kind", COMPUTE_KINDS)
def test_products_are_right(kind):
    """The product has the right type, shape and spread: elements are sums of k products of two random numbers."""
    import torch

    if not (found := list(Cuda().products(kind))):
        pytest.skip(f"this GPU has no {kind}")
    for product in (p for p in found if p.m == min(p.m for p in found)):
        out = product.prepare()()
        assert out.shape == (product.m, product.n)
        scaled = product.way == "cuBLASLt, int8 out"
        dtype = torch.int8 if scaled else {"int8": torch.int32, "float8": torch.bfloat16}.get(kind, out.dtype)
        assert out.dtype == dtype
        # Normal numbers have a spread of 1, integers one of 25.
        expected = 25 if scaled else product.k**0.5 * (25**2 if kind == "int8" else 1)
        assert float(out.double().std()) == pytest.approx(expected, rel=0.1)


@pytest.mark.gpu
def test_gpus_are_used_by_their_index():
    import torch

    import harness.cuda

    device = Cuda()
    if device.count < 2:
        pytest.skip("needs 2 GPUs")
    try:
        device.use(1)
        assert device.torch_device.index == 1
        assert harness.cuda.device().device_id == 1
        for ring in device.rings(2):
            assert ring.prepare()(2) > 0
    finally:
        torch.cuda.set_device(0)
