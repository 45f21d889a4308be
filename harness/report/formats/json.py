"""Everything for other programs: the header, a result for each case with every metric by name, what tools found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from json import dumps, loads
from pathlib import Path
from typing import Any

from harness.model import SCHEMA, Run

SUMMARY = "results.json: header, results and what tools found, SI units, for other programs"


def write(run: Run, folder: Path, notes: Sequence[str] = ()) -> list[Path]:
    """Write results.json."""
    path = folder / "results.json"
    path.write_text(f"{text(run, notes)}\n", encoding="utf-8")
    return [path]


def text(run: Run, notes: Sequence[str] = ()) -> str:
    """The run as JSON: schema, header (as in run.json), results, attachments, and notes.

    A result has the keys of results.csv; null stands for what isn't known. A case of several scenarios has one result:
    the result of the first scenario.
    """
    # A listing of formats must stay instant, and the store loads pydantic.
    from harness import store
    from harness.report.frame import records

    results: dict[str, dict[str, Any]] = {}
    for record in records(run):
        results.setdefault(record["case"], {key: _plain(value) for key, value in record.items()})
    whole = {
        "schema": SCHEMA,
        "header": loads(store.dump(run.header)),
        "results": list(results.values()),
        "attachments": [loads(store.dump(attachment)) for attachment in run.attachments],
        "notes": [*run.losses, *notes],
    }
    return dumps(whole, indent=2)


def _plain(value: Any) -> Any:
    """The value, or null for a number that JSON can't hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
