"""What is drawn while a run goes on, and how long it is said to take."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from harness.cli.estimate import Estimate
from harness.cli.progress import Bar, Errors, Lines, follow
from harness.model import Job, Limits, Measurement
from harness.ops import Op
from harness.scenario import Plan

PARTS = Estimate(start=2.0, limits=8.0, each=10.0, after=10.0, count=2)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    clock = [100.0]
    monkeypatch.setattr("harness.cli.progress.time.monotonic", lambda: clock[0])
    return clock


def console(width: int = 80, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, highlight=False, color_system=None)


def text(drawn: Console) -> str:
    assert isinstance(drawn.file, io.StringIO)
    return drawn.file.getvalue()


def last(bar: Bar) -> str:
    """The bar as it would be drawn now."""
    drawn = console()
    drawn.print(bar._progress.get_renderable())
    return text(drawn)


def test_the_bar_counts_everything_that_takes_time(now: list[float], job: Callable[..., Job]) -> None:
    bar = Bar(console(), PARTS)
    bar.planned(total=2, done=0)
    reached = []
    steps = [
        lambda: bar.note("streams", 0.0),
        lambda: bar.note("streams", 0.5),
        lambda: bar.limited(Limits()),
        lambda: bar.finished(Measurement(job("fine").case, "ok", samples=(1e-6,))),
        lambda: bar.finished(Measurement(job("fine").case, "ok", samples=(1e-6,))),
    ]
    for step in steps:
        step()
        reached.append(bar._progress.tasks[0].completed)
    assert reached == [2.0, 6.0, 10.0, 20.0, 30.0]
    assert bar._progress.tasks[0].total == 40.0


def test_the_time_left_follows_the_pace_and_the_clock(now: list[float]) -> None:
    bar = Bar(console(), PARTS)
    bar.planned(total=2, done=0)
    assert "~0:00:40 left" in last(bar)
    now[0] += 5
    assert "~0:00:35 left" in last(bar)
    now[0] += 15
    bar.limited(Limits())  # 20 s for what was estimated as 10 s: the rest takes twice as long, too
    assert "~0:01:00 left" in last(bar)
    now[0] += 100
    assert "~0:00:00 left" in last(bar)


def test_without_an_estimate_the_time_left_follows_from_the_measurements_that_are_done(now: list[float]) -> None:
    bar = Bar(console())
    now[0] += 50
    bar.planned(total=5, done=1)
    assert "left" not in last(bar)
    now[0] += 10
    bar.advance()
    assert "~0:00:30 left" in last(bar)
    now[0] += 20
    bar.advance()
    assert "~0:00:30 left" in last(bar)
    bar.planned(total=8, done=0)  # the next stage of a gate
    assert "left" not in last(bar)


def test_what_is_done_already_is_not_estimated(now: list[float]) -> None:
    bar = Bar(console(), PARTS)
    bar.planned(total=2, done=1)
    assert bar._progress.tasks[0].total == 30.0


def test_the_bar_takes_one_line_of_80_columns(now: list[float]) -> None:
    bar = Bar(console(), PARTS)
    bar.planned(total=2, done=0)
    bar.note("checking whether the machine is as it was, with a text that is too long for the line", 0.0)
    lines = last(bar).splitlines()
    assert len(lines) == 1
    assert "left" in lines[0]
    assert "checking whether" in lines[0]


def test_a_pipe_shows_what_goes_on_by_the_line(job: Callable[..., Job]) -> None:
    drawn = console(terminal=False)
    lines = follow(drawn, PARTS)
    assert type(lines) is Lines
    lines.planned(total=2, done=1)
    lines.note("streams of 1 MB", 0.25)
    lines.finished(Measurement(job("fine").case, "ok", samples=(1e-6,)))
    assert text(drawn) == "streams of 1 MB (25%)\n[2/2] fault/fine/float32/N4096  1.000 us\n"


def test_quiet_prints_only_what_fails(job: Callable[..., Job]) -> None:
    drawn = console()
    with follow(drawn, PARTS, quiet=True) as lines:
        assert isinstance(lines, Errors)
        lines.planned(total=3, done=0)
        lines.note("streams", 0.5)
        lines.started(job("fine"), 0)
        lines.finished(Measurement(job("fine").case, "ok", samples=(1e-6,)))
        lines.finished(Measurement(job("fine").case, "unsupported", error="N is odd"))
        lines.finished(Measurement(job("abort").case, "crashed", error="killed by signal SIGABRT"))
    assert text(drawn) == "fault/abort/float32/N4096 crashed: killed by signal SIGABRT\n"


def test_an_estimate_counts_everything(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan((), (job("fine"), job("slow")), {})
    monkeypatch.setattr("harness.limits.recall", lambda _: None)
    first = Estimate.make(plan, "cpu", repeat=2)
    assert first.count == 4
    # 2 processes for the cases, 2 for the limits, and 4 cases, sampled for 20 ms.
    assert first.total > 4 * first.start + first.limits + 4 * 0.02
    assert first.total == pytest.approx(first.before + 4 * first.each + first.after)
    monkeypatch.setattr("harness.limits.recall", lambda _: Limits())
    assert Estimate.make(plan, "cpu", repeat=2).total < first.total
    assert Estimate.make(plan, "cpu", repeat=2, fresh=True) == first


def test_an_estimate_knows_that_calls_take_long_on_a_slow_machine(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of a large model takes an hour on a CPU; the estimate was of some seconds a case."""
    plan = Plan((), (job("fine"), job("slow")), {})
    monkeypatch.setattr("harness.limits.recall", lambda _: Limits())
    quick = Estimate.make(plan, "cpu", repeat=1)
    monkeypatch.setattr("harness.cli.estimate.at_best", lambda *_: 1000.0)
    assert Estimate.make(plan, "cpu", repeat=1).total - quick.total > 2 * 6 * 999
    monkeypatch.setattr("harness.cli.estimate.at_best", lambda *_: 1e-6)
    assert Estimate.make(plan, "cpu", repeat=1) == quick


def test_whole_steps_take_longer_to_set_up(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps took 11 s beside their samples; other cases a quarter of a second."""
    monkeypatch.setattr("harness.cli.estimate.at_best", lambda *_: None)  # the op has no variants
    jobs = (job("fine"), job("slow"))
    short, long = (
        Estimate.make(
            Plan((), jobs, {"fault": Op("fault", "a call", symbols={"N": "elements"}, timer=timer)}), "cpu", repeat=1
        )
        for timer in ("graph", "steady")
    )
    assert long.each - short.each > 10
