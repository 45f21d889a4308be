"""Ranks that decide and end together, as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from harness import ranks
from harness.devices import Batch
from harness.devices.cpu import Cpu
from harness.devices.cuda import Cuda
from harness.errors import CompileError
from harness.measure import measure
from harness.model import Case, Conditions, Job, Measurement, Timing
from harness.ops import Context, Launch, Op, Tensor, Tensors
from harness.ranks import ALONE, Group, PeerError
from harness.session import Session
from tests.rare import rare

CASE = Case("twice", "ours", "float32", (("N", 4096),), world=2, device="cpu")


def together(*work: Callable[[Group], Any]) -> list[Any]:
    """What each rank's work returns or raises, each in a thread of its own."""
    values: list[Any] = [None] * len(work)
    meeting = threading.Barrier(len(work))

    def gather_on(rank: int) -> ranks.Gather:
        def gather(value: Any, seconds: float) -> list[Any]:
            values[rank] = value
            try:
                meeting.wait(min(seconds, 10))
                found = list(values)
                meeting.wait(10)
            except threading.BrokenBarrierError as error:
                raise TimeoutError("another rank didn't come") from error
            return found

        return gather

    def run(rank: int) -> Any:
        try:
            return work[rank](Group(rank, len(work), gather_on(rank)))
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(run, range(len(work))))


def test_a_single_process_needs_nobody():
    assert ALONE.agree(2.5) == 2.5
    assert ALONE.slowest([1.0, 2.0]) == [1.0, 2.0]
    assert (ALONE.verdict("no"), ALONE.verdict(None)) == ("no", None)
    failure = ALONE.failed("wrong", "y is wrong")
    assert (failure.status, failure.text) == ("wrong", "y is wrong")


def test_ranks_agree_on_what_rank_0_says_and_wait_for_the_slowest():
    assert together(lambda g: g.agree(1.0), lambda g: g.agree(2.0)) == [1.0, 1.0]
    assert together(lambda g: g.slowest([1.0, 4.0]), lambda g: g.slowest([2.0, 3.0])) == [[2.0, 4.0]] * 2


def test_the_first_complaint_is_that_of_all():
    assert together(lambda g: g.verdict(None), lambda g: g.verdict("no")) == ["rank 1: no"] * 2
    assert together(lambda g: g.verdict("a"), lambda g: g.verdict("b")) == ["rank 0: a"] * 2
    assert together(lambda g: g.verdict(None), lambda g: g.verdict(None)) == [None, None]


@pytest.mark.parametrize(
    "step",
    [lambda g: g.agree(1.0), lambda g: g.slowest([1.0]), lambda g: g.barrier(), lambda g: g.verdict("something else")],
)
def test_a_failure_reaches_the_others_whatever_they_exchange(step):
    failed, told = together(lambda g: g.failed("out_of_memory", "no room"), step)
    assert isinstance(told, PeerError)
    assert (told.status, told.text) == (failed.status, failed.text) == ("out_of_memory", "rank 0: no room")


def test_of_several_failures_the_first_rank_s_counts():
    a, b = together(lambda g: g.failed("crashed", "a"), lambda g: g.failed("wrong", "b"))
    assert [(e.status, e.text) for e in (a, b)] == [("crashed", "rank 0: a")] * 2


class FakeCuda(Cuda):
    """A GPU that captures unless it refuses, and whose calls take no time."""

    def __init__(self, refuses: Exception | None = None) -> None:
        self.refuses = refuses
        self.clock = Cpu.clock
        self.replayed = 0

    def _capture(self, calls, rounds, keep, group):
        if self.refuses:
            raise self.refuses

        def replay() -> None:
            self.replayed += 1

        return replay

    def _fill_queues(self):
        pass

    def _flush(self):
        return lambda: None

    def timed(self, group: Group) -> Batch:
        return self.batch([lambda: None], timer="graph", keep=1, seconds=1e-3, group=group)


def test_ranks_capture():
    batches = together(FakeCuda().timed, FakeCuda().timed)
    assert [(batch.timer, batch.not_captured) for batch in batches] == [("graph", "")] * 2


def test_no_rank_uses_a_graph_if_one_cannot_capture():
    devices = FakeCuda(), FakeCuda(RuntimeError("it waits for the device"))
    batches = together(*(device.timed for device in devices))
    assert [batch.timer for batch in batches] == ["launch"] * 2
    assert [batch.not_captured for batch in batches] == ["rank 1: it waits for the device"] * 2
    # A replay of one rank alone would wait forever in a collective.
    assert devices[0].replayed == 0


class Small(Cpu):
    """A processor with a small cache."""

    cache_bytes = 2**20

    def __init__(self, free: int = 2**30) -> None:
        self.free = free

    def free_bytes(self) -> int:
        return self.free


def op(prepare: Callable[[Context], Launch], **options: Any) -> Op:
    # Not as an expression: Python 3.11 can't parse in two threads at a time.
    shape = lambda values: (values["N"],)  # noqa: E731
    sheet = Op(
        "twice",
        "y = 2 x",
        {"N": "elements"},
        inputs=(Tensor("x", shape),),
        outputs=(Tensor("y", shape),),
        reference=lambda _, t: {"y": t.x.double() * 2},
    )
    sheet.variant("ours", "doubles", devices=("cpu",), **options)(prepare)
    return sheet


def measured(sheet: Op, group: Group, device: Small | None = None) -> Measurement:
    return measure(Job(CASE, Timing(precision=0.5, max_time=0.02)), sheet, device or Small(), group)


def on_both(sheet: Op) -> list[Any]:
    return together(lambda g: measured(sheet, g), lambda g: measured(sheet, g))


def twice(t: Tensors) -> None:
    torch.mul(t.x, 2, out=t.y)


@pytest.mark.slow  # collection/test_many_ranks.py has ranks that measure
def test_ranks_measure_alike():
    found = on_both(op(lambda _: twice))
    assert [m.status for m in found] == ["ok", "ok"]
    assert found[0].samples == found[1].samples
    assert (found[0].sets, found[0].batch) == (found[1].sets, found[1].batch)
    assert found[0].seed != found[1].seed


def test_a_device_of_another_rank_that_lowers_its_clocks_is_told_of():
    """All ranks wait for the slowest rank, and the result is rank 0's."""

    class Hot(Small):
        def conditions(self) -> Conditions:
            return Conditions(reasons=("power cap",))

    sheet = op(lambda _: twice)
    found, _ = together(lambda g: measured(sheet, g), lambda g: measured(sheet, g, Hot()))
    assert found.status == "ok", found
    assert [w.message for w in found.warnings if w.code == "throttled"] == [
        "the device of rank 1 lowered its clocks: power cap"
    ]


@pytest.mark.parametrize(("others", "told"), [rare(1, []), (2, ["1 other process computed on the device meanwhile"])])
def test_processes_on_a_device_are_others_if_they_are_more_than_the_ranks(others, told):
    """Each rank may open each device. The device of rank 1 is watched, too."""

    class Shared(Small):
        def conditions(self) -> Conditions:
            return Conditions(others=others)

    sheet = op(lambda _: twice)
    found, _ = together(lambda g: measured(sheet, g), lambda g: measured(sheet, g, Shared()))
    assert [w.message for w in found.warnings if w.code == "shared"] == told


@pytest.mark.parametrize("rank", [0, 1])
def test_a_wrong_rank_ends_the_case_on_every_rank(rank):
    def prepare(ctx: Context) -> Launch:
        return (lambda t: t.y.zero_()) if ctx.group.rank == rank else twice

    found = on_both(op(prepare))
    assert [m.status for m in found] == ["wrong"] * 2
    assert found[0].error == found[1].error
    assert found[0].error.startswith(f"rank {rank}: y: 4096 of 4096 elements are wrong")
    assert found[0].samples == found[1].samples == ()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("fault", ["the input x was changed", "y isn't the tensor that the variant was given"])
def test_a_fault_of_a_rank_is_told_before_the_reference_waits_for_that_rank(rank, fault):
    """A reference of a collective communicates itself: the right rank would wait there until its time is up."""
    meeting = threading.Barrier(2, timeout=5)
    asked: list[int] = []

    def reference(ctx: Context, t: Tensors) -> dict[str, Any]:
        asked.append(ctx.group.rank)
        meeting.wait()
        return {"y": t.x.double() * 2}

    def prepare(ctx: Context) -> Launch:
        def launch(t: Tensors) -> None:
            twice(t)
            if ctx.group.rank != rank:
                return
            if "input" in fault:
                t.x.zero_()
            else:
                t.y = t.y.clone()

        return launch

    sheet = op(prepare)
    sheet.reference = reference
    found = on_both(sheet)
    assert [m.status for m in found] == ["wrong"] * 2
    assert found[0].error == found[1].error
    assert found[0].error.startswith(f"rank {rank}: {fault}")
    assert asked == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("calls", [0, 1, 2, 50])
def test_memory_that_runs_out_on_a_rank_ends_the_case_on_every_rank(rank, calls):
    """Memory runs out in the first call, in the check, in the estimate, or while the case is sampled."""

    def prepare(ctx: Context) -> Launch:
        made = 0

        def launch(t: Tensors) -> None:
            nonlocal made
            if ctx.group.rank == rank and made == calls:
                raise torch.OutOfMemoryError("no room")
            made += 1
            twice(t)

        return launch

    found = on_both(op(prepare))
    assert [(m.status, m.error) for m in found] == [("out_of_memory", f"rank {rank}: no room")] * 2


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("error", [ValueError("no such table"), CompileError("t.cu(3): error", "mend it")])
def test_an_error_of_a_rank_is_raised_there_and_ends_the_case_elsewhere(rank, error):
    def prepare(ctx: Context) -> Launch:
        if ctx.group.rank == rank:
            raise error
        return twice

    found = on_both(op(prepare))
    assert found[rank] is error
    other = found[1 - rank]
    assert other.status == "crashed"
    assert other.error.startswith(f"rank {rank}: ")
    assert str(error) in other.error


def test_what_one_rank_cannot_do_no_rank_does():
    def step(group: Group, free: int) -> Any:
        with Session(CASE, op(lambda _: twice), Small(free), group) as session:
            session.prepare()

    errors = together(lambda g: step(g, 2**30), lambda g: step(g, 1000))
    assert [error.status for error in errors] == ["out_of_memory"] * 2
    assert errors[0].text == errors[1].text == "rank 1: needs 114.7 kB, 1.000 kB are free on the device"


def test_the_rank_with_the_least_memory_decides_how_many_sets_there_are():
    def step(group: Group, free: int) -> int:
        with Session(CASE, op(lambda _: twice), Small(free), group) as session:
            session.prepare()
            return len(session.calls())

    assert together(lambda g: step(g, 2**30), lambda g: step(g, 32_768 * 10)) == [9, 9]


@pytest.mark.parametrize("raised", [torch.OutOfMemoryError("no room"), ValueError("no such tree")], ids=["oom", "bug"])
def test_others_that_do_not_come_are_not_waited_for_forever(monkeypatch, raised):
    """They may be in a collective of the op. The case ends as it would alone; an error says that nobody was told."""
    monkeypatch.setattr(ranks, "_PATIENCE", 0.05)
    over = threading.Event()

    def prepare(ctx: Context) -> Launch:
        def launch(_: Tensors) -> None:
            if ctx.group.rank == 0:
                over.wait(10)
            else:
                raise raised

        return launch

    def rank_1(group: Group) -> Any:
        try:
            return measured(op(prepare), group)
        finally:
            over.set()

    _, found = together(lambda g: measured(op(prepare), g), rank_1)
    if isinstance(raised, ValueError):
        assert found is raised
        assert "the other ranks weren't told" in raised.__notes__[0]
    else:
        assert (found.status, found.error) == ("out_of_memory", "no room")
