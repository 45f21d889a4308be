"""What a session checks beside the first call: calls on unaligned tensors, extreme values, the timed calls."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness import check
from harness import session as session_module
from harness.errors import brief, described
from harness.measure import measure
from harness.model import Job, Timing
from harness.ops import Context, Launch, Tensors
from harness.ranks import Group
from harness.session import EndedError, Session
from tests.one_test import one_test
from tests.test_session import CASE, FakeDevice, op, twice


def noting_addresses(seen: list[int], wrong: float = 0.0) -> Callable[[Context], Launch]:
    """Doubles, and is off by a share where its input begins at an address that 16 doesn't divide."""

    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            seen.append(t.x.data_ptr() % 16)
            torch.mul(t.x, 2 * (1 + wrong * (seen[-1] > 0)), out=t.y)

        return launch

    return prepare


def test_a_call_on_unaligned_tensors_is_checked_where_that_is_asked_for():
    seen: list[int] = []
    sheet = op(noting_addresses(seen, wrong=0.5))
    assert measure(Job(CASE, Timing(max_time=0.01)), sheet, FakeDevice()).status == "ok"
    assert set(seen) == {0}
    found = measure(Job(CASE), sheet, FakeDevice(), timed=False)
    assert found.status == "wrong"
    assert found.error.startswith("with tensors at addresses that 16 doesn't divide, y: 1024 of 1024 elements are ")
    assert [name for name, _ in found.phases] == ["setup", "compile", "check", "unaligned"]
    # By chance some numbers are rounded worse than the ones that were checked before.
    assert measure(Job(CASE), op(noting_addresses(seen, wrong=4e-6)), FakeDevice(), timed=False).status == "ok"


@pytest.mark.parametrize(("most", "called"), [(2 * 4096 - 1, False), (2 * 4096, True)])
def test_no_call_on_unaligned_tensors_is_made_of_much_data(monkeypatch, most, called):
    assert session_module._MOST_UNALIGNED == 64 * 2**20
    monkeypatch.setattr(session_module, "_MOST_UNALIGNED", most)
    seen: list[int] = []
    with Session(CASE, op(noting_addresses(seen)), FakeDevice()) as session:
        session.prepare()
        assert session.check_unaligned() is None
    assert seen == [0] + [4] * called


@pytest.mark.parametrize(("name", "value"), [("unchecked", "it is random"), ("inputs", ())])
def test_no_call_on_unaligned_tensors_is_made_where_none_tells_anything(name, value):
    """Nothing is compared with the results of such an op, or its calls go on from the last one."""
    calls: list[Tensors] = []
    sheet = op(lambda _: calls.append)
    setattr(sheet, name, value)
    with Session(CASE, sheet, FakeDevice()) as session:
        session.prepare()
        assert session.check_unaligned() is None
    assert len(calls) == 1


def test_a_library_that_is_wrong_for_extreme_values_is_timed_with_a_warning():
    def prepare(_: Context) -> Launch:
        return lambda t: t.y.copy_(2 * t.x).nan_to_num_()

    for role, warned in (("ours", 0), ("baseline", 1), ("published", 1)):
        with Session(CASE, op(prepare, role=role), FakeDevice()) as session:
            session.prepare()
            assert (session.extremes() is None) == bool(warned)
        assert [warning.code for warning in session.warnings] == ["extremes"] * warned
        assert all("elements are wrong" in warning.message for warning in session.warnings)


def test_the_outcome_of_a_call_is_in_tensors_of_the_op_or_a_fault_in_its_form():
    def decode(_: Context, t: Tensors) -> dict[str, Any]:
        return {"y": t.y + 1}

    with Session(CASE, op(decode=decode), FakeDevice()) as session:
        session.prepare()
        fault, after = session.outcome()
        assert fault is None
        assert torch.equal(after.y, 2 * after.x + 1)

    with Session(CASE, op(lambda _: lambda t: t.x.mul_(2), decode=decode), FakeDevice()) as session:
        session.prepare()
        fault, after = session.outcome()
        assert fault.startswith("the input x was changed")
        assert bool(after.y.isnan().all()), "what is wrong isn't decoded"


def test_inputs_are_gone_when_sets_of_buffers_are_made():
    inputs = check.make_inputs(Session(CASE, op(), FakeDevice()).context())
    with Session(CASE, op(), FakeDevice()) as session:
        session.prepare(inputs)
        session.rotation()
        assert vars(inputs) == {}


@pytest.mark.parametrize("rank", [0, 1])
def test_values_of_sets_go_by_the_seed_of_the_first_rank(monkeypatch, rank):
    """So that ranks agree on the sets that are looked at."""
    given: list[int] = []
    monkeypatch.setattr(session_module, "Rotation", lambda *parts: given.append(parts[3]))
    case = replace(CASE, world=2)
    with Session(case, op(), FakeDevice(count=2), Group(rank, 2, lambda value, _: [value, value])) as session:
        session.prepare()
        session.rotation()
    assert given == [zlib.crc32(case.group.encode())]


@pytest.mark.parametrize(
    ("wrong", "asked"),
    [
        ({}, ["results 2", "alone", "novelty 2"]),
        ({"novelty": "is slow"}, ["results 2", "alone", "novelty 2"]),
        ({"alone": "is stale"}, ["results 2", "alone"]),
        ({"results": "is wrong"}, ["results 2"]),
    ],
)
def test_the_timed_calls_are_checked_in_three_ways_until_one_finds_something(monkeypatch, wrong, asked):
    """Two of them have half of the time each. What is drawn afterwards is the same in every run."""
    told: list[str] = []

    class Fake:
        def __init__(self, ctx: Context, *_: object) -> None:
            self.generator = ctx.generator

        def results(self, seconds: float) -> str | None:
            torch.rand(3, generator=self.generator)
            told.append(f"results {seconds:g}")
            return str(wrong["results"]) if "results" in wrong else None

        def alone(self) -> str | None:
            told.append("alone")
            return str(wrong["alone"]) if "alone" in wrong else None

        def novelty(self, seconds: float) -> str | None:
            told.append(f"novelty {seconds:g}")
            return str(wrong["novelty"]) if "novelty" in wrong else None

    monkeypatch.setattr(session_module, "Recheck", Fake)
    with Session(CASE, op(), FakeDevice()) as session:
        session.prepare()
        found = session.recheck(session.rotation(), None, 4.0)
        ctx, _ = session._ready()
        drawn = torch.rand(3, generator=ctx.generator)
    [text] = wrong.values() or [None]
    assert found == (f"{text} (found in the timed calls; the first call was right)" if text else None)
    assert told == asked
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(session.seed)))


def test_figures_that_cost_more_calls_are_asked_for_by_report_alone():
    told: list[str] = []

    def prepare(ctx: Context) -> Launch:
        ctx.afterwards(lambda: told.append("one"))
        ctx.afterwards(lambda: told.append("two"))
        return twice(ctx)

    with Session(CASE, op(prepare), FakeDevice()) as session:
        session.prepare()
        assert told == []
        session.report()
    assert told == ["one", "two"]
    assert session.phases[-1][0] == "facts"


def test_no_step_is_taken_after_the_end():
    with Session(CASE, op(), FakeDevice()) as session:
        session.prepare()
    with pytest.raises(RuntimeError, match=r"call prepare\(\) first"):
        session.check()


@pytest.mark.parametrize(("name", "value"), [("op", op()), ("case", replace(CASE, cache="hot"))])
def test_a_context_that_a_variant_has_changed_ends_the_case(name, value):
    with Session(CASE, op(), FakeDevice()) as session:
        session.prepare()
        setattr(session._ctx, name, value)
        with pytest.raises(EndedError, match="the context has another op or another case") as caught:
            session.check()
        assert caught.value.status == "wrong"


def test_a_call_has_done_its_work_before_it_is_judged():
    told: list[str] = []

    class Noting(FakeDevice):
        def synchronize(self) -> None:
            told.append("wait")

    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            told.append("call")
            torch.mul(t.x, 2, out=t.y)

        return launch

    with Session(CASE, op(prepare), Noting()) as session:
        session.prepare()
        assert session.check() is None
    assert told == ["call", "wait", "call", "wait"]


def test_ranks_wait_for_each_other_at_the_end_of_each_step():
    told: list[Any] = []
    group = Group(0, 2, lambda value, _: told.append(value) or [value, value])
    with Session(replace(CASE, world=2), op(), FakeDevice(count=2), group) as session, session.phase("setup"):
        told.append("step")
    assert told == ["step", (None, None)]


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), torch.OutOfMemoryError("no room")])
def test_an_error_that_other_ranks_cannot_be_told_of_is_raised_all_the_same(error):
    def gather(*_: object) -> list[Any]:
        raise TimeoutError("another rank sent nothing within 3 s")

    session = Session(replace(CASE, world=2), op(), FakeDevice(count=2), Group(0, 2, gather))
    is_known = isinstance(error, torch.OutOfMemoryError)
    with pytest.raises(EndedError if is_known else ZeroDivisionError) as caught, session.phase("setup"):
        raise error
    if is_known:
        assert (caught.value.status, caught.value.text) == ("out_of_memory", "no room")
    else:
        assert caught.value.__notes__ == ["the other ranks weren't told: another rank sent nothing within 3 s"]


def test_two_sets_are_few_where_the_cache_holds_one_and_memory_takes_no_other():
    device = FakeDevice()
    device.cache_bytes = 2**10
    with Session(CASE, op(), device) as session:
        session.prepare()
        device.free = 5000
        assert len(session.rotation().calls) == 1
    [warning] = session.warnings
    assert warning.message.startswith("only 1 of the 2 sets of buffers")


def test_where_the_most_sets_are_too_few_more_memory_is_no_advice(monkeypatch):
    monkeypatch.setattr("harness.session._MOST_SETS", 8)
    device = FakeDevice()
    device.cache_bytes = 2**17
    with Session(CASE, op(), device) as session:
        session.prepare()
        assert len(session.rotation().calls) == 8
    [warning] = session.warnings
    assert warning.advice == "take a larger shape, or say 'cache: hot'"


@pytest.mark.parametrize("spoils", [False, True])
def test_inputs_of_another_form_than_the_op_s_must_stay_as_they_are_too(spoils):
    """What is watched is what the variant made of the op's inputs."""

    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            torch.mul(t.x.float(), 2, out=t.y)
            if spoils:
                t.x.zero_()

        return launch

    def encode(_: Context, t: Tensors) -> dict[str, Any]:
        return {"x": t.x.double()}

    with Session(CASE, op(prepare, encode=encode), FakeDevice()) as session:
        session.prepare()
        found = session.check()
    assert (found is None) == (not spoils)
    assert found is None or found.startswith("the input x was changed")


class Own(torch.Tensor):  # type: ignore[misc] # torch has no types
    """A subclass, which might compute when it is read."""


def with_attributes(y: torch.Tensor, **attributes: object) -> torch.Tensor:
    vars(y).update(attributes)
    return y


@one_test(
    ("make", "said"),
    [
        (lambda y: y.as_subclass(Own), "y is a Own: a subclass of Tensor may compute later"),
        (lambda y: torch.nn.Parameter(y, requires_grad=False), None),
        (lambda y: with_attributes(y, tolist=list), "y has a 'tolist' of its own, which may compute later"),
        (lambda y: with_attributes(y, made_by=print, T=3, note="fast"), None),
    ],
)
def test_an_output_is_a_plain_tensor_with_the_functions_of_one(make, said):
    with Session(CASE, op(lambda _: lambda t: make(t.x * 2), returns=True), FakeDevice()) as session:
        session.prepare()
        found = session.check()
    assert (found or "").startswith(said or "")
    assert (found is None) == (said is None)


@one_test(
    ("prepare", "reference", "said"),
    [
        (lambda _: None, None, "'NoneType' object is not callable; a variant must return the call that is timed"),
        (lambda _: lambda: None, None, "but 1 was given; a variant must return the call that is timed, a function of"),
        (lambda _: lambda t: t.xx, None, "AttributeError: nothing here is named 'xx' (allowed: x, y)"),
        (lambda ctx: ctx.s.M, None, "AttributeError: nothing here is named 'M' (allowed: N)"),
        (twice, lambda _, t: None, "; a reference must return a dict of tensors, by the names of outputs"),
        (twice, lambda _, t: t.x * 2, "; a reference must return a dict of tensors, by the names of outputs"),
        (twice, lambda _, t: {"y": (t.x * 2).numpy()}, "; a reference must return a dict of tensors"),
        (twice, lambda _, t: {"z": t.x}, "AttributeError: nothing here is named 'z' (allowed: x, y)"),
    ],
)  # fmt: skip
def test_a_function_that_gives_something_of_another_kind_is_told_what_it_must_give(prepare, reference, said):
    sheet = op(prepare)
    if reference:
        sheet.reference = reference
    with pytest.raises((AttributeError, TypeError)) as caught:
        measure(Job(CASE, Timing(max_time=0.01)), sheet, FakeDevice())
    assert said in brief(described(caught.value))
