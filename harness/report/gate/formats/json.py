"""Everything that was measured and decided, for other programs."""

from __future__ import annotations

from pathlib import Path

from harness import store
from harness.gate.records import GateRun


def write(run: GateRun, folder: Path) -> list[Path]:
    """Write gate.json, which `store.parse(GateRun, text)` reads."""
    path = folder / "gate.json"
    path.write_text(f"{store.dump(run, indent=2)}\n", encoding="utf-8")
    return [path]
