"""Which of the timed calls are made again, and what their outputs are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness import check, recheck
from harness.ops.comparer import complaint
from harness.recheck import Recheck
from tests.one_test import one_test
from tests.recheck_setting import Setting


def as_fast(*_: object) -> float:
    return 1e-5


def copied_at_once(found):
    """The sets whose outputs are copied from here on, in order. Each copy differs from all others."""
    copied: list[int] = []

    def copies(place: int) -> list[torch.Tensor]:
        copied.append(place)
        return [torch.tensor(len(copied))]

    found.rotation.copies = copies
    return copied


def test_only_outputs_of_the_last_repetition_are_looked_at_for_work_that_is_late() -> None:
    found = Setting(as_fast, graph=[0.0, 0.0])
    copied = copied_at_once(found)
    found.recheck._again([0, 1])
    found.recheck._again([2])
    assert copied == [1, 2], "a graph's are copied of one set: all of its calls come before that"
    assert "outputs change after the call has returned" in found.recheck._late()
    assert copied == [1, 2, 2]


def test_calls_without_a_graph_are_made_once_and_a_graph_makes_each_several_times():
    found = Setting(as_fast, replay=False, passes=3)
    copied, made = copied_at_once(found), []
    found.rotation.calls = [lambda place=place: made.append(place) for place in range(4)]
    assert found.recheck._again([2, 0]) == 1
    assert (made, copied, found.device.waited) == ([2, 0], [2, 0], 1)
    again = Setting(as_fast, passes=3, graph=[0.0])
    copied_at_once(again)
    assert again.recheck._again([0]) == 3


def test_alone_without_a_graph_the_first_call_is_made():
    found, made = Setting(as_fast), []
    found.rotation.calls = [lambda place=place: made.append(place) for place in range(4)]
    found.device.batch = lambda *_, **__: SimpleNamespace(replay=None)
    found.recheck._result = lambda *_: None
    assert found.recheck.alone() is None
    assert made == [0]


def test_calls_that_are_slow_only_until_caches_hold_their_inputs_are_believed(monkeypatch) -> None:
    """Calls are slow after a renewal and after the graph, which leave the caches with other data."""
    made: list[str] = []
    caches = SimpleNamespace(renewals=0, are_cold=False)

    def graph() -> Iterator[float]:
        while True:
            made.append("graph")
            caches.are_cold = True
            yield 80e-6

    def call(*_: Any) -> float:
        made.append("single")
        cold = caches.are_cold or len(found.rotation.done) > caches.renewals
        caches.renewals, caches.are_cold = len(found.rotation.done), False
        return 30e-6 if cold else 10e-6

    found = Setting(call, passes=2, graph=graph())
    monkeypatch.setattr(recheck, "time", found.now)
    assert found.recheck.novelty(10.0) is None
    assert made[-21:] == ["single", "single", "graph"] * 7


@pytest.mark.parametrize(
    ("inplace", "passes", "unchecked", "by"),
    [
        (False, 1, "", "the reference"),
        (False, 2, "", "the reference"),
        (True, 1, "", "the reference"),
        (True, 2, "", "as many calls"),
        (True, 3, "", "as many calls"),
        (True, 2, "why", "the reference"),
    ],
)
def test_where_each_call_goes_on_from_the_last_one_as_many_calls_are_compared(
    monkeypatch, inplace, passes, unchecked, by
):
    found = Setting(as_fast, inplace=inplace)
    found.recheck._op.unchecked = unchecked
    found.rotation.values = lambda _: None
    monkeypatch.setattr(recheck, "Watch", lambda *_, **__: SimpleNamespace(changed=lambda: None))
    monkeypatch.setattr(check, "as_tuple", lambda *_: ())
    monkeypatch.setattr(check, "collect", lambda *_: None)
    monkeypatch.setattr(check, "verdict", lambda *_, strict: SimpleNamespace(wrong=f"the reference, {strict=}"))
    monkeypatch.setattr(Recheck, "_updated", lambda *given: f"as many calls: {given[-1]}")
    said = found.recheck._result(0, None, passes)
    assert said == ("the reference, strict=False" if by == "the reference" else f"as many calls: {passes}")


def differing(dtype, got, want, **tolerance):
    """The complaint about an output where another set had the same calls."""
    found = Setting(as_fast)
    made = found.recheck
    made._op.outputs = (SimpleNamespace(name="y"),)
    made._op.tolerance, made._op.inputs = tolerance, ()
    made._ctx.case.dtype = dtype
    made._variant.decode = None
    return complaint(made._differences(SimpleNamespace(y=tensors(got)), SimpleNamespace(y=tensors(want))))


def tensors(numbers: Any) -> Any:
    """A tensor of numbers, or of each tuple one."""
    return [torch.tensor(one) for one in numbers] if isinstance(numbers[0], tuple) else torch.tensor(numbers)


@one_test(
    ("far", "is_wrong"), [([0.79, 100.0], False), ([0.81, 100.0], True), ([0.0, 180.7], False), ([0.0, 180.9], True)]
)
def test_sums_in_another_order_may_differ_by_eight_times_the_tolerance(far, is_wrong) -> None:
    """A tenth, and a tenth of the value, are allowed for one call."""
    assert (differing("float32", far, [0.0, 100.0], float32=(0.1, 0.1)) is not None) is is_wrong


def test_integers_and_dtypes_without_a_tolerance_must_be_the_same() -> None:
    assert differing("float32", [1, 2], [1, 2]) is None
    assert differing("float32", [1, 3], [1, 2]) is not None
    assert differing("int32", [1.0, 2.0], [1.0, 2.0]) is None
    assert differing("int32", [1.0, 2.001], [1.0, 2.0]) is not None


def test_each_tensor_of_a_list_is_compared() -> None:
    assert differing("float32", [(1.0, 2.0), (3.0,)], [(1.0, 2.0), (3.0,)]) is None
    assert "y: 1 of 3 elements" in str(differing("float32", [(1.0, 2.0), (4.0,)], [(1.0, 2.0), (3.0,)]))
