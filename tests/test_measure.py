"""From a job to a measurement, on a device whose clock, memory and cache the tests control."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from harness import stats
from harness.devices import Batch
from harness.devices.cpu import Cpu
from harness.measure import _against_noise as against_noise
from harness.measure import _told_apart as told_apart
from harness.measure import measure
from harness.model import Case, Conditions, Job, Measurement, Timer, Timing, Traffic, Work
from harness.ops import Context, Launch, Op, Tensor, Tensors
from harness.ranks import ALONE, Group
from tests.one_test import one_test

MIB = 2**20


class FakeTime:
    """A clock that goes on by 6 ms, or a step, whenever it is read, and while a call takes its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 6e-3

    def monotonic(self) -> float:
        self.now += self.step
        return self.now

    def perf_counter(self) -> float:
        self.now += 6e-3
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr("harness.measure.time", fake)
    monkeypatch.setattr("harness.recheck.pace", lambda *_: 0.0)  # the samples of a fake device are no calls' times
    return fake


class FakeDevice(Cpu):
    """A processor on which each sample takes what the test says. not_captured: why it has no graphs."""

    cache_bytes = MIB // 8  # few sets of buffers are enough

    def __init__(
        self,
        samples: Sequence[float],
        free: int = 2**34,
        conditions: Conditions | None = None,
        not_captured: str | Exception = "",
    ) -> None:
        self.script = list(samples)
        self.free = free
        self.state = conditions or Conditions()
        self.not_captured = not_captured
        self.calls = 0
        self.rounds: list[int] = []

    def free_bytes(self) -> int:
        return self.free

    def conditions(self) -> Conditions:
        return self.state

    def batch(
        self,
        calls: Sequence[Callable[[], object]],
        *,
        timer: Timer,
        keep: int,
        seconds: float,
        group: Group = ALONE,
    ) -> Batch:
        self.calls = self.calls or len(calls)
        if isinstance(self.not_captured, Exception):
            raise self.not_captured

        def run(n: int) -> list[float]:
            self.rounds.append(n)
            return [self.script[i % len(self.script)] for i in range(n)]

        return Batch(run, len(calls), "launch" if self.not_captured else timer, seconds, self.not_captured)


def op(**variant: Any) -> Op:
    sheet = Op(
        "twice",
        "y = 2 x",
        {"N": "elements"},
        inputs=(Tensor("x", ("N",)),),
        outputs=(Tensor("y", ("N",)),),
        reference=lambda _, t: {"y": t.x.double() * 2},
        flops={"float32": "N"},
    )

    @sheet.variant("ours", "doubles", devices=("cpu",), **variant)
    def ours(_: Context) -> Launch:
        return lambda t: torch.mul(t.x, 2, out=t.y)

    return sheet


def run(device: Cpu, sheet: Op | None = None, n: int = 1024, cache: str = "cold", **timing: float) -> Measurement:
    case = Case("twice", "ours", "float32", (("N", n),), device="cpu", cache=cache)
    return measure(Job(case, Timing(**{"max_time": 0.05, **timing})), sheet or op(), device, process=3)


def test_a_steady_device_stops_by_the_interval():
    result = run(FakeDevice([2e-6]))
    assert result.status == "ok"
    assert result.samples == (2e-6,) * 20
    assert result.time == 2e-6
    assert (result.stopped, result.timer, result.process) == ("interval", "graph", 3)
    assert result.work == Work(4096, 4096, (("float32", 1024),))
    assert result.traffic == Traffic(4096, 4096)
    assert result.warnings == ()
    assert [name for name, _ in result.phases] == [
        "setup",
        "compile",
        "check",
        "extremes",
        "setup",
        "warm",
        "sample",
        "calls",
        "recheck",
    ]


def test_a_noisy_device_stops_by_the_time_and_says_so():
    result = run(FakeDevice([2e-6, 3e-6]))
    assert result.stopped == "time"
    assert len(result.samples) >= 6
    (warning,) = result.warnings
    assert warning.code == "noisy"
    # Between 2 and 3 us, around 2.5 us.
    assert "interval is 40% wide after " in warning.message
    assert "asked for 0.2%" in warning.message
    assert "--precision 4" in warning.advice


def test_a_stop_by_time_with_a_narrow_interval_is_not_noisy():
    """Too few samples for a stop by the interval, all alike: that is precise enough all the same."""
    result = run(FakeDevice([2e-6]), max_time=1e-9)
    assert (result.stopped, len(result.samples)) == ("time", 6)
    assert result.warnings == ()


@one_test(
    ("width", "precision", "told"),
    [
        (0.153, 0.002, ("15%", "0.2%")),
        (0.0012, 0.001, ("0.12%", "0.1%")),
        (0.0034, 0.001, ("0.34%", "0.1%")),
        (0.00100027, 0.001, ("0.10003%", "0.1%")),
        (0.001000001, 0.001, ("0.1000001%", "0.1%")),
        (0.0010000001, 0.001, ("0.1%", "0.1%")),
        (2e-6, 1e-7, ("0.0002%", "0.00001%")),
        (1.334, 0.5, ("133%", "50%")),
    ],
)
def test_the_width_is_told_apart_from_what_was_asked_for(width, precision, told):
    assert told_apart(width, precision) == told


@pytest.mark.parametrize(
    ("width", "precision", "spent", "advice"),
    [
        (0.01, 0.002, 0.5, "--max-time 12.5 is enough"),
        (0.00201, 0.002, 0.5, "--max-time 0.6 is enough"),
        (0.0219, 0.002, 0.5, "--max-time 60 is enough"),
        (0.004, 0.002, 15.0, "--max-time 60 is enough"),
        (0.022, 0.002, 0.5, "or ask for less: --precision 3%"),
        (0.995, 0.002, 0.5, "end other work on this machine and measure again"),
        (0.989, 0.002, 0.5, "or ask for less: --precision 99%"),
        (0.153, 0.002, 0.5, "end other work on this machine and measure again, or ask for less: --precision 16%"),
        (2.4, 0.002, 0.5, "end other work on this machine and measure again"),
    ],
)
def test_the_advice_against_noise_is_one_that_helps(width, precision, spent, advice):
    given = against_noise(width, precision, spent)
    assert advice in given
    assert ("--precision" in given) == ("--precision" in advice)
    assert ("--max-time" in given) == ("--max-time" in advice)


def test_the_advised_time_is_enough():
    """Samples that vary in the same way: the samples that fit into the advised time have a narrow interval."""
    generator = random.Random(0)
    samples = [2e-6 * generator.gauss(1, 0.01) for _ in range(40_000)]
    width = stats.relative_width(samples[:100])
    seconds = float(re.search(r"--max-time ([\d.]+)", against_noise(width, 0.002, 0.5))[1])
    assert stats.relative_width(samples[: int(100 * seconds / 0.5)]) < 1.2 * 0.002


def test_profilers_see_each_part_of_a_case_and_the_timed_one_under_its_id(recorded):
    run(FakeDevice([1e-6]))
    case = "twice/ours/float32/N1024"
    assert recorded[0] == ("push", f"case: {case}")
    assert recorded[-1] == ("pop", "")
    pushed = [name for kind, name in recorded if kind == "push"]
    assert pushed[1:] == [f"setup: {case}", f"compile: {case}", f"check: {case}", f"extremes: {case}",
                          f"setup: {case}", f"warm: {case}",
                          case, f"calls: {case}", f"recheck: {case}"]  # fmt: skip
    # One range after the other, inside of the case's range.
    assert [kind for kind, _ in recorded[1:-1]] == ["push", "pop"] * 9


def test_a_case_that_fails_leaves_no_range_open(recorded):
    assert run(FakeDevice([1e-6]), n=2**45).status == "out_of_memory"
    assert [kind for kind, _ in recorded].count("push") == [kind for kind, _ in recorded].count("pop")


def test_precision_decides_what_is_noisy():
    assert run(FakeDevice([2.00e-6, 2.01e-6]), precision=0.01).stopped == "interval"


def test_sets_outgrow_the_cache_four_times():
    device = FakeDevice([1e-6])
    result = run(device, n=1000)
    assert result.sets == device.calls == -(-4 * FakeDevice.cache_bytes // 8000)


def test_large_cases_still_rotate_over_a_few_sets():
    assert run(FakeDevice([1e-6]), n=MIB // 32).sets == 4


def test_a_hot_cache_keeps_one_set():
    result = run(FakeDevice([1e-6]), cache="hot")
    assert result.sets == 1
    assert result.case.id == "twice/ours/float32/N1024/hot"


def test_too_few_sets_are_reported():
    result = run(FakeDevice([1e-6]), n=10)
    assert result.sets == 1024
    assert [w.code for w in result.warnings] == ["few-sets"]


def test_lowered_clocks_are_reported():
    result = run(FakeDevice([1e-6], conditions=Conditions(temperature_c=95, reasons=("power cap",))))
    (warning,) = result.warnings
    assert (warning.code, warning.message) == ("throttled", "the device lowered its clocks: power cap")
    assert result.before == result.after == Conditions(temperature_c=95, reasons=("power cap",))


@pytest.mark.parametrize(("others", "text"), [(1, "1 other process computed"), (2, "2 other processes computed")])
def test_other_processes_on_the_device_are_reported(others, text):
    (warning,) = run(FakeDevice([1e-6], conditions=Conditions(others=others))).warnings
    assert (warning.code, warning.message) == ("shared", f"{text} on the device meanwhile")


@pytest.mark.slow  # test_slow_calls.py has calls that take long
def test_calls_that_take_long_are_issued_until_the_time_is_up(clock):
    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            clock.now += 0.01
            torch.mul(t.x, 2, out=t.y)

        return launch

    sheet = op()
    sheet.variants.clear()
    sheet.variant("ours", "takes its time", devices=("cpu",))(prepare)
    assert len(run(FakeDevice([1e-2]), sheet, n=MIB // 32, max_time=0.03).call_samples) == 1  # of four calls
    assert len(run(FakeDevice([1e-2]), sheet, n=MIB // 32, max_time=0.1).call_samples) == 2
    assert len(run(FakeDevice([1e-6]), max_time=60).call_samples) == 5


def test_what_asks_for_no_graph_gets_none():
    result = run(FakeDevice([1e-3]), op(timer="launch"))
    assert (result.timer, result.warnings) == ("launch", ())


def test_the_timer_of_a_variant_goes_before_that_of_its_op():
    sheet = op()
    sheet.timer = "host"
    assert run(FakeDevice([1e-6]), sheet).timer == "host"
    sheet = op(timer="launch")
    sheet.timer = "host"
    assert run(FakeDevice([1e-3]), sheet).timer == "launch"


@one_test(("samples", "told"), [([1e-5], True), ([99e-6], True), ([100e-6], False), ([90e-6, 90e-6, 1e-3], True)])
def test_the_launch_in_a_short_time_is_reported(samples, told):
    warnings = run(FakeDevice(samples), op(timer="launch"), precision=10.0, max_time=1.0).warnings
    assert [warning.code for warning in warnings] == ["launch-timed"] * told


def test_the_reason_why_nothing_was_captured_is_reported():
    result = run(FakeDevice([1e-3], not_captured="operation not permitted when stream is capturing"))
    assert result.timer == "launch"
    (warning,) = result.warnings
    assert warning.code == "not-captured"
    assert "operation not permitted when stream is capturing" in warning.message
    assert "timer='launch'" in warning.advice


def test_memory_that_runs_out_during_a_capture_is_recorded():
    result = run(FakeDevice([1e-3], not_captured=torch.OutOfMemoryError("CUDA out of memory.\nTried to")))
    assert (result.status, result.error, result.samples) == ("out_of_memory", "CUDA out of memory.", ())


def test_steady_samples_are_taken_in_one_go():
    """A break would let the queue of a pipeline fill up again."""
    device = FakeDevice([2e-3])
    result = run(device, op(timer="steady"), max_time=0.5)
    assert (result.timer, result.stopped, result.time) == ("steady", "interval", 2e-3)
    assert [n for n in device.rounds if n > 1] == [100]  # 0.5 s of blocks of 5 ms
    assert len(result.samples) == 100


def test_steady_samples_that_differ_are_noisy():
    device = FakeDevice([2e-3, 3e-3])
    result = run(device, op(timer="steady"), max_time=0.001)
    assert (result.stopped, len(result.samples)) == ("time", 6)
    assert [w.code for w in result.warnings] == ["noisy"]


def test_memory_is_predicted_before_it_is_taken():
    result = run(FakeDevice([1e-6], free=30_000), n=10_000)
    assert (result.status, result.phases, result.samples) == ("out_of_memory", (), ())
    assert result.error == "needs 280.0 kB, 30.00 kB are free on the device"


def test_memory_that_runs_out_is_recorded():
    def greedy(_: Context) -> Launch:
        return lambda _: torch.empty(2**50, dtype=torch.uint8)

    sheet = op()
    sheet.variants.clear()
    sheet.variant("ours", "", devices=("cpu",))(greedy)
    result = run(FakeDevice([1e-6]), sheet)
    assert result.status == "out_of_memory"
    assert result.samples == ()


def test_a_wrong_result_has_no_time():
    sheet = op()
    sheet.reference = lambda _, t: {"y": t.x.double() * 3}
    result = run(FakeDevice([1e-6]), sheet)
    assert (result.status, result.samples, result.call_samples) == ("wrong", (), ())
    assert "1024 of 1024 elements are wrong" in result.error


def test_a_variant_that_cannot_says_why():
    result = run(FakeDevice([1e-6]), op(unsupported=lambda case: "N is odd" if case.symbols["N"] % 2 else None), n=3)
    assert (result.status, result.error) == ("unsupported", "N is odd")


def test_any_other_error_is_the_callers():
    sheet = op()
    sheet.reference = lambda _, t: {"y": 1 / 0}
    with pytest.raises(ZeroDivisionError):
        run(FakeDevice([1e-6]), sheet)


@pytest.mark.parametrize(("asked", "timer"), [("graph", "host"), ("steady", "steady")])
def test_a_real_processor_is_timed_by_a_timer_that_it_has(monkeypatch, short_timing, asked, timer):
    monkeypatch.setattr("harness.measure.time", time)
    monkeypatch.setattr(Cpu, "cache_bytes", MIB)  # a few sets of buffers are enough
    result = run(Cpu(), op(timer=asked), n=2**16, precision=0.5)
    assert result.timer == timer
    assert result.time > 0
    assert result.call_time > 0


def test_what_a_variant_reports_of_itself_is_recorded(monkeypatch):
    from harness import metrics, units

    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))
    metrics.fact("hidden", "hidden share", units.SHARE, "share of the copies that was hidden")

    def prepare(ctx: Context) -> Launch:
        ctx.defer(lambda: ctx.report("hidden", 0.75))
        return lambda t: torch.mul(t.x, 2, out=t.y)

    sheet = op()
    sheet.variants.clear()
    sheet.variant("ours", "", devices=("cpu",))(prepare)
    assert run(FakeDevice([1e-6]), sheet).facts == (("hidden", 0.75),)
