"""Runs beside a baseline as a page, as lines, and as text in other formats."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness import units
from harness.differences import Compared, Verdict
from harness.metrics import METRICS
from harness.model import Difference
from harness.report.formats.csv import defused
from harness.report.formats.markdown import render
from harness.report.tree import Cell, Column, Kind, Note, Page, Range, Section, Table, or_nothing, text_column

if TYPE_CHECKING:
    import pandas as pd

_VERDICTS: dict[Verdict, Kind] = {"faster": "good", "slower": "failure", "~": "", "missing": "warning"}

UNITS = {"reference": "s", "time": "s", "ratio": "", "low": "", "high": ""}
"""Units of the figures of `records`; '' for a number without one."""


def page(made: Compared) -> Page:
    """A row a case: both times, their ratio (baseline over run) with its 95% interval, and the verdict, run by run.

    The last row has the geometric mean of the ratios of each run.
    """
    single = len(made.differences) == 1
    columns = _of_one(made) if single else _of_several(made)
    last: list[Kind] = ["strong"] if _has_mean(made) else []
    table = Table(tuple(columns), kinds=(*map(_worst, _rows(made)), *last))
    notes: list[Note] = []
    for name, found in zip(made.names, made.differences, strict=True):
        told = "" if single else f"{name}: "
        notes += [
            Note(f"{told}{note}: {cases[0]}" + (f" and {len(cases) - 1} more" if len(cases) > 1 else ""))
            for note, cases in _by_note(found).items()
        ]
        notes.append(Note(f"{told}{_outcome(found)}", "strong"))
    return Page("", (table, Section("", (*notes, *map(Note, made.notes)))))


def records(made: Compared) -> Iterator[dict[str, Any]]:
    """A record for each case and run: names, times in seconds, ratio with its interval, verdict, samples, note."""
    for name, found in zip(made.names, made.differences, strict=True):
        for each in found:
            yield {
                "case": each.case.id,
                "op": each.case.op,
                "variant": each.case.variant,
                "dtype": each.case.dtype,
                "shape": each.case.shape_text,
                "baseline": made.baseline,
                "run": name,
                "reference": each.reference,
                "time": each.run,
                "ratio": each.ratio,
                "low": each.low,
                "high": each.high,
                "verdict": each.verdict,
                "samples": each.samples,
                "note": each.note,
            }


def frame(made: Compared) -> pd.DataFrame:
    """The records as a table, with NaN where a number isn't known."""
    import pandas as pd

    table = pd.DataFrame(list(records(made)))
    return table.astype(dict.fromkeys(UNITS, float)) if len(table) else table


def _json(made: Compared) -> str:
    means = {name: made.geomean(name) for name in made.names}
    whole = {
        "baseline": made.baseline,
        "differences": list(records(made)),
        "geomean": means,
        "notes": list(made.notes),
    }
    return json.dumps(whole, indent=2)


def _csv(made: Compared) -> str:
    table = frame(made).rename(columns=defused)
    for column in table.select_dtypes(exclude="number"):
        table[column] = table[column].map(defused)
    return table.to_csv(index=False, float_format="%.12g", lineterminator="\n").rstrip("\n")


def _markdown(made: Compared) -> str:
    return render(replace(page(made), title=f"Compared with {made.baseline}"))


FORMATS: Mapping[str, Callable[[Compared], str]] = {"json": _json, "csv": _csv, "md": _markdown}
"""What a comparison can be written as, besides a table on a console."""


def _of_one(made: Compared) -> Iterator[Column]:
    """The columns of two runs."""
    [found], [name] = made.differences, made.names
    unit, foot = METRICS["time"].unit, ("",) * _has_mean(made)
    yield text_column("case", _with_mean(made, (d.case.id for d in found)), code=True)
    yield Column("reference ({unit})", (*(or_nothing(d.reference) for d in found), *foot), unit)
    yield Column("run ({unit})", (*(or_nothing(d.run) for d in found), *foot), unit)
    yield _ratios(made, name, "ratio")
    yield Column("95% interval", (*map(_interval, found), *foot), units.FINE_RATIO, keep=3)
    yield text_column("verdict", (*(d.verdict for d in found), *foot))
    yield Column("samples", (*(str(d.samples or "") for d in found), *foot), keep=2)


def _of_several(made: Compared) -> Iterator[Column]:
    """The columns of several runs: the baseline's time, and time, ratio and verdict of each run."""
    unit, foot = METRICS["time"].unit, ("",) * _has_mean(made)
    times = [next((d.reference for d in row if d.reference is not None), None) for row in _rows(made)]
    yield text_column("case", _with_mean(made, (row[0].case.id for row in _rows(made))), code=True)
    yield Column(_head(made.baseline, " ({unit})"), (*map(or_nothing, times), *foot), unit)
    for name, found in zip(made.names, made.differences, strict=True):
        yield Column(_head(name, " ({unit})"), (*(or_nothing(d.run) for d in found), *foot), unit, keep=3)
        yield _ratios(made, name, _head(name, " ratio"))
        yield text_column(_head(name, " verdict"), (*(d.verdict for d in found), *foot), keep=4)


def _ratios(made: Compared, name: str, head: str) -> Column:
    found, mean = made.of(name), made.geomean(name)
    foot = (or_nothing(mean),) * _has_mean(made)
    return Column(head, (*(or_nothing(d.ratio) for d in found), *foot), units.FINE_RATIO)


def _with_mean(made: Compared, ids: Iterable[str]) -> tuple[str, ...]:
    return (*ids, *("geomean",) * _has_mean(made))


def _has_mean(made: Compared) -> bool:
    return any(made.geomean(name) for name in made.names)


def _rows(made: Compared) -> list[tuple[Difference, ...]]:
    return list(zip(*made.differences, strict=True))


def _head(name: str, rest: str) -> str:
    """The head of a run's column. In a head, braces are for units."""
    return name.replace("{", "(").replace("}", ")") + rest


def _worst(row: Sequence[Difference]) -> Kind:
    kinds = {_VERDICTS[each.verdict] for each in row}
    order: tuple[Kind, ...] = ("failure", "warning", "good", "")
    return next(kind for kind in order if kind in kinds)


def _outcome(found: Sequence[Difference]) -> str:
    verdicts = Counter(d.verdict for d in found)
    counts = [f"{verdicts[name]} {name.replace('~', 'within noise (~)')}" for name in _VERDICTS if verdicts[name]]
    return ", ".join(counts) or "no case in either run"


def _interval(difference: Difference) -> Cell:
    if difference.low is None or difference.high is None:
        return ""
    return Range(difference.low, difference.high)


def _by_note(found: Sequence[Difference]) -> dict[str, list[str]]:
    cases: dict[str, list[str]] = defaultdict(list)
    for difference in found:
        if difference.note:
            cases[difference.note].append(difference.case.id)
    return cases
