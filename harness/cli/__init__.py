"""The command line: options and printing. Each command has a file; slow imports wait until a command needs them."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from harness import __version__, paths, trial
from harness.cli import leaving, streams
from harness.cli.group import Commands
from harness.errors import Exit
from harness.processes.ending import Ending


class AllCommands(Commands):
    """`harness`, in the order of its help."""

    FILES = {  # noqa: RUF012 - nobody changes it
        "run": "run",
        "check": "check",
        "judge": "judge",
        "ladder": "ladder",
        "tune": "tune",
        "list": "listing",
        "env": "env",
        "peak": "peak",
        "profile": "profile",
        "launch": "launch",
        "report": "report",
        "view": "view",
        "compare": "compare",
        "explain": "explain",
        "gate": "gate",
    }


app = typer.Typer(
    cls=AllCommands,
    epilog="\b\nFirst steps:\n"
    "  harness env                    what this machine has, and what is missing\n"
    "  harness list                   what can be measured\n"
    "  harness run quick              measure two small PReLU layers\n"
    "  harness check --ops mine.py    whether an op of your own gives right results\n"
    "  harness --install-completion   complete names with the Tab key of your shell",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    # Help that Rich draws would take as long as everything else together.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"harness {__version__}")
        raise typer.Exit


@app.callback()
def harness(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Time GPU operators: beside what torch offers, and against what the machine can do at best.

    Every result is checked before it is timed.
    """


def main() -> None:
    """Entry point of `harness` and of `python -m harness`."""
    sys.path[:] = paths.import_folders()
    streams.open_all()
    streams.guard()
    with leaving.decided(), Ending(), trial.wanted():
        _command()


def _command() -> None:
    try:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            _under_torchrun()
        else:
            app(prog_name="harness")
    except (SystemExit, KeyboardInterrupt):
        raise
    except OSError as error:  # a message of the command line couldn't be printed
        streams.tell(f"error: {error}")
        sys.exit(getattr(error.__context__, "exit_code", Exit.ENVIRONMENT))
    except BaseException:  # a bug of the harness: all other errors are HarnessError, which has a message
        bug = "error: this is a bug in harness; report it with the command and the lines above"
        streams.tell(f"{traceback.format_exc()}{bug}")
        sys.exit(Exit.BUG)
    finally:
        streams.silence()


def _under_torchrun() -> None:
    """The command in the process with rank 0, which the other processes keep ranks for."""
    from harness.errors import HarnessError
    from harness.processes import torchrun

    try:
        with torchrun.joined() as leads:
            if leads:
                app(prog_name="harness")
    except HarnessError as error:
        streams.tell(f"error: {error.message}\n{error.advice}")
        sys.exit(error.exit_code)
