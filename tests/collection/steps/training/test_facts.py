"""Figures that steps report of themselves, on a GPU whose clock, counters and profiler a test controls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch
from torch.autograd import DeviceType

from harness import cuda, metrics, units
from harness.collection.nn import _memory
from harness.collection.steps.training import _facts
from harness.collection.steps.training._figures import ACTIVATIONS, ENERGY, PEAK_MEMORY, WEIGHTS
from harness.ranks import ALONE
from tests.one_test import one_test


class Asked:
    """What a case is given of its context, on a kind of device; `told` has the figures."""

    def __init__(self, kind: str = "cuda") -> None:
        self.device = torch.device(kind)
        self.group: Any = ALONE
        self.told: dict[str, float] = {}

    def report(self, name: str, value: float) -> None:
        self.told[name] = value


class Gpu:
    """A GPU whose steps take `seconds`, for which the host waits in synchronize()."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now, self.waiting = 50.0, 0.0
        self.seconds, self.steps = seconds, 0
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(_facts, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def step(self) -> None:
        self.steps += 1
        self.waiting += self.seconds

    def synchronize(self) -> None:
        self.now += self.waiting
        self.waiting = 0.0


@pytest.mark.parametrize(
    ("joules", "busy", "told"),
    [
        ((100.0, 142.0), 0.15, {ENERGY: 1.2, _facts.BUSY: 0.5}),
        ((100.0, 100.0), 0.31, {_facts.BUSY: 1.0}),
        ((None, 142.0), 0.0, {}),
        ((100.0, None), 0.0, {}),
        ((142.0, 100.0), 0.0, {}),
    ],
)
def test_energy_and_a_busy_gpu_are_of_two_seconds_of_steps(
    monkeypatch: pytest.MonkeyPatch, joules: tuple[float | None, ...], busy: float, told: dict[str, float]
) -> None:
    """One step says how many those are. Energy is an item's, of which a step has five here."""
    gpu, asked, counted = Gpu(monkeypatch, 0.3), Asked(), iter(joules)
    monkeypatch.setattr(_facts, "_joules", lambda: next(counted))
    monkeypatch.setattr(_facts, "_busy_seconds", lambda _: busy)
    _facts.report_steps(asked, gpu.step, 5)
    assert gpu.steps == 1 + 7
    assert asked.told == pytest.approx(told)
    on_host = Asked("cpu")
    _facts.report_steps(on_host, gpu.step, 5)
    assert (gpu.steps, on_host.told) == (8, {})


def test_of_several_gpus_only_the_energy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks make as many steps as they agree on. A kernel that waits for another rank would count as busy."""
    gpu, asked, counted, agreed = Gpu(monkeypatch, 0.5), Asked(), iter((0.0, 40.0)), list[float]()
    asked.group = SimpleNamespace(size=2, agree=lambda steps: agreed.append(steps) or 2.5)  # type: ignore[func-returns-value]
    monkeypatch.setattr(_facts, "_joules", lambda: next(counted))
    monkeypatch.setattr(_facts, "_busy_seconds", lambda _: 0.1)
    _facts.report_steps(asked, gpu.step, 2)
    assert gpu.steps == 1 + 3
    assert agreed == pytest.approx([4.0])
    assert asked.told == pytest.approx({ENERGY: 40 / 6})


def event(start: float, end: float, kind: DeviceType = DeviceType.CUDA, annotation: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        time_range=SimpleNamespace(start=start, end=end), device_type=kind, is_user_annotation=annotation
    )


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_gpu_is_busy_where_a_kernel_or_a_copy_runs(monkeypatch: pytest.MonkeyPatch, is_allowed: bool) -> None:
    """In five steps, which a profiler sees in microseconds. What overlaps counts once."""
    found = [event(5, 20), event(0, 10), event(30, 45), event(0, 900, DeviceType.CPU), event(0, 900, annotation=True)]
    log: list[str] = []

    class Profiler:
        def start(self) -> None:
            log.append("start")
            if not is_allowed:
                raise RuntimeError

        def stop(self) -> None:
            log.append("stop")

        def events(self) -> Sequence[Any]:
            return found

    monkeypatch.setattr(torch.profiler, "profile", lambda activities: Profiler())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    seconds = _facts._busy_seconds(lambda: log.append("step"))
    assert seconds == (pytest.approx(35e-6 / 5) if is_allowed else 0.0)
    assert log == ["wait", "start", *(["step"] * 5 + ["wait", "stop"]) * is_allowed]


@one_test(
    ("intervals", "length"),
    [([], 0), ([(1, 3)], 2), ([(5, 6), (1, 3)], 3), ([(1, 4), (2, 3)], 3), ([(1, 4), (2, 6), (6, 7)], 6)],
)
def test_what_intervals_cover(intervals: list[tuple[float, float]], length: float) -> None:
    assert _facts.covered(intervals) == length


def test_peak_memory_is_that_of_the_steps_less_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def noting(name: str, gives: object = None) -> Callable[[], Any]:
        def note() -> object:
            log.append(name)
            return gives

        return note

    monkeypatch.setattr(torch.cuda, "synchronize", noting("synchronize"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", noting("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", noting("most", 1000))
    asked = Asked()
    assert _facts.with_memory(asked, noting("steps", "made"), before=400) == "made"
    assert asked.told == {PEAK_MEMORY: 600}
    assert log == ["synchronize", "reset", "steps", "synchronize", "most"]
    _facts.with_memory(asked := Asked(), noting("steps"))
    assert asked.told == {PEAK_MEMORY: 1000}
    assert _facts.with_memory(on_host := Asked("cpu"), lambda: "made", before=400) == "made"
    assert on_host.told == {}


def test_bytes_of_weights_and_of_what_a_call_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([100, 350])
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"allocated_bytes.all.allocated": next(counts)})
    model = torch.nn.Linear(3, 5).half()
    calls: list[None] = []
    _facts.report_bytes(asked := Asked(), model, lambda: calls.append(None))
    assert asked.told == {WEIGHTS: 2 * (3 * 5 + 5), ACTIVATIONS: 250}
    _facts.report_bytes(asked := Asked("cpu"), SimpleNamespace(weight_bytes=7), lambda: calls.append(None))
    assert asked.told == {WEIGHTS: 7}
    assert len(calls) == 1


@one_test(("scale", "told"), [(2.0**16, None), (2.0**14, 2), (2.0**15, 1), (0.0, 16 + 149)])
def test_steps_are_skipped_as_often_as_the_scale_was_halved(scale: float, told: int | None) -> None:
    _facts.report_skipped(asked := Asked(), 2.0**16, scale)
    assert asked.told == ({} if told is None else {_facts.SKIPPED: told})
    assert math.isclose(_facts._SMALLEST, torch.finfo(torch.float32).smallest_normal / 2**23)


def test_what_earlier_cases_left_is_forgotten_before_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an order in which each gives free what the next one can return."""
    log: list[str] = []
    monkeypatch.setattr(_facts, "gc", SimpleNamespace(collect=lambda: log.append("collect")))
    monkeypatch.setattr(_memory, "forget", lambda: log.append("forget"))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: log.append("workspaces"), raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: log.append("cache"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 12.0)
    assert _facts.allocated(Asked("cpu")) == 0
    assert log == []
    found = _facts.allocated(Asked())
    assert (found, type(found)) == (12, int)
    assert log == ["collect", "forget", "workspaces", "cache"]


@pytest.mark.parametrize("uuid", ["GPU-1", "1"])
def test_energy_is_asked_of_the_gpu_in_use_in_joules(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    asked: list[str] = []

    def handle(name: str) -> str:
        asked.append(name)
        return "handle"

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(cuda, "device", lambda: SimpleNamespace(uuid=uuid))
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: asked.append("init"))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda of: {"handle": 2500}[of])
    assert _facts._joules() == 2.5
    assert asked == ["init", "GPU-1"]
    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    assert _facts._joules() is None


def test_figures_are_metrics_with_a_unit() -> None:
    found = {name: metrics.METRICS[name].unit for name in (_facts.OFF, _facts.BUSY, _facts.SKIPPED)}
    assert found == {_facts.OFF: units.SHARE, _facts.BUSY: units.SHARE, _facts.SKIPPED: units.COUNT}
