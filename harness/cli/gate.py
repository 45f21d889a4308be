"""`harness gate`: measure two codes in pairs, or judge two stored runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from harness import paths
from harness.cli import options
from harness.cli.group import alone
from harness.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from harness.gate import Request
    from harness.gate.records import GateRun

app = alone()
EXAMPLES = (
    "\b\nExamples:\n"
    "  harness gate --base main ci\n"
    "  harness gate --base HEAD~1 prelu --only 'prelu/tuned/*' --margin 2%\n"
    "  harness gate --base main scenarios --ops mine.py --accept missing\n"
    "  harness gate --base main --against v1.4 ci    also against the last release\n"
    "  harness gate --base main ci --resume reports/gate-ci-1 --pairs 80\n"
    "  harness gate reports/before reports/after     stored, with --repeat 10 each\n"
    "  harness gate merge a/gate.json b/gate.json    of two machines\n"
    "  harness gate calibrate ci --blocks 10         how noisy is this machine?\n"
    "  harness gate ci bench.yaml --ops bench.py     in a CI job, without a base\n"
    "\n\b\nExit codes:\n"
    "  0 nothing is slower\n"
    "  1 something is slower, wrong, below its floor or missing\n"
    "  2 wrong usage\n"
    "  3 not enough evidence to decide\n"
    "  4 the machine can't give valid numbers, or the runs can't be compared"
)
COMMANDS = ("calibrate", "ci", "merge")
"""The commands of two words, such as `gate ci`."""


class GateCommand(TyperCommand):
    """`gate`, whose first argument may be another command, which has a file of its own."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of `gate`, or of the command that the first argument names, whose `obj` is `gate`."""
        if args and args[0] in COMMANDS:
            command = typer.main.get_command(import_module(f"harness.cli.gate_{args[0]}").app)
            return command.make_context(f"{info_name} {args[0]}", args[1:], parent, obj=self, **extra)
        return super().make_context(info_name, args, parent, **extra)


@app.command("gate", cls=GateCommand, epilog=EXAMPLES)
def command(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="SCENARIO | REF RUN", help="With --base: what to measure. Without: two stored runs."),
    ],
    base: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="Revision to compare with: a branch, tag or commit of the repository that the ops and scenarios lie "
            "in.",
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REV",
            help="Compare with this revision too, such as the last release. Has its own verdict; may be repeated.",
        ),
    ] = None,
    margin: options.Margin = None,
    pairs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Confirm a case by so many fresh pairs at most. The gate looks after 10, 20, 40, 80 pairs and so on, "
            "up to 640, so N is rounded up to one of these. Default: 20.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Go on from the pairs of an undecided gate in this folder, for one look more, or up to --pairs.",
        ),
    ] = None,
    waivers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Losses that pass for a while. Default: waivers.yaml at the top of the repository, if there is one.",
        ),
    ] = None,
    device: options.Device = None,
    only: options.Only = None,
    ops: options.Ops = None,
    precision: options.Precision = None,
    max_time: options.MaxTime = None,
    seed: options.Seed = None,
    noise: options.NoiseFile = None,
    prepare: options.Prepare = None,
    harness: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Revision whose measuring code measures both sides. Default: the working tree's."
        ),
    ] = None,
    always: Annotated[bool, typer.Option("--always", help="Measure, even if both sides use the same code.")] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Let what this rule found pass: missing, uncompared, floor, scenario, check, work, timer, tail, "
            "code, measuring or software; may be repeated. Every output says so.",
        ),
    ] = None,
    advisory: Annotated[bool, typer.Option("--advisory", help="End with exit code 0, whatever is found.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the result. Default: reports/gate-...")
    ] = None,
) -> None:
    """Tell whether anything has become slower, and fail if so.

    With --base, the working tree and that revision are measured now, in pairs of fresh processes in random order: three
    pairs of every case, then more pairs of the cases that are still open. --against does the same with more revisions.
    Without both, two stored runs are compared.
    """
    with stopping(output):
        from harness import gate
        from harness.ops import Catalogue

        accepted = tuple(dict.fromkeys(accept or ()))
        gate.check_accept(accepted)
        bases = list(dict.fromkeys([*([] if base is None else [base]), *(against or ())]))
        if bases:
            if resume and len(bases) > 1:
                raise UsageError("--resume goes on with one base", "name the folder and the base of each, one by one")
            asked = options.gate_request(
                bases[0],
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
                accept=accepted,
                prepare=prepare,
                harness=harness,
                always=always,
                pairs=pairs,
                resume=resume,
                waivers=waivers,
            )
            name = "-".join(["gate", *(Path(argument).stem for argument in arguments)])
            if len(bases) > 1:
                requests = [replace(asked, base=each) for each in bases]
                raise typer.Exit(_against(requests, output or paths.new_report(name)))
            made = _paired(asked)
        else:
            measuring: dict[str, object] = {"--device": device, "--only": only, "--seed": seed, "--prepare": prepare}
            measuring |= {"--precision": precision, "--max-time": max_time, "--harness": harness}
            _refuse(measuring | {"--always": always or None, "--pairs": pairs, "--resume": resume})
            Catalogue(tuple(ops or ()))  # floors may be of metrics that ops declare
            made, name = _stored(arguments, margin, noise, advisory, accepted, waivers), "gate-stored"
        code = _finish(made, output or resume or paths.new_report(name))
    raise typer.Exit(code)


def _against(requests: Sequence[Request], folder: Path) -> int:
    """Gate against several bases, one after the other. Returns the exit code of all verdicts together."""
    from harness.cli.gate_merge import finish
    from harness.gate import joining
    from harness.gate.worktree import Repository
    from harness.report import gate as report

    repository = Repository.find(requests[0].plugins, requests[0].files)
    for request in requests:
        repository.commit(request.base)  # raises before anything is measured
    runs = []
    for number, request in enumerate(requests, 1):
        runs.append(_paired(request))
        report.write(runs[-1], folder / f"{number}-{re.sub('[^A-Za-z0-9._-]+', '-', request.base)}")
    return finish(joining.against(runs), folder)


@contextmanager
def stopping(output: Path | None) -> Iterator[None]:
    """If the gate ends by an error, write the files and tell GitHub so, as far as they were asked for."""
    try:
        if output:
            _refuse_folder(output)
        yield
    except typer.Exit:
        raise
    except (Exception, SystemExit) as error:
        from harness.report.gate import stopped

        told = stopped.Stopped.by(error, ("harness", *sys.argv[1:]))
        with suppress(HarnessError, OSError):  # what ends the gate is told, and not what comes after it
            for path in stopped.write(told, output) if output else ():
                typer.echo(path, err=True)
            stopped.publish(told, os.environ, Path.cwd())
        raise


def _refuse_folder(output: Path) -> None:
    """Raise UsageError, before anything is measured, if no folder can be made there."""
    there = next(place for place in (output.absolute(), *output.absolute().parents) if os.path.lexists(place))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        found = "can't be written" if there.is_dir() else "is no folder"
        raise UsageError(f"--output {output}: {there} {found}", "name a folder that can be made")


def _paired(asked: Request) -> GateRun:
    from harness import gate
    from harness.cli.gate_progress import follow

    with follow("stopped; nothing was decided") as teller:
        return gate.paired(asked, teller)


def _refuse(measuring: Mapping[str, object]) -> None:
    """Raise UsageError if options for measuring were given though nothing is measured."""
    if given := [name for name, value in measuring.items() if value not in (None, [])]:
        raise UsageError(
            f"without --base nothing is measured, so {', '.join(given)} can't be used",
            "omit these options to compare two stored runs, or name a revision: harness gate --base main SCENARIO...",
        )


def _stored(
    arguments: Sequence[str],
    margin: float | None,
    noise: Path | None,
    advisory: bool,
    accept: tuple[str, ...],
    waivers: Path | None,
) -> GateRun:
    from harness import gate
    from harness.ops import known_cases

    if len(arguments) != 2:
        raise UsageError(
            "harness gate needs a base to compare with",
            "name a revision: harness gate --base main SCENARIO..., or two folders of runs: harness gate REF RUN",
        )
    reference, run = map(Path, arguments)
    return gate.stored(
        (reference, known_cases.load(reference)),
        (run, known_cases.load(run)),
        margin=options.USUAL_MARGIN if margin is None else margin,
        noise=noise,
        advisory=advisory,
        accept=accept,
        command=("harness", *sys.argv[1:]),
        waivers=options.known_waivers(waivers)[1],
    )


def _finish(made: GateRun, folder: Path) -> int:
    """Print the result, write it into its folder and where GitHub looks for it. Returns the exit code."""
    from harness.cli.console import open_console
    from harness.report import gate as report
    from harness.report.gate import terminal

    terminal.render(made, open_console())
    for path in report.write(made, folder):
        typer.echo(path, err=True)
    report.publish(made, os.environ)
    return made.exit
