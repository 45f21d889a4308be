"""`harness explain`: what bounds a case, and how much each remedy could save at most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import units
from harness.cli import completion
from harness.cli.group import alone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from harness.explain import Known, Newest, Reason

app = alone()
EXAMPLES = (
    "\b\nExamples:\n"
    "  harness explain prelu/naive/float32/N134217728-C1-H1-W1\n"
    "  harness explain 'softmax/*/float32/M131072-N1024' --run reports/h200/softmax"
)
_HOME = Path("reports")
_FASTEST = 3  # other variants that are named


@app.command("explain", epilog=EXAMPLES, short_help="Say what bounds a case, and what a remedy could save.")
def command(
    case: Annotated[
        str,
        typer.Argument(
            metavar="CASE",
            help="Id of a case, as tables and 'harness run --dry-run' have it, or a glob on ids.",
            autocompletion=completion.cases,
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the run. Default: for each case the newest run in reports/."),
    ] = None,
) -> None:
    """Say what bounds a case, and how much each remedy could save at most.

    It reads a stored run: time, ceiling, bytes, registers, and the counters that 'harness profile ncu' left there. Each
    reason comes with its figures and sums, so that it can be checked by hand. This needs no GPU.
    """
    from harness import explain
    from harness.cli.console import open_console
    from harness.cli.messages import tell_losses
    from harness.errors import UsageError

    found = explain.newest(case, [run or _HOME])
    tell_losses(*{id(own.run): own.run for own in found.values()}.values())
    console = open_console()
    for number, (key, newest) in enumerate(found.items()):
        if number:
            console.print()
        try:
            known = explain.known(newest.run, key)
        except UsageError as error:
            if len(found) == 1:
                raise
            console.print(f"{error.message}.", markup=False)
            continue
        _show(known, newest, explain.explain(known), console)


def _show(known: Known, newest: Newest, reasons: Sequence[Reason], console: Console) -> None:
    """The case, its verdict with the sums and the remedy, then the other reasons, and how to learn more."""
    from harness import explain

    console.print(known.case.id, style="bold", markup=False, soft_wrap=True)
    for line in _facts(known, newest):
        _tell(console, line)
    _tell(console, explain.verdict(known, reasons), style="bold")
    causes = [reason for reason in reasons if not reason.aside]
    if causes:
        _body(console, causes[0])
    for number, reason in enumerate(causes[1:], 2):
        _tell(console, f"{number}. {reason.verdict}")
        _body(console, reason)
    for reason in reasons:
        if reason.aside:
            _tell(console, f"Besides: {reason.verdict}")
            _body(console, reason)
    told = known.tool == explain.TRACES if known.case.world > 1 else known.has_counters
    if not told and not known.near_ceiling and (command := explain.command(known)):
        traces = "Counters are of one device. Traces of all devices tell how they wait for each other:"
        _tell(console, traces if known.case.world > 1 else "This run has no counters of the case; they tell more:")
        # One line, so that it can be pasted.
        console.print(f"    {command}", markup=False, soft_wrap=True)


def _facts(known: Known, newest: Newest) -> list[str]:
    bound, of_ceiling = known.subject.bound, known.of_ceiling
    told = "no ceiling is known"
    if bound and of_ceiling is not None:
        told = f"{units.percent(of_ceiling)} of the ceiling: {units.seconds(bound.seconds)}, by {bound.limit}"
    lines = [f"{units.seconds(known.time)}, {told}"]
    if known.siblings:
        others = ", ".join(f"{s.variant} {units.seconds(s.time)}" for s in known.siblings[:_FASTEST])
        more = len(known.siblings) - _FASTEST
        lines.append(f"other variants: {others}" + (f", and {more} slower" if more > 0 else ""))
    seen = f"{known.tool}, {units.plural(len(known.kernels), 'kernel')}" if known.kernels else "none"
    counters = seen if known.has_counters or not known.kernels else f"none (of {seen}, only times)"
    lines.append(f"run: {newest.folder}; counters: {counters}")
    if newest.counted and not known.has_counters:
        lines.append(f"an older run, {newest.counted}, has counters: name it by --run")
    return lines


def _body(console: Console, reason: Reason) -> None:
    for line in reason.sums:
        _tell(console, line, indent=4)
    _tell(console, f"remedy: {reason.remedy}", indent=4)


def _tell(console: Console, text: str, style: str = "", indent: int = 2) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Padding(Text(text, style=style), (0, 0, 0, indent), expand=False))
