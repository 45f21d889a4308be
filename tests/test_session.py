"""One case made ready, step by step; and what is left behind however it ends."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness import check
from harness.devices.cpu import Cpu
from harness.errors import UsageError
from harness.measure import measure
from harness.model import Case, Job, KernelFacts, Timing
from harness.ops import Context, Launch, Op, Tensor, Tensors
from harness.ranks import Group
from harness.session import EndedError, Session, bytes_needed

CASE = Case("twice", "ours", "float32", (("N", 1024),), device="cpu")


class FakeDevice(Cpu):
    """A processor with a small cache and one device for each rank, that tells what is done with it."""

    cache_bytes = 2**12

    def __init__(self, count: int | None = None, free: int = 2**34) -> None:
        self.count = count
        self.free = free
        self.log: list[str] = []

    def free_bytes(self) -> int:
        return self.free

    def use(self, index: int) -> None:
        self.log.append(f"use {index}")

    def release(self) -> None:
        self.log.append("release")


def twice(_: Context) -> Launch:
    return lambda t: torch.mul(t.x, 2, out=t.y)


def op(prepare: Callable[[Context], Launch] = twice, **options: Any) -> Op:
    sheet = Op(
        "twice",
        "y = 2 x",
        {"N": "elements"},
        inputs=(Tensor("x", ("N",)),),
        outputs=(Tensor("y", ("N",)),),
        reference=lambda _, t: {"y": t.x.double() * 2},
        timer=options.pop("op_timer", "graph"),
    )
    sheet.variant("ours", "doubles", devices=("cpu",), **options)(prepare)
    return sheet


def test_the_steps_one_by_one():
    device = FakeDevice()
    with Session(CASE, op(), device) as session:
        assert session.obstacle() is None
        session.prepare()
        assert session.check() is None
        calls = session.calls()
        assert len(calls) == 4
        for call in calls:
            call()
        assert device.log == []
    assert [name for name, _ in session.phases] == ["setup", "compile", "check", "setup"]
    assert all(seconds >= 0 for _, seconds in session.phases)
    assert device.log == ["release"]


def test_each_call_has_buffers_of_its_own_that_outgrow_the_cache():
    seen: list[int] = []

    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            seen.append(t.x.data_ptr())
            torch.mul(t.x, 2, out=t.y)

        return launch

    device = FakeDevice()
    device.cache_bytes = 2**15
    with Session(CASE, op(prepare), device) as session:
        session.prepare()
        calls = session.calls()
        del seen[:]
        for call in calls:
            call()
    assert len(set(seen)) == len(calls) == 4 * 2**15 // 2**13


def test_what_a_variant_encodes_is_made_for_each_set_of_buffers_with_its_outputs():
    """A table of addresses, which is no tensor and isn't declared, is there before the first call of each set."""

    def encode(_: Context, t: Tensors) -> dict[str, Any]:
        return {"table": (t.x.data_ptr(), t.y.data_ptr())}

    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            assert t.table == (t.x.data_ptr(), t.y.data_ptr())
            torch.mul(t.x, 2, out=t.y)

        return launch

    with Session(CASE, op(prepare, encode=encode), FakeDevice()) as session:
        session.prepare()
        assert session.check() is None
        rotation = session.rotation()
        batch = session.device.batch(rotation.calls, timer="host", keep=1, seconds=1e-3)
        assert session.recheck(rotation, batch, 0.01) is None


def test_a_wrong_result_is_told_and_the_session_goes_on():
    sheet = op()
    sheet.reference = lambda _, t: {"y": t.x.double() * 3}
    with Session(CASE, sheet, FakeDevice()) as session:
        session.prepare()
        assert "1024 of 1024 elements are wrong" in session.check()
        assert session.calls()


def test_steps_out_of_order_are_refused():
    with Session(CASE, op(), FakeDevice()) as session, pytest.raises(RuntimeError, match=r"call prepare\(\) first"):
        session.check()


@pytest.mark.parametrize(
    ("options", "device", "status", "text"),
    [
        ({"unsupported": lambda _: "N is even"}, FakeDevice(), "unsupported", "N is even"),
        ({}, FakeDevice(free=9000), "out_of_memory", "needs 28.67 kB, 9.000 kB are free on the device"),
    ],
)
def test_an_obstacle_is_known_before_anything_is_made(options, device, status, text):
    with Session(CASE, op(**options), device) as session:
        obstacle = session.obstacle()
        assert (obstacle.status, obstacle.text) == (status, text)
        with pytest.raises(EndedError, match=text):
            session.prepare()
    assert session.phases == []
    assert device.log == ["release"]


def test_memory_that_is_just_enough_is_no_obstacle():
    assert Session(CASE, op(), FakeDevice(free=bytes_needed(CASE, op()))).obstacle() is None
    assert Session(CASE, op(), FakeDevice(free=bytes_needed(CASE, op()) - 1)).obstacle().status == "out_of_memory"


def test_an_op_whose_results_nobody_checks_says_so():
    sheet = op()
    sheet.unchecked = "it is random"
    with Session(CASE, sheet, FakeDevice()) as session:
        session.prepare()
        session.check()
    [warning] = session.warnings
    assert (warning.code, warning.message) == ("unchecked", "no result of this op is checked: it is random")


def test_a_world_needs_as_many_devices():
    group = Group(0, 2, lambda value, _: [value, value])
    case = Case("twice", "ours", "float32", (("N", 1024),), world=2, device="cpu")
    with Session(case, op(), device := FakeDevice(count=1), group) as session:
        assert session.obstacle().status == "unsupported"
        assert session.obstacle().text == "needs 2 devices, this machine has 1"
    assert "use 0" not in device.log
    with Session(case, op(), FakeDevice(count=2), group) as session:
        assert session.obstacle() is None
    # All ranks share a processor.
    with Session(case, op(), FakeDevice(count=None), group) as session:
        assert session.obstacle() is None


def test_each_rank_works_on_the_device_with_its_number():
    case = Case("twice", "ours", "float32", (("N", 1024),), world=2, device="cpu")
    for rank in (0, 1):
        with Session(case, op(), device := FakeDevice(count=2), Group(rank, 2, lambda value, _: [value, value])):
            assert device.log == [f"use {rank}"]
    # A case of one device leaves the choice to the process.
    with Session(CASE, op(), device := FakeDevice(count=2)):
        assert device.log == []


def test_a_group_of_another_size_is_refused():
    with pytest.raises(ValueError, match="a case of 1 ranks, the group has 2"):
        Session(CASE, op(), FakeDevice(), Group(0, 2))


def test_a_case_that_is_not_one_of_the_op_s_is_refused():
    with pytest.raises(UsageError, match="int8"):
        Session(replace(CASE, dtype="int8"), op(), FakeDevice())


def test_the_variant_says_how_it_is_timed_or_the_op():
    assert Session(CASE, op(timer="steady"), FakeDevice()).timer == "steady"
    assert Session(CASE, op(op_timer="host"), FakeDevice()).timer == "host"


@pytest.mark.parametrize("timed", [True, False])
def test_each_kernel_that_a_variant_loads_is_told_once(timed):
    facts = [KernelFacts("twice", 16, 0, 0), KernelFacts("thrice", 24, 8, 1024)]

    def prepare(ctx: Context) -> Launch:
        ctx.kernels.extend([*facts, *facts])
        return twice(ctx)

    assert Session(CASE, op(), FakeDevice()).kernels == ()
    assert measure(Job(CASE, Timing(max_time=0.01)), op(prepare), FakeDevice(), timed=timed).kernels == tuple(facts)


def closing(*closers: Callable[[], object], fails: Exception | None = None) -> Op:
    """Doubles, or fails, after it has deferred the closers."""

    def prepare(ctx: Context) -> Launch:
        for close in closers:
            ctx.defer(close)
        if fails:
            raise fails
        return twice(ctx)

    return op(prepare)


def raising(error: Exception) -> Callable[[], object]:
    def close() -> None:
        raise error

    return close


def test_what_was_deferred_is_closed_at_the_end_the_last_first():
    closed: list[str] = []
    with Session(CASE, closing(lambda: closed.append("a"), lambda: closed.append("b")), FakeDevice()) as session:
        session.prepare()
        session.rotation()
        assert closed == []
    assert closed == ["b", "a"]


@pytest.mark.parametrize(
    ("fails", "status"), [(torch.OutOfMemoryError("no"), "out_of_memory"), (ZeroDivisionError("no"), None)]
)
def test_what_was_deferred_is_closed_however_the_case_ends(fails, status):
    closed: list[str] = []
    sheet = closing(lambda: closed.append("a"), fails=fails)
    if status:
        assert measure(Job(CASE), sheet, FakeDevice()).status == status
    else:
        with pytest.raises(ZeroDivisionError):
            measure(Job(CASE), sheet, FakeDevice())
    assert closed == ["a"]


def test_errors_of_closers_become_a_warning_and_keep_no_other_from_closing():
    closed: list[str] = []
    sheet = closing(lambda: closed.append("a"), raising(ValueError("one")), raising(KeyError("two")))
    result = measure(Job(CASE, Timing(max_time=0.01)), sheet, FakeDevice())
    assert result.status == "ok"
    assert closed == ["a"]
    [warning] = [w for w in result.warnings if w.code == "not-closed"]
    assert "ValueError: one" in warning.message
    assert "KeyError: 'two'" in warning.message


def test_an_error_of_a_closer_does_not_hide_why_the_case_ended():
    sheet = closing(raising(ValueError("can't close")), fails=torch.OutOfMemoryError("no room\nat all"))
    result = measure(Job(CASE), sheet, FakeDevice())
    assert (result.status, result.error) == ("out_of_memory", "no room")
    [warning] = result.warnings
    assert warning.message == "closing what the variant opened failed: ValueError: can't close"

    with pytest.raises(ZeroDivisionError) as caught:
        measure(Job(CASE), closing(raising(ValueError("can't close")), fails=ZeroDivisionError("no")), FakeDevice())
    assert any("can't close" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("after", [None, 5])
def test_buffers_are_gone_before_memory_is_given_back(after):
    """Also where memory runs out in the middle of sampling, whose error holds on to every frame."""
    buffers: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    made = 0

    class Watched(FakeDevice):
        def release(self) -> None:
            alive.append(sum(buffer() is not None for buffer in buffers))

    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            nonlocal made
            made += 1
            buffers.append(weakref.ref(t.x))
            if after and made > after:
                raise torch.OutOfMemoryError("no room")
            torch.mul(t.x, 2, out=t.y)

        return launch

    result = measure(Job(CASE, Timing(max_time=0.01)), op(prepare), Watched())
    assert result.status == ("out_of_memory" if after else "ok")
    assert alive == [0]


def test_bytes_needed():
    """x to compare with, two sets of x and y, and y in double precision: all of them are there during the check."""
    assert bytes_needed(CASE, op()) == 4096 + 2 * 2 * 4096 + 8192
    unreferenced = op()
    unreferenced.reference = None
    assert bytes_needed(CASE, unreferenced) == 4096 + 2 * 2 * 4096


def test_what_makes_its_own_outputs_is_checked_in_poisoned_memory(monkeypatch):
    """So is what it makes of buffers: both are poisoned right before the call that is checked."""
    told: list[str] = []
    leave = check.leave_poison
    monkeypatch.setattr(check, "leave_poison", lambda *given: told.append("poison") or leave(*given))

    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> torch.Tensor:
            told.append("call")
            return t.x * 2

        return launch

    with Session(CASE, op(prepare, returns=True), FakeDevice()) as session:
        session.prepare()
        assert session.check() is None
    assert told == ["call", "poison", "call"]


def test_outputs_are_poisoned_before_the_call_that_is_checked():
    seen: list[bool] = []

    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            seen.append(bool(t.y.isnan().all()))
            torch.mul(t.x, 2, out=t.y)

        return launch

    with Session(CASE, op(prepare), FakeDevice()) as session:
        session.prepare()
        assert session.check() is None
        assert seen == [True, True]
        assert all(call.tensors.y.isnan().all() for call in session.rotation().calls[1:])


@pytest.mark.parametrize(
    ("free", "sets", "warned"),
    [
        (2**34, 64, False),  # four times the cache of 128 KiB, by sets of 8 KiB
        # One set is there, and others may take 80% of what is free.
        (int(62 * 8192 / 0.8) + 1, 63, True),
        (int(63 * 8192 / 0.8) + 1, 64, False),
    ],
)
def test_sets_take_most_of_the_memory_and_a_warning_tells_where_it_does_not_do(free, sets, warned):
    device = FakeDevice(free=free)
    device.cache_bytes = 2**17
    with Session(CASE, op(), device) as session:
        session.prepare()
        assert len(session.rotation().calls) == sets
    texts = [warning.message for warning in session.warnings if warning.code == "few-sets"]
    wanted = f"only {sets} of the 64 sets of buffers that would be larger than the cache are used"
    assert texts == [wanted] * warned
    assert all(warning.advice == "free memory on the device" for warning in session.warnings)


def test_all_ranks_have_as_many_sets_as_the_rank_with_the_least_memory():
    group = Group(0, 2, lambda value, _: [value, (None, 3) if isinstance(value[1], int) else value])
    case = Case("twice", "ours", "float32", (("N", 1024),), world=2, device="cpu")
    session = Session(case, op(), FakeDevice(count=2), group)
    assert session._set_count() == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_has_a_seed_of_its_own_and_the_first_one_is_the_case_s(rank):
    case = Case("twice", "ours", "float32", (("N", 1024),), world=2, device="cpu")
    first = Session(CASE, op(), FakeDevice()).seed
    made = Session(case, op(), FakeDevice(count=2), Group(rank, 2, lambda value, _: [value, value]))
    assert made.seed - rank == Session(case, op(), FakeDevice(count=2), Group(0, 2)).seed
    assert first == zlib.crc32(CASE.group.encode())
