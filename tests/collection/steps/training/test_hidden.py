"""What share of communication is hidden: by times where they tell it, by traces, which also tell what is waiting."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import metrics
from harness.collection.steps.training._hidden import by_times, report_trace, shares, waiting
from harness.collection.steps.training.report import hidden
from harness.metrics import Subject
from harness.model import Case, DeviceFacts, Header, Machine, Measurement, Run, Scenario, Work
from harness.ops import Catalogue
from harness.ranks import Group
from harness.report.frame import lines
from harness.report.text import as_text
from harness.report.tree import Note, Table
from tests.one_test import one_test

CASE = Case("resnet50_scaling", "ddp", "float16", (("B", 8),), (("model", "resnet_toy"),), 2)
WAYS = ("ddp", "after", "no_sync")


class Pair(Group):
    """A group whose other rank says what a test wants. rank: this one's."""

    def __init__(self, other: object, rank: int = 0, **fields: Any) -> None:
        def gather(value: Any, _: float) -> list[Any]:
            answer = (None, other) if not callable(other) else (None, other(value[1]))
            return [value, answer] if rank == 0 else [answer, value]

        super().__init__(rank, 2, gather, **fields)


def measured(way: str, milliseconds: float, spread: float = 0.001, **fields: Any) -> Measurement:
    """Eleven samples, of which the second and the tenth lie `spread` from the median, as a share of it."""
    samples = tuple(1e-3 * milliseconds * (1 + (place - 5) * spread / 4) for place in range(11))
    work = Work(items=16, item="images")
    return Measurement(replace(CASE, variant=way), "ok", samples, timer="steady", work=work, **fields)


def run_of(found: Sequence[Measurement]) -> Run:
    made = Scenario("mine", "", CASE.op, tuple(dict.fromkeys(m.case.id for m in found)), baseline="ddp")
    machine = Machine("cuda", "f00d", (DeviceFacts("A GPU", 1, 1),))
    return Run(Header("a", machine, (made,), ("harness",), "now", "", len(found)), tuple(found))


def subject(*milliseconds: float, spread: float = 0.001) -> Subject:
    found = [measured(way, time, spread) for way, time in zip(WAYS, milliseconds, strict=True)]
    return lines(run_of(found))[0].subject


# ---- By times.


def test_what_times_tell_has_an_interval() -> None:
    assert Catalogue()
    found = by_times(subject(25, 40, 20))
    assert found
    assert found.value == pytest.approx(0.75)
    assert found.low == pytest.approx((40 * 0.999 - 25 * 1.001) / (40 * 0.999 - 20 * 0.999), abs=2e-3)
    assert found.high == pytest.approx((40 * 1.001 - 25 * 0.999) / (40 * 1.001 - 20 * 1.001), abs=2e-3)
    assert found.low < 0.75 < found.high
    values = metrics.values(subject(25, 40, 20))
    assert [values[f"hidden_by_times{end}"] for end in ("", "_low", "_high")] == [found.value, found.low, found.high]


@one_test(
    ("milliseconds", "spread", "why"),
    [
        ((42, 40, 20), 0.001, "ddp is slower than after, so it costs more than it hides"),
        ((19, 40, 20), 0.001, "ddp is faster than no_sync"),
        ((20.01, 20.02, 20), 0.01, "after isn't slower than no_sync by more than the noise"),
        ((20, 20, 21), 0.001, "after isn't slower than no_sync by more than the noise"),
        ((21.2, 22, 20), 0.04, "its interval has 0% and 100% in it"),
    ],
)
def test_what_times_do_not_tell_is_not_known(milliseconds: Sequence[float], spread: float, why: str) -> None:
    found = by_times(subject(*milliseconds, spread=spread))
    assert found
    assert (found.value, found.low, found.high, found.unknown) == (None, None, None, why)
    assert metrics.values(subject(*milliseconds, spread=spread)).get("hidden_by_times") is None


def test_without_an_interval_nothing_is_known() -> None:
    few = [
        replace(measured(way, time), samples=(1e-3 * time,) * 5) for way, time in zip(WAYS, (25, 40, 20), strict=True)
    ]
    found = by_times(lines(run_of(few))[0].subject)
    assert found
    assert found.unknown == "too few samples for an interval"


def test_a_way_that_was_not_run_has_nothing_to_tell() -> None:
    run = run_of([measured("ddp", 25), measured("after", 40)])
    assert [by_times(line.subject) for line in lines(run)] == [None, None]


# ---- By traces.


def kernel(name: str, start: float, microseconds: float, cat: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": microseconds}


def test_what_was_hidden_is_the_intersection_of_both_kinds_of_kernels() -> None:
    events = [
        kernel("conv", 0, 10),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 6, 8),
        kernel("gemm", 12, 1),
        kernel("cudaLaunchKernel", 0, 99, "cuda_runtime"),
        {"ph": "M", "name": "process_name"},
    ]
    assert shares(events) == {"hidden_by_trace": pytest.approx(5 / 8), "communication": pytest.approx(8 / 14)}
    assert shares(events[:1]) == {}


def copy(start: float, microseconds: float, size: int) -> dict[str, Any]:
    return kernel("Memcpy DtoD", start, microseconds, "gpu_memcpy") | {"args": {"bytes": size}}


def test_copies_of_known_sizes_count_as_communication_where_they_are_asked_for() -> None:
    events = [kernel("gemm", 0, 10), copy(5, 10, 4096), copy(16, 4, 128), copy(0, 20, 8)]
    assert shares(events, copied={4096, 128}) == {
        "hidden_by_trace": pytest.approx(5 / 14),
        "communication": pytest.approx(14 / 20),
    }
    assert shares(events) == {}


def test_the_steps_of_a_trace_give_an_interval() -> None:
    """Six steps of 100 us with two kernels of NCCL each, of which 10 to 15 of 20 us lie beside a product."""
    events = []
    for step in range(6):
        first = 100 * step
        events += [kernel("gemm", first, 50), kernel("nccl", first + 20, 10), kernel("nccl", first + 50 - step, 10)]
    found = shares(events)
    assert (found["hidden_by_trace_low"], found["hidden_by_trace_high"]) == pytest.approx((10 / 20, 15 / 20))
    assert found["hidden_by_trace"] == pytest.approx(75 / 120)
    assert "hidden_by_trace_low" not in shares(events[:-1]), "a step has another number of kernels"


def test_waiting_ends_when_the_last_rank_has_begun() -> None:
    """The first rank begins 30 us and 10 us before the other; both end together."""
    mine, other = [(100e-6, 150e-6), (200e-6, 230e-6)], [(130e-6, 150e-6), (210e-6, 230e-6)]
    both = [[0, mine], [0, other]]
    assert waiting(both, 0) == pytest.approx(40 / 80)
    assert waiting(both, 1) == pytest.approx(0)


def test_times_of_traces_count_from_moments_of_their_own() -> None:
    mine, other = [(100e-6, 150e-6)], [(30e-6, 50e-6)]
    assert waiting([[5_000_000, mine], [5_100_000, other]], 0) == pytest.approx(30 / 50)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([], id="another number of kernels"),
        pytest.param([(250e-6, 300e-6)], id="a kernel ends before the other rank has begun"),
    ],
)
def test_traces_that_cannot_be_laid_over_each_other_tell_nothing(other: list[Any]) -> None:
    assert waiting([[0, [(100e-6, 150e-6)]], [0, other]], 0) is None
    assert waiting([[0, []], [0, []]], 0) is None


def traced(monkeypatch: pytest.MonkeyPatch, events: Sequence[Any], refused: str = "") -> list[None]:
    """A profiler whose trace has these events. Gives a list that grows with each stop."""
    stopped: list[None] = []

    class Profile:
        def __init__(self, **_: Any) -> None:
            pass

        def start(self) -> None:
            if refused:
                raise RuntimeError(refused)

        def stop(self) -> None:
            stopped.append(None)

        def export_chrome_trace(self, file: str) -> None:
            Path(file).write_text(json.dumps({"traceEvents": [*events], "baseTimeNanoseconds": 7}))

    monkeypatch.setattr("torch.profiler.profile", Profile)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    return stopped


@pytest.mark.parametrize(("hosts", "told"), [(1, pytest.approx(0.25)), (2, None)])
def test_ranks_of_one_host_tell_each_other_when_they_sent(
    monkeypatch: pytest.MonkeyPatch, hosts: int, told: float | None
) -> None:
    events = [event for step in range(6) for event in (kernel("gemm", 100 * step, 50), kernel("nccl", 100 * step, 20))]
    traced(monkeypatch, events)

    def later(value: Any) -> Any:
        """The other rank begins 5 us later."""
        return [value[0], [[start + 5e-6, end] for start, end in value[1]]] if value else None

    found: dict[str, float] = {}
    ctx: Any = SimpleNamespace(group=Pair(later, local_size=2 // hosts), report=found.__setitem__)
    report_trace(ctx, lambda: None)
    assert found.get("communication_waiting") == told
    assert found["hidden_by_trace"] == pytest.approx(1.0)


def test_copies_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    traced(monkeypatch, [kernel("gemm", 0, 20), *(copy(20 * step, 10, 64) for step in range(6))])
    found: dict[str, float] = {}
    ctx: Any = SimpleNamespace(group=Pair(lambda value: value, local_size=2), report=found.__setitem__)
    report_trace(ctx, lambda: None, {64})
    assert found == {
        "hidden_by_trace": pytest.approx(1 / 6),
        "hidden_by_trace_low": 0.0,
        "hidden_by_trace_high": pytest.approx(1.0),
        "communication": pytest.approx(60 / 110),
    }


@pytest.mark.parametrize("other", [None, "not permitted"])
def test_where_a_rank_may_not_trace_no_rank_does(monkeypatch: pytest.MonkeyPatch, other: str | None) -> None:
    """The case was timed by then. A rank that traced alone would wait in a collective for the others."""
    stopped = traced(monkeypatch, [], refused="" if other else "CUPTI isn't there")
    steps: list[None] = []
    ctx: Any = SimpleNamespace(group=Pair(other), report=None)
    report_trace(ctx, lambda: steps.append(None))
    assert len(steps) == 1
    assert len(stopped) == (1 if other else 0)


# ---- What a report says.


@pytest.fixture
def section() -> Callable[..., tuple[list[str], dict[str, tuple[str, ...]]]]:
    """The sentences and the columns of the section, given times and the facts of `ddp`."""

    def make(*milliseconds: float, **facts: float) -> tuple[list[str], dict[str, tuple[str, ...]]]:
        assert Catalogue()
        found = [
            measured(way, time, facts=tuple(facts.items()) if way == "ddp" else ())
            for way, time in zip(WAYS, milliseconds, strict=True)
        ]
        (*_, made) = hidden.sections(lines(run_of(found)))
        (table,) = (as_text(block) for block in made.blocks if isinstance(block, Table))
        notes = [block.text for block in made.blocks if isinstance(block, Note)]
        return notes, {column.head: column.cells for column in table.columns}

    return make


TRACE = {"hidden_by_trace": 0.5, "communication": 0.2, "communication_waiting": 0.75}
Section = Callable[..., tuple[list[str], dict[str, tuple[str, ...]]]]


def test_waiting_and_the_rest_are_told_apart(section: Section) -> None:
    notes, columns = section(25, 40, 20, **TRACE)
    assert notes == []
    assert columns["hidden (times)"] == ("75.0%",)
    assert columns["interval"][0].startswith("74.")
    assert (columns["until the last rank"], columns["since then"]) == (("15.0%",), ("5.0%",))


def test_what_is_not_known_says_why_in_its_cell(section: Section) -> None:
    _, columns = section(42, 40, 20, **TRACE)
    assert columns["hidden (times)"] == ("not known: ddp is slower than after, so it costs more than it hides",)
    assert "interval" not in columns
    assert columns["hidden (trace)"] == ("50.0%",)


@pytest.mark.parametrize(("low", "high", "disagree"), [(0.45, 0.55, True), (0.45, 0.76, False), (0.74, 0.9, False)])
def test_where_both_intervals_leave_no_room_both_figures_stand_with_a_sentence(
    section: Section, low: float, high: float, disagree: bool
) -> None:
    bounds = {"hidden_by_trace_low": low, "hidden_by_trace_high": high}
    notes, columns = section(25, 40, 20, **TRACE, **bounds)
    assert {"hidden (times)", "hidden (trace)"} <= columns.keys()
    assert ["disagree by more than both intervals allow" in note for note in notes] == [True] * disagree


def test_traces_of_older_runs_cannot_tell_what_is_waiting(section: Section) -> None:
    notes, columns = section(25, 40, 20, hidden_by_trace=0.5, communication=0.2)
    assert notes[0].startswith("The traces of this run don't tell how long NCCL's kernels waited")
    assert "since then" not in columns


def test_one_device_has_no_section() -> None:
    alone = [replace(m, case=replace(m.case, world=1)) for m in (measured("replicas", 20),)]
    assert list(hidden.sections(lines(run_of(alone)))) == []
