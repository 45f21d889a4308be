from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from harness.gate.records import CaseEvidence, Finding, GateRun, UsedCode
from harness.model import Case
from harness.report.gate import terminal

MakeGate = Callable[..., GateRun]


def drawn(run: GateRun, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    terminal.render(run, console)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize("width", [80, 140])
def test_one_of_everything(gate_run: GateRun, width: int, golden: Callable[[str, str], None]) -> None:
    text = drawn(gate_run, width)
    assert max(map(len, text.splitlines())) <= width
    # GitHub would take it for a command.
    assert not any(line.startswith("::") for line in text.splitlines())
    golden(f"gate-{width}.txt", text)


FAILED = "a case is slower, wrong, below its floor, or missing, or the scenario asks for less"


@pytest.mark.parametrize(
    ("severity", "last"),
    [
        ("note", "gate passed: exit 0, no case of ours lost more than its margin"),
        ("failure", f"gate FAILED: exit 1, {FAILED}"),
        ("undecided", "gate undecided: exit 3, there isn't enough evidence that no case lost more than its margin"),
        ("environment", "gate not valid: exit 4, the machine can't give valid numbers, or the runs can't be compared"),
    ],
)
def test_the_last_line_says_what_the_exit_code_means(
    severity: str, last: str, evidence: Callable[..., CaseEvidence], case: Callable[..., Case], make_gate: MakeGate
) -> None:
    run = make_gate([evidence(case("prelu"))], [Finding("any", severity, "what it says")])
    assert drawn(run, 120).splitlines()[-1] == last


def test_the_same_code_is_said_to_be_the_reason_where_nothing_was_measured(make_gate: MakeGate) -> None:
    files = (("mine.py", "d" * 64),)
    same = replace(make_gate([]), used=UsedCode(files, files, complete=True))
    *_, count, last = drawn(same, 120).splitlines()
    assert count.startswith("nothing measured, ")
    assert last == "gate passed: exit 0, both sides use the same code, so nothing was measured"
    shared = replace(same, used=UsedCode(files, files, complete=True, shared=("mine.py",)))
    assert "same code" not in drawn(shared, 120)


def test_an_advisory_run_says_what_it_would_have_been(gate_run: GateRun) -> None:
    text = drawn(replace(gate_run, advisory=True), 140)
    assert text.endswith(
        "gate passed: exit 0, with --advisory it never fails; without, the exit code would be 1, FAILED\n"
    )


def test_runs_that_can_not_be_compared_say_why(make_gate: MakeGate) -> None:
    text = drawn(make_gate([], mode="stored", refused=("the machines differ: a, b", "the timers differ")), 120)
    assert "can't be compared: the machines differ: a, b\ncan't be compared: the timers differ\n" in text
    assert "0 cases" in text
    assert "gate not valid: exit 4" in text


def test_many_notes_are_counted_after_the_first(make_gate: MakeGate) -> None:
    notes = [Finding("missing", "note", f"number {i}") for i in range(30)]
    text = drawn(make_gate([], notes))
    assert text.count("note (missing)") == 9
    assert "note: and 21 more, see gate.md" in text


def test_names_are_not_taken_for_markup(make_gate: MakeGate) -> None:
    assert "failure (x): [red]a[/]" in drawn(make_gate([], [Finding("x", "failure", "[red]a[/]")]))
