"""Runs of the plug-in op `fault`: its plug-ins, and scenarios with some of its variants."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAULTS, SMALL, LIMITS = (f"--ops={ROOT / 'tests' / 'plugins' / name}.py" for name in ("faults", "small", "limited"))
PLUGINS = [FAULTS, SMALL]
LIMITED = [*PLUGINS, LIMITS]
HARNESS = [sys.executable, "-m", "harness"]
SCENARIO = """
title: Copies
op: fault
shapes: {sizes}
dtypes: [float32]
variants: {variants}
baseline: {first}
timing: {{max_time: 0.02, precision: 0.5, timeout: 60}}
"""


def write_scenario(file: Path, sizes: list[int], variants: list[str]) -> Path:
    shapes = json.dumps([{"N": size} for size in sizes])
    file.write_text(SCENARIO.format(sizes=shapes, variants=json.dumps(variants), first=variants[0]))
    return file
