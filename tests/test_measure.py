"""From a job to a measurement, on a device whose clock, memory and cache the tests control."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness import stats
from harness.devices import Batch
from harness.devices.cpu import Cpu
from harness.measure import _against_noise as against_noise
from harness.measure import _judge_conditions as judge_conditions
from harness.measure import _judge_samples as judge_samples
from harness.measure import _told_apart as told_apart
from harness.measure import measure
from harness.model import Case, Conditions, Job, Measurement, Timer, Timing, Traffic, Work
from harness.ops import Context, Launch, Op, Tensor, Tensors
from harness.ranks import ALONE, Group
from harness.session import Session

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
    return fake


class FakeDevice(Cpu):
    """A processor on which each sample takes what the test says. not_captured: why it has no graphs."""

    cache_bytes = MIB

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


def test_new_inputs_are_drawn_before_the_samples_and_between_their_rounds(monkeypatch):
    """However long that takes: no replay of the samples finds its work done. Steady samples are one round.

    Ranks wait for each other before each round.
    """
    told: list[Any] = []
    monkeypatch.setattr("harness.ranks.Group.barrier", lambda _: told.append("wait"))
    monkeypatch.setattr("harness.measure.Renewal.due", lambda _: told.append("due"))
    for timer, renewals in (("graph", ["due", "wait", 10, "due", "wait", 10]), ("steady", ["due", "wait", 200])):
        told.clear()
        device = FakeDevice([1e-6])
        monkeypatch.setattr(device, "rounds", told)
        run(device, op(timer=timer), max_time=1.0)
        begin = told.index("due")
        assert told[begin : begin + len(renewals)] == renewals


def test_the_check_of_the_timed_calls_has_a_tenth_of_the_time_that_the_case_took(monkeypatch):
    given: list[tuple[float, float]] = []

    def recheck(session: Session, _rotation: object, _batch: object, seconds: float) -> None:
        given.append((seconds, sum(spent for _, spent in session.phases)))

    monkeypatch.setattr("harness.measure.Session.recheck", recheck)
    assert run(FakeDevice([1e-6])).status == "ok"
    [(seconds, spent)] = given
    assert seconds == pytest.approx(0.1 * spent)


def test_what_is_wrong_with_the_timed_calls_ends_the_case(monkeypatch):
    monkeypatch.setattr("harness.measure.Session.recheck", lambda *_: "stale")
    found = run(FakeDevice([1e-6]))
    assert (found.status, found.error, found.samples) == ("wrong", "stale", ())


@pytest.mark.parametrize("where", ["intact.replaced", "Clocks.complaint"])
def test_what_is_wrong_with_the_time_ends_the_case(monkeypatch, where):
    monkeypatch.setattr(f"harness.measure.{where}", lambda *_: "part of it isn't in the time")
    found = run(FakeDevice([1e-6]))
    assert (found.status, found.error, found.samples) == ("wrong", "part of it isn't in the time", ())


def test_figures_that_cost_more_calls_are_found_after_the_check_of_the_timed_calls(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr("harness.measure.Session.recheck", lambda *_: told.append("recheck"))
    monkeypatch.setattr("harness.measure.Session.report", lambda *_: told.append("report"))
    run(FakeDevice([1e-6]))
    assert told == ["recheck", "report"]


def test_lowered_clocks_of_any_rank_are_reported(monkeypatch):
    told: list[str] = []
    session: Any = SimpleNamespace(group=SimpleNamespace(size=2), warn=lambda _code, text, _advice: told.append(text))
    judge_conditions(session, [[], ["power cap", "heat"]])
    assert told == ["the device of rank 1 lowered its clocks: power cap, heat"]


def test_types_of_operations_are_told_where_they_are_not_those_of_the_work():
    assert run(FakeDevice([1e-6])).arithmetic == ()
    found = run(FakeDevice([1e-6]), op(arithmetic="float16"))
    assert (found.work.flops, found.arithmetic) == ((("float32", 1024),), (("float16", 1024),))


@pytest.mark.parametrize(("sampled", "told"), [(0.3, "0.3 s"), (0.01, "0.05 s")])
def test_the_time_of_noisy_samples_is_what_they_took_or_what_they_might_have_taken(sampled, told):
    texts: list[str] = []
    session: Any = SimpleNamespace(phases=[("sample", sampled)], warn=lambda _code, text, _advice: texts.append(text))
    judge_samples(session, [2e-6, 3e-6] * 5, Timing(max_time=0.05))
    assert [f" wide after 10 samples in {told} (asked for 0.2%)" in text for text in texts] == [True]


def test_a_stop_by_time_with_a_narrow_interval_is_not_noisy():
    """Too few samples for a stop by the interval, all alike: that is precise enough all the same."""
    result = run(FakeDevice([2e-6]), max_time=1e-9)
    assert (result.stopped, len(result.samples)) == ("time", 6)
    assert result.warnings == ()


@pytest.mark.parametrize(
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
    assert pushed[1:] == [f"setup: {case}", f"compile: {case}", f"check: {case}", f"setup: {case}", f"warm: {case}",
                          case, f"calls: {case}", f"recheck: {case}"]  # fmt: skip
    # One range after the other, inside of the case's range.
    assert [kind for kind, _ in recorded[1:-1]] == ["push", "pop"] * 8


def test_a_case_that_fails_leaves_no_range_open(recorded):
    assert run(FakeDevice([1e-6]), n=2**45).status == "out_of_memory"
    assert [kind for kind, _ in recorded].count("push") == [kind for kind, _ in recorded].count("pop")


@pytest.mark.parametrize("timer", ["graph", "steady"])
def test_an_interval_as_wide_as_the_precision_is_narrow_enough(timer):
    """From 1 s to 1.5 s around 1.25 s."""
    found = run(FakeDevice([1.0, 1.5]), op(timer=timer), precision=0.4, max_time=1.0)
    assert (found.stopped, found.warnings) == ("interval", ())
    assert len(found.samples) % 2 == 0


def test_a_case_is_of_the_first_process_unless_told():
    job = Job(Case("twice", "ours", "float32", (("N", 1024),), device="cpu"))
    assert measure(job, op(), FakeDevice([1e-6])).process == 0
    checked = measure(job, op(), FakeDevice([1e-6]), timed=False)
    assert (checked.status, checked.samples, checked.call_samples) == ("ok", (), ())


def test_precision_decides_what_is_noisy():
    assert run(FakeDevice([2.00e-6, 2.01e-6]), precision=0.01).stopped == "interval"


def test_sets_outgrow_the_cache_four_times():
    device = FakeDevice([1e-6])
    result = run(device, n=1000)
    assert result.sets == device.calls == -(-4 * MIB // 8000)


def test_large_cases_still_rotate_over_a_few_sets():
    assert run(FakeDevice([1e-6]), n=MIB // 4).sets == 4


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


def test_calls_that_take_long_are_issued_until_the_time_is_up(clock):
    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            clock.now += 0.01
            torch.mul(t.x, 2, out=t.y)

        return launch

    sheet = op()
    sheet.variants.clear()
    sheet.variant("ours", "takes its time", devices=("cpu",))(prepare)
    assert len(run(FakeDevice([1e-2]), sheet, n=MIB // 4, max_time=0.03).call_samples) == 1  # of four calls
    assert len(run(FakeDevice([1e-2]), sheet, n=MIB // 4, max_time=0.1).call_samples) == 2
    assert len(run(FakeDevice([1e-6]), max_time=60).call_samples) == 5


class Behind(FakeDevice):
    """A device that works while the host goes on: a call takes the host 0.1 ms, and the device `seconds`."""

    is_asynchronous = True

    def __init__(self, clock: FakeTime, seconds: float, samples: Sequence[float] = (1e-3,)) -> None:
        super().__init__(samples)
        self.clock_of_host, self.each, self.waiting = clock, seconds, 0.0

    def call(self) -> None:
        self.clock_of_host.now += 1e-4
        self.waiting += self.each

    def synchronize(self) -> None:
        self.clock_of_host.now += self.waiting
        self.waiting = 0.0


def looped(monkeypatch: pytest.MonkeyPatch, clock: FakeTime, device: Behind, **timing: float) -> Measurement:
    """A case of four sets of buffers, whose calls take as long as the device says, by a clock that only they move."""

    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            device.call()
            torch.mul(t.x, 2, out=t.y)

        return launch

    def read() -> float:
        return clock.now

    monkeypatch.setattr(clock, "step", 1e-3)  # of what asks for the time that is left
    monkeypatch.setattr(clock, "perf_counter", read)
    monkeypatch.setattr("harness.measure.perf_counter", read)
    sheet = op()
    sheet.variants.clear()
    sheet.variant("ours", "doubles while the host goes on", devices=("cpu",))(prepare)
    return run(device, sheet, n=MIB // 4, **timing)


@pytest.mark.parametrize(("seconds", "each"), [(1e-3, 1.1e-3), (1.2e-3, 1.3e-3), (0.3e-3, 0.4e-3)])
def test_calls_in_a_loop_are_timed_until_the_device_has_done_them(monkeypatch, clock, seconds, each):
    """Loops become longer until they take 5 ms. The time is for each call, whatever the loops' length."""
    result = looped(monkeypatch, clock, Behind(clock, seconds), max_time=10.0)
    assert (result.status, result.sets) == ("ok", 4)
    assert result.call_samples == pytest.approx([each] * 5)


def test_work_that_calls_in_a_loop_leave_beyond_their_time_is_found(monkeypatch, clock):
    result = looped(monkeypatch, clock, Behind(clock, 3e-3))
    assert result.status == "wrong"
    assert "the device works for 12.00 ms after 4 calls were issued, which by their times take 4.000 ms" in result.error
    monkeypatch.setattr(Behind, "is_asynchronous", False)
    assert looped(monkeypatch, clock, Behind(clock, 3e-3)).status == "ok"


@pytest.mark.parametrize(
    ("max_time", "rounds"), [(0.03, [1] * 20), (0.045, [2] * 10), (0.1, [5] * 4), (0.2, [10] * 2), (1.0, [10] * 2)]
)
def test_samples_are_taken_in_rounds_of_a_quarter_of_the_time_until_there_are_twenty(clock, max_time, rounds):
    """A sample takes 5 ms here."""
    clock.step = 1e-3
    device = FakeDevice([2e-6])
    assert run(device, max_time=max_time).stopped == "interval"
    # Before them, single samples warm the device up for 50 ms.
    assert device.rounds == [1] * 49 + rounds


@pytest.mark.parametrize(("max_time", "rounds"), [(1e-9, 6), (0.0061, 12)])
def test_samples_end_with_the_time_but_there_are_six_of_them(clock, max_time, rounds):
    """From the sixth sample on, the clock is read after each of them."""
    clock.step = 1e-3
    device = FakeDevice([2e-6])
    assert run(device, max_time=max_time).stopped == "time"
    assert device.rounds == [1] * (49 + rounds)


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


@pytest.mark.parametrize(
    ("samples", "told"), [([1e-5], True), ([99e-6], True), ([100e-6], False), ([90e-6, 90e-6, 1e-3], True)]
)
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


def test_variants_of_a_group_get_the_same_data_and_others_do_not():
    """Of the call that is checked: what is timed gets data that nobody knows before."""
    first: dict[tuple[str, int], torch.Tensor] = {}
    sheet = op()
    sheet.variants.clear()

    def noting(ctx: Context) -> Launch:
        def launch(t: Tensors) -> None:
            first.setdefault((ctx.case.variant, ctx.s.N), t.x.clone())
            torch.mul(t.x, 2, out=t.y)

        return launch

    for name in ("one", "other"):
        sheet.variant(name, "doubles", devices=("cpu",))(noting)
    seeds = {
        (name, n): measure(
            Job(Case("twice", name, "float32", (("N", n),), device="cpu")), sheet, FakeDevice([1e-6]), timed=False
        ).seed
        for name in ("one", "other")
        for n in (64, 128)
    }
    assert len(set(seeds.values())) == 2
    for n in (64, 128):
        assert seeds["one", n] == seeds["other", n]
        assert torch.equal(first["one", n], first["other", n])
    assert not torch.equal(first["one", 64], first["one", 128][:64])


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
