"""Devices: which there are, and the CPU's clock and caches."""

from __future__ import annotations

import time

import pytest

from harness import devices
from harness.devices.cpu import Cpu, _parse_size
from harness.devices.cuda import Cuda
from harness.errors import UsageError


def test_cuda_is_preferred_and_the_cpu_always_there():
    assert list(devices.kinds()) == ["cuda", "cpu"]
    assert devices.choose("cpu") == "cpu"


def test_an_unknown_device():
    with pytest.raises(UsageError, match="no device named 'gpu'") as error:
        devices.choose("gpu")
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
    assert machine.memory_bytes > 2**28
    assert machine.cache_bytes >= 2**17
    assert machine == Cpu().machine()
    assert "torch" in dict(machine.versions)


def test_the_cpu_times_calls_by_the_clock():
    batch = Cpu().batch([lambda: time.sleep(2e-3)] * 2, capture=True, keep=1, seconds=4e-3)
    assert batch.timer == "host"
    assert all(2e-3 <= sample < 2e-2 for sample in batch.run(3))


def test_quick_calls_are_timed_together():
    batch = Cpu().batch([lambda: None], capture=False, keep=1, seconds=4e-3)
    assert batch.calls > 1000
    assert max(batch.run(3)) < 1e-5


def test_results_of_the_latest_calls_stay_alive():
    alive: set[int] = set()

    class Result:
        def __init__(self) -> None:
            alive.add(id(self))

        def __del__(self) -> None:
            alive.discard(id(self))

    batch = Cpu().batch([Result] * 5, capture=True, keep=5, seconds=1e-3)
    batch.run(2)
    assert len(alive) == 5


def test_cache_sizes():
    assert [_parse_size(text) for text in ("48K\n", "2M", "1G")] == [49152, 2**21, 2**30]


@pytest.mark.gpu
def test_facts_and_state_of_the_gpu():
    device = Cuda()
    machine, state = device.machine(), device.conditions()
    assert machine.multiprocessors > 0
    assert machine.cache_bytes == device.cache_bytes > 2**20
    assert 0 < state.temperature_c < 120
    assert device.free_bytes() <= machine.memory_bytes


@pytest.mark.gpu
def test_what_cannot_be_captured_is_timed_launch_by_launch():
    import torch

    x = torch.ones(2**20, device="cuda")
    batch = Cuda().batch([lambda: x.sum().item()], capture=True, keep=1, seconds=1e-3)
    assert batch.timer == "launch"
    assert all(sample > 1e-6 for sample in batch.run(3))
    # A failed capture leaves the device usable.
    assert Cuda().batch([lambda: x.add_(1)], capture=True, keep=1, seconds=1e-3).timer == "graph"


@pytest.mark.gpu
def test_graph_and_launch_times_agree_on_a_long_kernel():
    import torch

    x, y = torch.randn(2, 2**27, device="cuda")
    times = [
        min(Cuda().batch([lambda: torch.add(x, 1, out=y)], capture=capture, keep=1, seconds=5e-3).run(5))
        for capture in (True, False)
    ]
    assert times[0] == pytest.approx(times[1], rel=0.05)


@pytest.mark.gpu
def test_calls_that_take_long_are_timed_one_by_one_and_made_seldom():
    import torch

    made = []
    calls = [lambda: (made.append(0), torch.cuda._sleep(2**28))] * 4
    batch = Cuda().batch(calls, capture=True, keep=4, seconds=5e-3)
    assert (batch.timer, batch.calls) == ("launch", 1)
    assert len(made) <= 3
    assert batch.run(1)[0] > 20e-3
