"""Sentences that more than one command prints."""

from __future__ import annotations

import typer

from harness.model import Run


def tell_losses(*runs: Run) -> None:
    """Print on standard error which parts of the stored runs couldn't be read."""
    for run in runs:
        for loss in run.losses:
            typer.echo(f"warning: {loss}", err=True)
