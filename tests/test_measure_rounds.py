"""How often and how long a case is measured, to the sample: by clocks that go on only where a test says so."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.measure import Sampler, measure
from harness.measure import _judge_conditions as judge_conditions
from harness.measure import _judge_samples as judge_samples
from harness.model import Case, Conditions, Job, Measurement, Timing
from harness.ops import Context, Launch, Tensors
from harness.ranks import ALONE, Group
from harness.session import Session
from tests.one_test import one_test
from tests.rare import rare
from tests.test_measure import MIB, FakeDevice, FakeTime, op, run


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr("harness.measure.time", fake)
    monkeypatch.setattr("harness.recheck.pace", lambda *_: 0.0)  # the samples of a fake device are no calls' times
    return fake


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


def test_the_check_of_the_timed_calls_has_a_twentieth_of_the_time_that_the_case_took(monkeypatch):
    given: list[tuple[float, float]] = []

    def recheck(session: Session, _rotation: object, _batch: object, seconds: float) -> None:
        given.append((seconds, sum(spent for _, spent in session.phases)))

    monkeypatch.setattr("harness.measure.Session.recheck", recheck)
    assert run(FakeDevice([1e-6])).status == "ok"
    [(seconds, spent)] = given
    assert seconds == pytest.approx(0.05 * spent)


def test_what_is_wrong_with_the_timed_calls_ends_the_case(monkeypatch):
    monkeypatch.setattr("harness.measure.Session.recheck", lambda *_: "stale")
    found = run(FakeDevice([1e-6]))
    assert (found.status, found.error, found.samples) == ("wrong", "stale", ())


@pytest.mark.parametrize("where", ["intact.replaced", "Clocks.complaint"])
def test_what_is_wrong_with_the_time_ends_the_case(monkeypatch, where):
    monkeypatch.setattr(f"harness.measure.{where}", lambda *_, **__: "part of it isn't in the time")
    found = run(FakeDevice([1e-6]))
    assert (found.status, found.error, found.samples) == ("wrong", "part of it isn't in the time", ())


@pytest.mark.parametrize("timed", [True, False])
def test_what_was_replaced_ends_a_case_that_is_only_checked_too(monkeypatch, timed):
    monkeypatch.setattr("harness.intact.replaced", lambda: "torch.mul was replaced")
    job = Job(Case("twice", "ours", "float32", (("N", 1024),), device="cpu"), Timing(max_time=0.05))
    found = measure(job, op(), FakeDevice([1e-6]), timed=timed)
    assert (found.status, found.error, found.samples) == ("wrong", "torch.mul was replaced", ())


def test_a_variant_that_changes_its_op_has_no_time(monkeypatch):
    monkeypatch.setattr("harness.intact._watched", {})
    sheet = op()

    def prepare(_: Context) -> Launch:
        sheet.tolerance = {"float32": (1.0, 1.0)}
        return lambda t: torch.mul(t.x, 2, out=t.y)

    sheet.variants.clear()
    sheet.variant("ours", "is lenient", devices=("cpu",))(prepare)
    found = run(FakeDevice([1e-6]), sheet)
    assert found.status == "wrong"
    assert found.error.startswith("op 'twice': 'tolerance' was changed while the case ran")


@pytest.mark.parametrize("replaced", [None, "torch.isnan was replaced"])
def test_a_result_that_is_wrong_for_extreme_values_has_no_time(monkeypatch, replaced):
    """If a function was replaced, that is the reason."""
    monkeypatch.setattr("harness.intact.replaced", lambda: replaced)
    sheet = op()
    sheet.variants.clear()
    sheet.variant("ours", "is always finite", devices=("cpu",))(lambda _: lambda t: t.y.copy_(2 * t.x).nan_to_num_())
    found = run(FakeDevice([1e-6]), sheet)
    assert (found.status, found.samples) == ("wrong", ())
    assert found.error == replaced or (not replaced and "elements are wrong" in found.error)


def test_the_time_that_rounds_take_is_noted(monkeypatch, clock):
    """What the host waits for new inputs is a part of it."""
    monkeypatch.setattr("harness.measure.perf_counter", clock.perf_counter)
    case = Case("twice", "ours", "float32", (("N", 1024),), device="cpu")
    with Session(case, op(), FakeDevice([1e-6, 2e-6])) as session:
        session.prepare()
        sampler = Sampler(session, Timing())
        assert (sampler.seconds, sampler.samples) == (0.0, [])
        assert sampler.round(3) == [1e-6, 2e-6, 1e-6]
        assert sampler.seconds == pytest.approx(6e-3)
        sampler.round(1)
        assert sampler.seconds == pytest.approx(12e-3)
        assert sampler.samples == [1e-6, 2e-6, 1e-6, 1e-6]


def test_figures_that_cost_more_calls_are_found_after_the_check_of_the_timed_calls(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr("harness.measure.Session.recheck", lambda *_: told.append("recheck"))
    monkeypatch.setattr("harness.measure.Session.report", lambda *_: told.append("report"))
    run(FakeDevice([1e-6]))
    assert told == ["recheck", "report"]


def test_lowered_clocks_of_any_rank_are_reported(monkeypatch):
    told: list[str] = []
    session: Any = SimpleNamespace(group=SimpleNamespace(size=2), warn=lambda _code, text, _advice: told.append(text))
    judge_conditions(session, [[], ["power cap", "heat"]], 0)
    assert told == ["the device of rank 1 lowered its clocks: power cap, heat"]


@one_test(
    ("before", "after", "elsewhere", "told"),
    [
        (0, 2, None, "2 other processes computed"),
        (2, 0, None, "2 other processes computed"),
        (1, 1, 3, "2 other processes computed"),  # each rank may have opened each device
        (2, 1, 1, "1 other process computed"),
        (1, 1, 1, ""),
    ],
)
def test_other_processes_count_where_and_when_there_were_most(before, after, elsewhere, told):
    """Before or after the samples, as any rank saw it. elsewhere: what the other of two ranks says."""
    states = iter([Conditions(others=before), Conditions(others=after)])

    class Shared(FakeDevice):
        def conditions(self) -> Conditions:
            found: Conditions = next(states)
            return found

    def gather(value: Any, _: float) -> list[Any]:
        return [value, (None, elsewhere) if type(value[1]) is int else value]

    world = 1 if elsewhere is None else 2
    case = Case("twice", "ours", "float32", (("N", 1024),), device="cpu", world=world)
    group = Group(0, 2, gather) if world > 1 else ALONE
    found = measure(Job(case, Timing(max_time=0.05)), op(), Shared([1e-6]), group)
    texts = [warning.message for warning in found.warnings if warning.code == "shared"]
    assert texts == ([f"{told} on the device meanwhile"] if told else [])
    assert not [*states]


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
    return run(device, sheet, n=MIB // 32, **timing)


@pytest.mark.parametrize(("seconds", "each"), [rare(1e-3, 1.1e-3), rare(1.2e-3, 1.3e-3), (0.3e-3, 0.4e-3)])
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
    ("max_time", "rounds"),
    [(0.03, [1] * 20), rare(0.045, [2] * 10), (0.1, [5] * 4), rare(0.2, [10] * 2), (1.0, [10] * 2)],
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


def test_variants_of_a_group_get_the_same_data_and_others_do_not():
    """The call that is checked has this seed: what is timed gets data that nobody knows before."""
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
