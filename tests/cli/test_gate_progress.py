"""What a gate tells while it works."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
import typer
from rich.console import Console

from harness.cli.gate_progress import Teller, follow
from harness.gate.observer import Comparing
from harness.gate.records import Decision, Outcome, Revision, UsedCode
from harness.model import Job, Machine, Measurement

BASE = Revision("main", "0123456789abcdef", False, "b" * 64)
NOW = Revision("the working tree", "fedcba9876543210", True, "a" * 64)


@pytest.fixture
def tell(machine: Machine) -> Callable[..., tuple[Teller, io.StringIO]]:
    def make(terminal: bool = False, base: Revision = BASE) -> tuple[Teller, io.StringIO]:
        drawn = io.StringIO()
        teller = Teller(Console(file=drawn, force_terminal=terminal, width=200))
        teller.comparing(Comparing(base, NOW, 12, machine))
        return teller, drawn

    return make


def decided(*outcomes: Outcome) -> dict[str, Decision]:
    return {f"case{i}": Decision(outcome, "screen", 0.0, 0.0, 0.0, 4) for i, outcome in enumerate(outcomes)}


def test_the_first_line_says_what_is_compared_with_what(tell: Callable[..., tuple[Teller, io.StringIO]]) -> None:
    _, drawn = tell()
    expected = "comparing the working tree (fedcba9876, changed) with main (0123456789): 12 cases on A processor\n"
    assert drawn.getvalue() == expected


def test_the_repository_is_named_and_so_is_what_is_not_compared(
    tell: Callable[..., tuple[Teller, io.StringIO]], machine: Machine
) -> None:
    teller, drawn = tell()
    same = replace(BASE, digest=NOW.digest, repository="/home/me/mykern")
    used = UsedCode(shared=("src/mykern/__init__.py",))
    teller.comparing(Comparing(same, NOW, 1, machine, used))
    *_, first, second = drawn.getvalue().splitlines()
    assert first.endswith("with main (0123456789) in /home/me/mykern: 1 case on A processor")
    # "the same code" would say that nothing can differ.
    assert second == "not compared, since both sides use the same files: src/mykern/__init__.py"


def test_a_commit_as_its_own_name_is_told(tell: Callable[..., tuple[Teller, io.StringIO]]) -> None:
    _, drawn = tell(base=Revision("0123456", "0123456789abcdef", False, "a" * 64))
    assert " with 0123456: " in drawn.getvalue()
    assert "same code" not in drawn.getvalue(), "equal digests of the plug-ins say nothing about what they import"


@pytest.mark.parametrize(("same", "end"), [(True, "nothing is measured; --always measures"), (False, "is noise")])
def test_the_same_code_is_said_of_the_files_that_both_sides_used(
    same: bool, end: str, tell: Callable[..., tuple[Teller, io.StringIO]], machine: Machine
) -> None:
    teller, drawn = tell()
    files = (("mine.py", "d" * 64),)
    teller.comparing(Comparing(BASE, NOW, 1, machine, UsedCode(files, files, complete=True), same))
    last = drawn.getvalue().splitlines()[-1]
    assert last.startswith("both sides use the same code (1 file): ")
    assert last.endswith(end)


@pytest.mark.parametrize(
    ("outcomes", "going", "line"),
    [
        (["ok"] * 11 + ["improved"], [], "after 4 pairs: 12 of 12 clear"),
        (["ok"] * 10, ["a", "b"], "after 4 pairs: 10 of 12 clear, 2 to confirm: a, b"),
        (["ok"], list("abcdef"), "after 4 pairs: 1 of 7 clear, 6 to confirm: a, b, c, d, e ..."),
        (["regressed", "inconclusive"], [], "after 4 pairs: 1 slower, 1 undecided"),
        # The screen decides that a case is too noisy; case2 goes on to the next look.
        (
            ["ok", "inconclusive", "inconclusive"],
            ["case2"],
            "after 4 pairs: 1 of 3 clear, 1 undecided, 1 to confirm: case2",
        ),
        ([], [], "after 4 pairs: nothing to compare"),
    ],
)
def test_what_the_pairs_told(
    tell: Callable[..., tuple[Teller, io.StringIO]], outcomes: list[Outcome], going: list[str], line: str
) -> None:
    teller, drawn = tell()
    teller.settled(4, decided(*outcomes), going)
    assert drawn.getvalue().splitlines()[-1] == line


def test_a_log_has_a_line_for_each_pair(tell: Callable[..., tuple[Teller, io.StringIO]]) -> None:
    teller, drawn = tell()
    teller.planned("screen", 2, 48)
    teller.paired("now")
    *_, stage, pair = drawn.getvalue().splitlines()
    assert stage == "screen: 2 pairs of processes, 48 measurements"
    assert pair == "  pair 1 of 2 after 0 s, the working tree first"


def test_what_fails_is_told_once(tell: Callable[..., tuple[Teller, io.StringIO]], job: Callable[..., Job]) -> None:
    teller, drawn = tell()
    teller.planned("screen", 2, 4)
    teller.paired("base")
    for _ in range(2):
        teller.finished(Measurement(job("abort").case, "crashed", error="killed by signal SIGABRT\nand more"), "now")
        teller.planned("confirm", 2, 4)
    told = [line for line in drawn.getvalue().splitlines() if "crashed" in line]
    assert told == ["fault/abort/float32/N4096 crashed: killed by signal SIGABRT (the working tree)"]


def test_a_terminal_shows_a_bar_with_the_case_and_the_pair(
    tell: Callable[..., tuple[Teller, io.StringIO]], job: Callable[..., Job]
) -> None:
    teller, drawn = tell(terminal=True)
    with teller:
        teller.planned("screen", 4, 8)
        teller.started(job("fine"), "base")
    assert "0/8" in drawn.getvalue()
    assert "fault/fine/float32/N4096 (main, pair 1 of 4)" in drawn.getvalue()


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "stopped; all is lost\n"), (signal.SIGTERM, 143, "")]
)
def test_a_signal_ends_the_command_with_its_code(
    number: signal.Signals, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(typer.Exit) as caught, follow("stopped; all is lost"):
        os.kill(os.getpid(), number)
    assert caught.value.exit_code == code
    assert capsys.readouterr().err == said
    assert signal.getsignal(signal.SIGTERM) == before
