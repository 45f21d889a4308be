"""`harness tune` for several ops: which are searched, what ends the search, and what is told; with given searches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import typer

import harness.tune
from harness.cli import tune
from harness.errors import Exit, MachineError, UnwritableError, UsageError
from harness.tune import Ahead, ToTune, Tuned


@dataclass
class Searches:
    """Stands for the searches of ops. ends: how each ends. told: what was asked for, and what was forgotten."""

    ends: dict[str, bool | Tuned | BaseException]
    told: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    raised: Any = None

    def tune(self, wanted: ToTune, _: object) -> Tuned:
        self.told.append(wanted.op)
        self.seconds.append(wanted.seconds)
        end = self.ends[wanted.op]
        if isinstance(end, BaseException):
            raise end
        return end if isinstance(end, Tuned) else Tuned({}, (), None, end)

    def forget(self, wanted: ToTune) -> None:
        self.told.append(f"forget {wanted.op}")


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Searches]:
    """Begins a search of several ops, with given ends, that raises what it must."""

    def begin(error: type[BaseException] | None = None, **ends: bool | Tuned | BaseException) -> Searches:
        found = Searches(ends)
        monkeypatch.setattr(harness.tune, "tune", found.tune)
        monkeypatch.setattr(harness.tune, "forget", found.forget)
        monkeypatch.setattr(harness.tune, "in_order", lambda wanted: [Ahead(each, 2, 1) for each in wanted])
        with pytest.raises(error) if error else nullcontext() as caught:
            tune._search([ToTune(op, "tuned", (), "cpu") for op in ends], 60.0)
        found.raised = caught and caught.value
        return found

    return begin


def test_several_searches_share_the_time_and_are_forgotten_when_all_are_done(search: Callable[..., Searches]) -> None:
    found = search(a=True, b=True)
    assert found.told == ["a", "b", "forget a", "forget b"]
    assert 60 > found.seconds[0] >= found.seconds[1]


def test_where_the_time_is_over_nothing_is_forgotten_and_what_is_left_is_told(
    search: Callable[..., Searches], capsys: pytest.CaptureFixture[str]
) -> None:
    found = search(typer.Exit, a=True, b=False, c=True)
    assert found.told == ["a", "b"]
    assert found.raised.exit_code == Exit.UNDECIDED
    told = capsys.readouterr().err.splitlines()
    assert told[:2] == ["a: 2 plans at 1 size (op 1 of 3)", "b: 2 plans at 1 size (op 2 of 3)"]
    assert told[2] == "the time is over; 1 of 3 sizes done; left: b (0 of 1), c (0 of 1); the same command goes on"


def test_ops_are_searched_in_the_order_of_what_is_left(
    search: Callable[..., Searches], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = search(a=True, b=True)
    found.told.clear()
    monkeypatch.setattr(harness.tune, "in_order", lambda wanted: [Ahead(each, 2, 1) for each in wanted[::-1]])
    tune._search([ToTune(op, "tuned", (), "cpu") for op in "ab"], 60.0)
    assert found.told[:2] == ["b", "a"]


def test_an_interrupted_search_says_that_the_same_command_goes_on(
    search: Callable[..., Searches], capsys: pytest.CaptureFixture[str]
) -> None:
    found = search(typer.Exit, a=True, b=KeyboardInterrupt(), c=True)
    assert found.told == ["a", "b"]
    assert found.raised.exit_code == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted; the same command goes on"


def test_a_table_that_could_not_be_kept_is_an_error_and_nothing_measured_is_forgotten(
    search: Callable[..., Searches], capsys: pytest.CaptureFixture[str]
) -> None:
    entry: Any = "an entry"
    lost = Tuned({}, (entry,), None, complete=True)
    found = search(MachineError, a=lost, b=True)
    assert found.told == ["a"]
    assert found.raised.message == "the table couldn't be kept"
    assert "the same command measures nothing again" in found.raised.advice
    assert capsys.readouterr().out == ""


def test_an_op_that_fails_keeps_no_other_from_its_search(
    search: Callable[..., Searches], capsys: pytest.CaptureFixture[str]
) -> None:
    found = search(MachineError, a=MachineError("no plan was right", ""), b=True)
    assert found.told == ["a", "b"]
    assert found.raised.message == "no plan was right"
    assert "a: no plan was right" in capsys.readouterr().err.splitlines()


def test_an_op_without_plans_at_its_sizes_is_left_out_of_a_search_of_several(
    search: Callable[..., Searches], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = search(a=True, b=True)
    found.told.clear()
    monkeypatch.setattr(harness.tune, "in_order", lambda wanted: [Ahead(each, sizes=each.op == "b") for each in wanted])
    tune._search([ToTune(op, "tuned", (), "cpu") for op in "ab"], 60.0)
    assert found.told == ["b", "forget a", "forget b"]
    assert capsys.readouterr().err.splitlines()[-1] == "a: no plan at these sizes"
    found.ends["a"] = UsageError("no plan at these sizes")
    with pytest.raises(UsageError, match="no plan at these sizes"):
        tune._search([ToTune("a", "tuned", (), "cpu")], 60.0)


def test_where_nothing_can_be_written_no_other_op_is_searched(search: Callable[..., Searches]) -> None:
    found = search(UnwritableError, a=UnwritableError("the disk is full", "make room"), b=True)
    assert found.told == ["a"]
    assert found.raised.message == "the disk is full"
