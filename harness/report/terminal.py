"""Tables on a terminal, as wide as it is. Colour only underlines what the text says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness import units
from harness.compare import Verdict
from harness.model import FAILED, Ceilings, Difference, Machine, Result, Run
from harness.report import _ceilings, _claims, _facts, _sweep
from harness.report._columns import Column, columns, first_line
from harness.report._console import draw, fitting, headline, tell
from harness.report._frame import by_scenario, frame, sizes_of

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

_MOST_FAILURES = 10
_VERDICTS: dict[Verdict, str] = {"faster": "green", "slower": "red", "~": "", "missing": "yellow"}


def render(run: Run, console: Console) -> None:
    """A table a scenario, then what failed, what the warnings mean, and how many cases ended in which way.

    A scenario with a curve of variants has a table a dtype, and tells there what has no result.
    """
    claims = _claims.comparisons(run)
    told: set[str] = set()
    for scenario, rows in by_scenario(run, frame(run)):
        headline(console, scenario.title or scenario.name)
        sweep = _sweep.of(scenario, rows, sizes_of(run))
        if sweep:
            _swept(sweep, console)
            told.update(case for case, status in zip(rows["case"], rows["status"], strict=True) if status not in FAILED)
        else:
            _cases(rows, scenario.baseline, console)
        for claim in claims[scenario.name]:
            tell(console, f"{claim.row} claims {claim.claimed} ({claim.what}, {claim.hardware}): here {claim.measured}")
    console.print()
    _failures([r for r in run.results if r.status != "ok" and r.case.id not in told], console)
    for notice in _facts.notices(run):
        advice = f"; {notice.warning.advice}" if notice.warning.advice else ""
        text = f"{notice.warning.code} ({notice.cases}): {notice.example}: {notice.warning.message}{advice}"
        tell(console, f"warning {text}", "yellow")
    if processes := _facts.processes(run):
        tell(console, processes)
    if run.ceilings and run.ceilings.peak:
        drift = _ceilings.drift(run.ceilings)
        tell(console, f"peak: a copy at {units.rate(run.ceilings.peak)}" + (f", {drift} at the end" if drift else ""))
    tell(console, f"{run.header.machine.name}: {_facts.outcome(run)}", "bold")


def _cases(rows: pd.DataFrame, baseline: str, console: Console) -> None:
    styles = ["" if status == "ok" else "red" if status in FAILED else "yellow" for status in rows["status"]]
    draw([column for column in columns(rows, baseline) if column.head != "error"], console, styles)


def _swept(sweep: _sweep.Sweep, console: Console) -> None:
    for number, table in enumerate(sweep.tables):
        if number:
            console.print()
        tell(console, table.caption)
        draw(table.columns, console)
        if hidden := [c.head for c in table.columns if c not in fitting(table.columns, console.width)]:
            tell(console, f"too wide to show: {', '.join(hidden)}")
    console.print()
    for stop in sweep.stops:
        where = f"{stop.variant} ({', '.join(stop.dtypes)}): no result at {sweep.over} = {stop.without}"
        tell(console, f"{where}: {stop.reason}", "yellow")


def render_ceilings(machine: Machine, ceilings: Ceilings, console: Console) -> None:
    """Best bandwidth in GB/s by bytes moved and by read:write, and the figures that matter most."""
    headline(console, f"Memory of {machine.name}: best GB/s by bytes moved and read:write")
    draw(_ceilings.columns(ceilings), console)
    console.print()
    for name, value in _ceilings.summary(ceilings):
        tell(console, f"{name}: {value}")


def render_differences(differences: Sequence[Difference], console: Console) -> None:
    """Both times of each case, their ratio (reference over run) and its 95% interval, and the verdict."""
    times = [time for d in differences for time in (d.reference, d.run) if time is not None]
    scale, unit = units.time_scale(times)

    def cell(time: float | None) -> str:
        return "" if time is None else units.significant(time / scale)

    made = [
        Column("case", tuple(d.case.id for d in differences), right=False),
        Column(f"reference ({unit})", tuple(cell(d.reference) for d in differences)),
        Column(f"run ({unit})", tuple(cell(d.run) for d in differences)),
        Column("ratio", tuple("" if d.ratio is None else f"{d.ratio:.3f}x" for d in differences)),
        Column("95% interval", tuple(map(_interval, differences)), keep=3),
        Column("verdict", tuple(d.verdict for d in differences), right=False),
        Column("samples", tuple(str(d.samples or "") for d in differences), keep=2),
    ]
    draw(made, console, [_VERDICTS[d.verdict] for d in differences])
    console.print()
    for note, cases in _by_note(differences).items():
        tell(console, f"{note}: {cases[0]}" + (f" and {len(cases) - 1} more" if len(cases) > 1 else ""))
    verdicts = Counter(d.verdict for d in differences)
    counts = [f"{verdicts[name]} {name}" for name in _VERDICTS if verdicts[name]]
    tell(console, ", ".join(counts) or "no case in either run", "bold")


def _by_note(differences: Sequence[Difference]) -> dict[str, list[str]]:
    cases: dict[str, list[str]] = defaultdict(list)
    for difference in differences:
        if difference.note:
            cases[difference.note].append(difference.case.id)
    return cases


def _interval(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return ""
    return f"{difference.low:.3f} to {difference.high:.3f}"


def _failures(results: Sequence[Result], console: Console) -> None:
    """What each case that has no time says of it; the first few."""
    for result in results[:_MOST_FAILURES]:
        reason = first_line(result.error or "")
        style = "red" if result.status in FAILED else "yellow"
        tell(console, f"{result.status} {result.case.id}" + (f": {reason}" if reason else ""), style)
    if len(results) > _MOST_FAILURES:
        tell(console, f"and {len(results) - _MOST_FAILURES} more without a time, see the tables")
