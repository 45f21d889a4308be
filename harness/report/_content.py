"""What the page of a run shows, for its template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.model import Run
from harness.report import _ceilings, _claims, _facts, _figures, _sweep
from harness.report._columns import Column, columns
from harness.report._frame import by_scenario, frame, sizes_of


def content(run: Run) -> dict[str, Any]:
    """The template's variables."""
    figures, left_out = _figures.plan(run)
    return {
        "run": run,
        "title": ", ".join(scenario.name for scenario in run.header.scenarios) or run.header.name,
        "outcome": _facts.outcome(run),
        "processes": _facts.processes(run),
        "unmeasured": _facts.unmeasured(run),
        "sections": list(_sections(run, figures)),
        "left_out": left_out,
        "ceilings": _ceilings.columns(run.ceilings) if run.ceilings else [],
        "summary": _ceilings.summary(run.ceilings) if run.ceilings else [],
        "notices": _facts.notices(run),
        "machine": _facts.machine(run.header.machine),
        "command": _facts.command(run),
        "provenance": _facts.provenance(run),
    }


def _sections(run: Run, figures: list[_figures.Figure]) -> Iterator[dict[str, Any]]:
    claims = _claims.comparisons(run)
    for scenario, rows in by_scenario(run, frame(run)):
        sweep = _sweep.of(scenario, rows, sizes_of(run), best="**{}**")
        table = columns(rows, scenario.baseline)
        yield {
            "scenario": scenario,
            "origin": _facts.origin(scenario),
            # The reasons are told with the stops.
            "table": [column for column in table if not (sweep and column.head == "error")],
            "cases": len(rows),
            "sweep": sweep,
            "stops": _sweep.stop_columns(sweep.over, sweep.stops) if sweep and sweep.stops else [],
            "figures": [figure for figure in figures if figure.scenario == scenario.name],
            "claims": _claim_columns(claims[scenario.name]),
        }


def _claim_columns(comparisons: list[_claims.Comparison]) -> list[Column]:
    made = [
        Column("row", tuple(c.row for c in comparisons), right=False),
        Column("what", tuple(c.what for c in comparisons), right=False),
        Column("claimed", tuple(c.claimed for c in comparisons)),
        Column("on", tuple(c.hardware for c in comparisons), right=False),
        Column("measured here", tuple(c.measured for c in comparisons), right=False),
        Column("in the text's words", tuple(c.text for c in comparisons), right=False),
    ]
    return [column for column in made if any(column.cells)]
