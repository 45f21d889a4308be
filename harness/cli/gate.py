"""`harness gate`: measure two codes in pairs, or judge two stored runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from harness.cli import values
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.gate import Request
    from harness.gate.records import GateRun

EXAMPLES = (
    "\b\nExamples:\n"
    "  harness gate --base main ci\n"
    "  harness gate --base HEAD~1 prelu --only 'prelu/tuned/*' --margin 2%\n"
    "  harness gate reports/before reports/after     stored runs, each with --repeat 10\n"
    "  harness gate calibrate ci --blocks 10         how noisy is this machine?\n"
    "\n\b\nExit codes:\n"
    "  0 nothing is slower; 1 something is slower, below its floor or missing; 2 wrong usage;\n"
    "  3 more pairs are needed to tell; 4 the machine, or the runs, can't give an answer"
)


class Command(TyperCommand):
    """`gate`, which has a command of its own for calibrating, beside arguments that may be anything."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of `gate`, or of `gate calibrate`."""
        if args[:1] != ["calibrate"]:
            return super().make_context(info_name, args, parent, **extra)
        from harness.cli import gate_calibrate

        return gate_calibrate.as_command().make_context(f"{info_name} calibrate", args[1:], parent, **extra)


Device = Annotated[
    str | None, typer.Option(metavar="KIND", help="Device to measure on; the first that works unless told.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Only cases whose id matches, e.g. '*/float16/*'; may be repeated."),
]
Ops = Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Python file with more ops; may be repeated.")]
MarginOption = Annotated[
    float | None,
    typer.Option(parser=values.share, metavar="SHARE", help="Loss of bandwidth that passes; 1% unless told."),
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="Draws the order within each pair; drawn and recorded unless told.")
]
Noise = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Where noise floors are kept; in the cache folder unless told.")
]
Precision = Annotated[
    float | None,
    typer.Option(parser=values.share, metavar="SHARE", help="Sample until the median is so well known; 0.3%."),
]
MaxTime = Annotated[
    float | None,
    typer.Option(parser=values.seconds, metavar="SECONDS", help="Sample a case for no longer in a process; 0.5 s."),
]


def command(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="SCENARIO | REF RUN", help="With --base, what to measure; without, two stored runs."),
    ],
    base: Annotated[
        str | None, typer.Option(metavar="REV", help="Revision to compare with: a branch, tag or commit.")
    ] = None,
    margin: MarginOption = None,
    device: Device = None,
    only: Only = None,
    ops: Ops = None,
    precision: Precision = None,
    max_time: MaxTime = None,
    seed: Seed = None,
    noise: Noise = None,
    advisory: Annotated[bool, typer.Option("--advisory", help="End with 0, whatever is found.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the result; reports/gate-... unless told.")
    ] = None,
) -> None:
    """Tell whether anything has become slower, and fail if so.

    With --base, the working tree and that revision are measured now, in pairs of fresh processes whose order is drawn
    at random: three pairs of everything, then more of what they leave open. Without, two stored runs are compared.
    """
    if base is not None:
        asked = request(
            base,
            arguments,
            device=device,
            only=only,
            ops=ops,
            precision=precision,
            max_time=max_time,
            margin=margin,
            seed=seed,
            noise=noise,
            advisory=advisory,
        )
        made, name = _paired(asked), "-".join(Path(argument).stem for argument in arguments)
    else:
        measuring = {"--device": device, "--only": only, "--ops": ops, "--seed": seed}
        _refuse(measuring | {"--precision": precision, "--max-time": max_time})
        made, name = _stored(arguments, margin, noise, advisory), "stored"
    raise typer.Exit(_finish(made, output or Path("reports") / f"gate-{name}-{stamp()}"))


def request(
    base: str,
    scenarios: Sequence[str],
    *,
    device: str | None,
    only: Sequence[str] | None,
    ops: Sequence[Path] | None,
    precision: float | None,
    max_time: float | None,
    margin: float | None,
    seed: int | None,
    noise: Path | None,
    advisory: bool = False,
) -> Request:
    """What the options ask for. Raises UsageError for scenarios and a device that aren't there."""
    from harness import devices, scenario
    from harness.gate import Request

    files = tuple(scenario.find(scenarios))
    kind = devices.choose(device)
    selection = scenario.Selection(device=kind, only=tuple(only or ()), precision=precision, max_time=max_time)
    return Request(
        base=base,
        files=files,
        selection=selection,
        plugins=tuple(ops or ()),
        margin=0.01 if margin is None else margin,
        seed=seed,
        noise=noise,
        advisory=advisory,
        command=("harness", *sys.argv[1:]),
    )


def stamp() -> str:
    """The time, as it stands in the names of folders."""
    return f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """End with 130 on Ctrl-C, after saying `message`, and 143 on SIGTERM; worktrees and processes are gone then."""

    def leave(number: int, _frame: object) -> None:
        raise typer.Exit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(message, err=True)
        raise typer.Exit(128 + signal.SIGINT) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


def _paired(asked: Request) -> GateRun:
    from harness import gate
    from harness.cli.console import open_console
    from harness.cli.gate_progress import Teller

    with interruptible("stopped; nothing was decided"), Teller(open_console(err=True)) as teller:
        return gate.paired(asked, teller)


def _refuse(measuring: Mapping[str, object]) -> None:
    """Raise UsageError for options of measuring that were given, where nothing is measured."""
    if given := [name for name, value in measuring.items() if value not in (None, [])]:
        raise UsageError(
            f"without --base nothing is measured, so {', '.join(given)} can't be heeded",
            "leave that out to judge stored runs as they are, or name a revision: harness gate --base main SCENARIO...",
        )


def _stored(arguments: Sequence[str], margin: float | None, noise: Path | None, advisory: bool) -> GateRun:
    from harness import gate, store

    if len(arguments) != 2:
        raise UsageError(
            "harness gate needs a base to compare with",
            "name a revision: harness gate --base main SCENARIO..., or two folders of runs: harness gate REF RUN",
        )
    reference, run = map(Path, arguments)
    return gate.stored(
        (reference, store.load(reference)),
        (run, store.load(run)),
        margin=0.01 if margin is None else margin,
        noise=noise,
        advisory=advisory,
        command=("harness", *sys.argv[1:]),
    )


def _finish(made: GateRun, folder: Path) -> int:
    """Print the result, leave it in its folder and where GitHub looks for it. Gives the exit code."""
    from harness.cli.console import open_console
    from harness.report import gate as report
    from harness.report.gate import terminal

    terminal.render(made, open_console())
    for path in report.write(made, folder):
        typer.echo(path, err=True)
    report.publish(made, os.environ)
    return made.exit
