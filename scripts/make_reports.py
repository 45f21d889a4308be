"""Write the reports of the committed runs again, with today's wording and today's claims.

A run stores the claims of its scenarios, so that its report needs no other file. What a text says is no measurement:
where a claim was written down wrongly, this script mends the stored one. It takes the claims, rows and source of the
scenario with the same name and op, and the metric that it plots. Measurements stay as they are;
`tests/report/test_reference.py` checks that pages and pictures show what is stored.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import report
from harness.ops import Catalogue, known_cases
from harness.scenario import load
from harness.scenario.definition import Definition

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "reports" / "h200"
FORMATS = ("markdown", "plots")
"""What is committed beside the records. Tables for other programs follow from the records: `harness report RUN`."""


def mended(header: dict[str, Any], today: dict[str, Definition]) -> dict[str, Any]:
    """The content of a run.json, with the claims, rows, source and plotted metric of today's scenarios."""
    return {**header, "scenarios": [_mended(stored, today.get(stored["name"])) for stored in header["scenarios"]]}


def _mended(stored: dict[str, Any], now: Definition | None) -> dict[str, Any]:
    if now is None or now.op != stored["op"]:
        return stored
    claims = [asdict(claim) for claim in now.claims]
    return {**stored, "claims": claims, "rows": list(now.rows), "source": now.source, "plot": now.plot}


def bundled() -> dict[str, Definition]:
    """Every bundled scenario by name."""
    return {scenario.name: scenario for scenario in load(sorted((ROOT / "scenarios").glob("*.yaml")), Catalogue())}


def main(folders: list[Path]) -> None:
    """Mend and render the runs in these folders."""
    today = bundled()
    for folder in folders:
        file = folder / "run.json"
        header = mended(json.loads(file.read_text(encoding="utf-8")), today)
        file.write_text(json.dumps(header, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        for old in folder.glob("plots/*"):
            old.unlink()
        report.write(known_cases.load(folder), folder, FORMATS)
        print(folder)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or sorted(file.parent for file in RUNS.glob("*/run.json")))
