"""`harness gate calibrate`: how noisy this machine is, and how the gate decides about identical code."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options
from harness.cli.group import alone

if TYPE_CHECKING:
    from harness.gate import CaseNoise
    from harness.gate.records import GateRun

app = alone()
EXAMPLES = "\b\nExamples:\n  harness gate calibrate\n  harness gate calibrate ci --blocks 10 --noise noise.json"


@app.command("calibrate", epilog=EXAMPLES)
def command(
    scenarios: Annotated[
        list[str] | None, typer.Argument(metavar="SCENARIO", help="Scenarios to calibrate. Default: ci.")
    ] = None,
    base: Annotated[str, typer.Option(metavar="REV", help="Revision to measure against itself.")] = "HEAD",
    blocks: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="How often to compare it with itself.")
    ] = 10,
    margin: options.Margin = None,
    device: options.Device = None,
    only: options.Only = None,
    ops: options.Ops = None,
    precision: options.Precision = None,
    max_time: options.MaxTime = None,
    seed: options.Seed = None,
    noise: options.NoiseFile = None,
    prepare: options.Prepare = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the gate run of each block. Default: none is kept.")
    ] = None,
) -> None:
    """Compare a revision with itself, and keep how far it seemed to differ.

    A case's largest usual difference, without rare outliers, is its noise on this machine: the gate lets smaller
    losses pass. A case whose noise is more than twice the margin can't pass any more. The code is identical, so
    every decision other than OK comes from noise; the table says how often that happened.
    """
    from harness import gate
    from harness.cli.gate_progress import follow
    from harness.report import gate as report

    asked = options.gate_request(
        base,
        scenarios or ["ci"],
        device=device,
        only=only,
        ops=ops,
        precision=precision,
        max_time=max_time,
        margin=margin,
        seed=seed,
        noise=noise,
        prepare=prepare,
    )
    runs: list[GateRun] = []
    with follow("stopped; the noise of the finished blocks is kept") as teller:
        for made in gate.calibrate(asked, blocks, teller):
            runs.append(made)
            teller.say(f"block {len(runs)} of {blocks}: {made.seconds:.0f} s")
            if output:
                report.write(made, output / f"block-{len(runs):02}")
    of_machine = (f.message for made in runs for f in made.findings if f.rule == "environment" and f.case is None)
    for message in dict.fromkeys(of_machine):
        typer.echo(f"warning: {message}", err=True)
    file, rows = gate.summary(runs, noise, asked.margin)
    _print(rows)
    for message in _warnings(rows):
        typer.echo(f"warning: {message}", err=True)
    typer.echo(f"kept in {file}", err=True)


def _warnings(rows: Sequence[CaseNoise]) -> Iterator[str]:
    """What the noise keeps the gate from saying, and what to do."""
    from harness import units
    from harness.gate import LEAST_BLOCKS

    if few := sum(row.margin.noise is None for row in rows):
        cases = "1 case has" if few == 1 else f"{few} cases have"
        yield f"{cases} fewer than {LEAST_BLOCKS} blocks and no measured noise yet; calibrate again, blocks add up"
    if noisy := [row for row in rows if row.margin.too_noisy]:
        worst, asked = noisy[0], units.percent(noisy[0].margin.asked, 2)
        most, noise = (units.percent(share, 2) for share in (worst.margin.most, worst.margin.noise or 0.0))
        yield (
            f"this machine is too noisy for {len(noisy)} of {len(rows)} cases: with a margin of {asked} a case can "
            f"pass only if its noise is {most} or less, and the noise of {worst.case.id} is {noise}; end other work "
            "on the machine, delete the file below and calibrate again, or use a larger --margin"
        )


def _print(rows: Sequence[CaseNoise]) -> None:
    """Print the cases, the noisiest first, then how all blocks were decided."""
    from harness.cli.console import open_console
    from harness.report import terminal
    from harness.report.tree import Column, Page, Table, text_column
    from harness.units import FINE_SHARE

    table = (
        text_column("case", (row.case.id for row in rows), code=True),
        Column("blocks", tuple(str(row.blocks) for row in rows)),
        Column("median", tuple(row.typical for row in rows), FINE_SHARE),
        Column("offset", tuple("unknown" if row.offset is None else row.offset for row in rows), FINE_SHARE),
        Column("noise", tuple("unknown" if row.margin.noise is None else row.margin.noise for row in rows), FINE_SHARE),
        text_column("decided", (_counted(row.outcomes) for row in rows)),
    )
    console = open_console()
    terminal.show(Page("", (Table(table),)), console)
    total = _counted(outcome for row in rows for outcome in row.outcomes)
    console.print(f"\ndecisions on identical code: {total or 'none'}", markup=False)
    console.print(_offsets(rows), markup=False)


def _counted(outcomes: Iterable[str]) -> str:
    """How often each outcome is there, the most frequent first: '9 ok, 1 inconclusive'."""
    return ", ".join(f"{count} {name}" for name, count in Counter(outcomes).most_common())


def _offsets(rows: Sequence[CaseNoise]) -> str:
    """What all pairs of a run share on this machine, and how often that alone makes identical code fail."""
    from harness import units

    known = [row.offset for row in rows if row.offset is not None]
    if not known:
        return "offsets, which all pairs of a run share: unknown yet"
    usual, most = (units.percent(share, 2) for share in (statistics.median(known), max(known)))
    chance = units.percent(min(1.0, sum(row.margin.chance for row in rows if not row.control)), 2)
    failing = units.percent(max((row.margin.failing for row in rows if not row.control), default=0.0), 2)
    return (
        f"offsets, which all pairs of a run share: a standard deviation of {usual} in the median case, {most} at most. "
        f"In a run of these {len(rows)} cases a case fails from a loss of its margin on, {failing} at most; identical "
        f"code fails by its offsets in {chance} of runs"
    )
