"""What to measure, to check or to profile: arguments that `run`, `check` and `profile` have alike."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli import completion

Scenarios = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCENARIO",
        help="Scenario files, folders of them, or bundled names.",
        autocompletion=completion.scenarios,
        show_default=False,
    ),
]
Variants = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="Only these variants.", autocompletion=completion.variants),
]
