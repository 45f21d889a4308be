"""`harness env`: what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import typer

from harness.cli.columns import flowing
from harness.cli.group import alone

app = alone()
EXAMPLES = "\b\nExample:\n  harness env"


@app.command("env", epilog=EXAMPLES)
def command() -> None:
    """Show the machine and what is missing on it.

    The exit code is 4 if no device works.
    """
    from harness import environment
    from harness.errors import Exit

    survey = environment.survey()
    for title, facts in survey.sections:
        width = max(len(fact.name) for fact in facts)
        lines = [title]
        for fact in facts:
            lines.append(f"  {fact.name:{width}}  {fact.value}")
            lines += [f"  {'':{width}}  -> {fact.advice}"] if fact.advice else []
        typer.echo(flowing("\n".join(lines)))
    if not survey.usable:
        raise typer.Exit(Exit.ENVIRONMENT)
