"""What is written about decisions on identical code."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def script() -> ModuleType:
    file = Path(__file__).parents[2] / "scripts" / "gate_proof.py"
    spec = importlib.util.spec_from_file_location("gate_proof", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gate_proof"] = module
    spec.loader.exec_module(module)
    return module


SCRIPT = script()


def row(block: int, case: str, change: float, outcome: str = "ok", stage: str = "screen") -> Any:
    seconds = 60.0 + block
    return SCRIPT.Row(block, block, case, change, change - 0.001, change + 0.001, stage, 4, outcome, 0, seconds)


def test_what_was_found_is_kept_and_told(tmp_path: Path) -> None:
    rows = [
        row(1, "copy/memcpy", 0.0002),
        row(1, "prelu/tuned", -0.0011),
        row(2, "copy/memcpy", -0.0004),
        row(2, "prelu/tuned", -0.0061, "inconclusive", "confirm"),
    ]
    SCRIPT.save(rows, tmp_path, "A GPU")
    assert SCRIPT.known(tmp_path / "base_against_base.csv") == rows
    page = (tmp_path / "base_against_base.md").read_text()
    assert "A GPU. 4 decisions on identical code in 2 gate runs: 3 ok, 1 inconclusive.\n0 failed." in page
    assert "Exit codes: 0 in 2 runs. The margin is 1%. A run took 61 to 62 s, 62 s in the median." in page
    assert "| `copy/memcpy` | 2 | 0.03% | -0.04% | 0 | 2 ok |" in page
    assert "| `prelu/tuned` | 2 | 0.36% | -0.61% | 1 | 1 ok, 1 inconclusive |" in page


def test_nothing_is_known_at_first(tmp_path: Path) -> None:
    assert SCRIPT.known(tmp_path / "base_against_base.csv") == []
