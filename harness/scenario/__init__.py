"""Scenarios: YAML files that say what to measure, and the list of cases that is made from them.

find() turns names into files, load() checks the files against the ops, plan() selects and orders the cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.ops import Op
from harness.scenario.definition import Definition, Setting
from harness.scenario.finding import Overview, find, overview
from harness.scenario.planning import Plan, Selection, plan

__all__ = ["Definition", "Overview", "Plan", "Selection", "Setting", "find", "json_schema", "load", "overview", "plan"]

# pydantic is imported only where it is needed: it would double the time that `harness list` takes.


def load(paths: Sequence[Path], catalogue: Mapping[str, Op]) -> tuple[Definition, ...]:
    """The scenarios in the files at `paths`. Raises InputError with all problems of all files."""
    from harness.scenario import checks

    return checks.load(paths, catalogue)


def json_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file, for editors."""
    from harness.scenario import schema

    return schema.json_schema()
