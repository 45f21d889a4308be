"""Everything that was measured and decided, for other programs."""

from __future__ import annotations

from pathlib import Path

from harness import store
from harness.gate.records import GateRun


def write(run: GateRun, folder: Path) -> list[Path]:
    """Write gate.json, which `store.parse(GateRun, text)` reads."""
    path = folder / "gate.json"
    store.write(run, path, indent=2)
    return [path]
