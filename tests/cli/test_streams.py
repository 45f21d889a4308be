"""Text of others on a terminal: it arrives without what the terminal would obey, by whichever way it is printed."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from rich.table import Table
from rich.text import Text

from harness import cli, store
from harness.cli.console import open_console
from harness.cli.messages import tell_losses
from harness.cli.streams import Plain, guard
from harness.model import Attachment, Header, KernelProfile, Measurement, Scenario
from harness.report import terminal

TITLE = "\x1b]0;title\x07"
CLEAR = "\x1b[2J\x1b[1m"


class Terminal(io.StringIO):
    """A terminal that keeps what it is told."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


Guarded = Callable[[], tuple[Terminal, Terminal]]


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Guarded:
    """Puts terminals in the place of standard output and standard error, guarded as in the command, and gives both."""

    def start() -> tuple[Terminal, Terminal]:
        out, err = Terminal(), Terminal()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        guard()
        return out, err

    return start


def test_what_is_printed_has_no_control_characters(guarded: Guarded) -> None:
    out, err = guarded()
    typer.echo(f"a{TITLE}b\n\tc\udc80")
    typer.echo(CLEAR, err=True)
    print("x", TITLE)
    sys.stdout.writelines([TITLE, "\n"])
    assert out.getvalue() == "a\ufffd]0;title\ufffdb\n\tc\ufffd\nx \ufffd]0;title\ufffd\n\ufffd]0;title\ufffd\n"
    assert err.getvalue() == "\ufffd[2J\ufffd[1m\n"


def test_a_console_draws_in_colour_and_writes_text_as_it_is(guarded: Guarded) -> None:
    out, _ = guarded()
    console = open_console()
    table = Table()
    table.add_column("[link=http://x]head", style="red")
    table.add_row(f"[bold]cell{TITLE}")
    console.print(Text(CLEAR, style="bold"), table, ":smile:")
    told = out.getvalue()
    assert "\x1b[1m\ufffd[2J\ufffd[1m\x1b[0m" in told
    assert "[bold]cell\ufffd]0;title" in told
    assert "[link=http://x]head" in told
    assert ":smile:" in told
    assert "\x1b]" not in told


def test_letters_that_an_encoding_lacks_are_numbers() -> None:
    below = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    plain = Plain(below)
    plain.write("é\x1b")
    plain.flush()
    assert below.buffer.getvalue() == b"\\xe9\\ufffd"
    assert (plain.encoding, plain.errors, plain.isatty(), plain.writable()) == (
        "ascii",
        "backslashreplace",
        False,
        True,
    )


def test_a_stream_that_is_closed_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    guard()
    assert sys.stdout is None


@pytest.fixture
def hostile(tmp_path: Path, header: Header, measurement: Callable[[int], Measurement]) -> Path:
    """The folder of a run in which every text of others clears the screen."""
    case = measurement(1).case
    machine = replace(header.machine, devices=(replace(header.machine.device, name=f"device{CLEAR}"),))
    scenario = Scenario(f"s{CLEAR}", f"title{CLEAR}", case.op, (case.id,), shows=CLEAR, source=CLEAR)
    made = replace(measurement(1), process=0)
    failed = replace(made, case=replace(case, variant=f"v{CLEAR}"), status="crashed", samples=(), error=f"e{CLEAR}")
    both = replace(scenario, cases=(case.id, failed.case.id))
    found = replace(header, machine=machine, scenarios=(both,), command=("harness", CLEAR))
    with store.create(tmp_path / "run", found) as kept:
        kept.append(made)
        kept.append(failed)
    kernel = KernelProfile(f"k{CLEAR}", 1, (("time", 1e-6),))
    store.attach(tmp_path / "run", [Attachment(case.id, "ncu", (("kernels", 1.0),), kernels=(kernel,))])
    return tmp_path / "run"


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "*", "--run", "RUN"],
        ["compare", "RUN", "RUN"],
        ["report", "RUN", "--format", "markdown"],
        ["report", f"RUN{CLEAR}"],
        ["run", f"nothing{CLEAR}"],
        ["profile", "ncu", "--import", "RUN/ncu.csv"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_run_of_others_is_shown_as_text(
    hostile: Path, guarded: Guarded, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (hostile / "ncu.csv").write_text(f'"ID","Kernel Name","Grid Size"\n"0","kernel{CLEAR}","(1, 1, 1)"\n')
    monkeypatch.setattr(sys, "argv", ["harness", *(word.replace("RUN", str(hostile)) for word in arguments)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    out, err = guarded()
    monkeypatch.setattr("os._exit", os._exit)  # main() replaces it
    with pytest.raises(SystemExit):
        cli.main()
    told = out.getvalue() + err.getvalue()
    assert told
    assert "Traceback" not in told
    assert [sign for sign in ("\x1b[2J", "\x1b]", "\x07") if sign in told] == []


def test_what_is_drawn_of_a_run_of_others_is_text(hostile: Path, guarded: Guarded) -> None:
    out, err = guarded()
    run = replace(store.load(hostile), losses=(CLEAR,))
    tell_losses(run)
    terminal.render(run, open_console())
    told = out.getvalue()
    assert "title\ufffd[2J\ufffd[1m" in told
    assert "\x1b[2J" not in told + err.getvalue()
