"""`harness gate ci`: the gate in a CI job. It finds the base, calibrates a machine that it doesn't know, and gates."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.group import alone
from harness.errors import Exit, HarnessError, UsageError

app = alone()
EXAMPLES = (
    "\b\nExamples:\n"
    "  harness gate ci bench.yaml --ops bench.py\n"
    "  harness gate ci bench.yaml --target main --accept work\n"
    "\n\b\nFor later steps of a job on GitHub, these outputs:\n"
    "  exit     the exit code, as that of harness gate\n"
    "  verdict  passed, failed, undecided, not-valid, usage or bug\n"
    "  base     the commit that was compared with\n"
    "  folder   where gate.md, gate.json and junit.xml lie"
)
FOLDER = Path("reports") / "gate"
BLOCKS = 10
_VERDICTS = {
    Exit.OK: "passed",
    Exit.GATE_FAILED: "failed",
    Exit.UNDECIDED: "undecided",
    Exit.ENVIRONMENT: "not-valid",
    Exit.USAGE: "usage",
    Exit.BUG: "bug",
}
_MISTAKE: Any = typer.BadParameter.__mro__[1]
"""Every mistake on a command line; typer has no name for it."""
_SHARED = ("margin", "device", "only", "ops", "precision", "max_time", "seed", "noise", "prepare")
"""Options of `gate` that calibrating takes, too."""


@app.command("ci", epilog=EXAMPLES, context_settings={"ignore_unknown_options": True})
def command(
    context: typer.Context,
    arguments: Annotated[
        list[str], typer.Argument(metavar="SCENARIO... [OPTIONS OF GATE]", help="What to measure, as for harness gate.")
    ],
    target: Annotated[
        str | None,
        typer.Option(metavar="BRANCH", help="Branch that the change is meant for. Default: what GitHub says."),
    ] = None,
    blocks: Annotated[
        int,
        typer.Option(
            "--calibrate",
            min=0,
            max=1000,
            metavar="N",
            help="Blocks to calibrate a machine by whose noise isn't known.",
        ),
    ] = BLOCKS,
) -> None:
    """Gate the change of a CI job, with the options of harness gate.

    The base is the commit that the change begins at: what a pull request's merge merges into, the merge base with the
    target branch, or the commit before a push to the default branch. What is missing of it is fetched.
    --base names another one. The result goes to reports/gate, or to --output.

    Where no case's noise is known, the machine is calibrated first, which takes minutes; a job of the default branch
    calibrates if any case's noise is missing. Keep the cache folder, or the file of --noise, for the next job.
    """
    from harness.cli.gate import stopping

    gate: Any = context.obj  # gets all options that aren't declared here
    given: dict[str, Any] = {"base": None, "output": _folder(arguments)}
    with _told(given):
        with stopping(given["output"]):
            asked = _parsed(gate, arguments, context)
            given |= {**asked.params, "output": given["output"]}
            asked.params = given
            _find(given, target, blocks)
        gate.invoke(asked)


def _folder(arguments: Sequence[str]) -> Path:
    """Where the result goes, also of a command line with mistakes: as --output says, or else to the usual place."""
    words = [word.partition("=") for word in arguments]
    for place, (name, equals, value) in enumerate(words):
        if name == "--output" and (equals or arguments[place + 1 :]):
            return Path(value if equals else arguments[place + 1])
    return FOLDER


def _parsed(gate: Any, arguments: Sequence[str], context: typer.Context) -> Any:
    """The command line as `gate` takes it. Raises UsageError for a mistake, which so reaches the report, too."""
    try:
        return gate.make_context("harness gate", ["--base", "", *arguments], parent=context.parent)
    except _MISTAKE as error:
        if isinstance(error, typer.BadParameter) and error.param and error.param.name == "arguments":
            raise _no_scenario(arguments) from error
        raise UsageError(error.format_message(), "'harness gate --help' lists the options") from error


def _no_scenario(arguments: Sequence[str]) -> UsageError:
    """The error for a command line without a scenario: its writer may mean the scenario `ci`, or the command."""
    has_base = any(word.partition("=")[0] == "--base" for word in arguments)
    options = shlex.join(arguments if has_base else ("--base", "REV", *arguments))
    return UsageError(
        "'harness gate ci' is the command for CI jobs, and no scenario comes after it",
        f"for the scenario 'ci' write the options first: harness gate {options} ci; for a job of CI name its "
        "scenarios: harness gate ci SCENARIO...",
    )


def _find(given: dict[str, Any], target: str | None, blocks: int) -> None:
    """Find the base, and calibrate for it if need be."""
    from harness.cli import options
    from harness.gate import ci
    from harness.gate.worktree import Repository

    event = ci.Event.read(os.environ)
    request = options.gate_request(given["base"], given["arguments"], **{name: given[name] for name in _SHARED})
    top = Repository.find(request.plugins, request.files).top
    if given["base"] and target:
        raise UsageError("--base and --target name two bases", "leave out one of them")
    given["base"] = given["base"] or ci.base(top, event, target)
    typer.echo(f"gate ci: the base is {given['base']}", err=True)
    missing, every = ci.unknown(request)
    if blocks and missing and (event.on_default or missing == every):
        typer.echo(f"gate ci: calibrating, since the noise of {missing} of {every} cases isn't known", err=True)
        _calibrate(given, "HEAD" if event.on_default else given["base"], blocks)


def _calibrate(given: Mapping[str, Any], base: str, blocks: int) -> None:
    """Calibrate. A base that has none of the cases yet is told; the gate says what it means."""
    from harness.cli import gate_calibrate

    shared = {name: given[name] for name in _SHARED}
    try:
        gate_calibrate.command(scenarios=given["arguments"], base=base, blocks=blocks, **shared)
    except HarnessError as error:
        typer.echo(f"gate ci: not calibrated: {error.message}", err=True)


@contextmanager
def _told(given: Mapping[str, Any]) -> Iterator[None]:
    """Tell later steps of the job how it ended."""
    from harness.gate import ci

    code: int = Exit.BUG
    try:
        yield
        code = Exit.OK
    except typer.Exit as ended:
        code = ended.exit_code
        raise
    except HarnessError as error:
        code = error.exit_code
        raise
    except OSError:
        code = Exit.ENVIRONMENT
        raise
    except SystemExit:
        code = Exit.USAGE  # of code of a user
        raise
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
        raise
    finally:
        verdict = _VERDICTS.get(Exit(code), "stopped") if code in set(Exit) else "stopped"
        ci.outputs(
            {"exit": int(code), "verdict": verdict, "base": given["base"] or "", "folder": given["output"]}, os.environ
        )
