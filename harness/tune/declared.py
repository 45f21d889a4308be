"""The plug-in of a search: each candidate as a variant of the op, declared through the public door, from a sheet.

So a candidate goes the way of every variant: it is checked, timed and checked again, in a process that may die.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from harness import store
from harness.model import Value
from harness.ops import Context, Launch, Variant, find

_SHEET = "candidates.json"
FILE = "candidates.py"
_TEXT = f'''"""Written by harness tune: plans as variants of an op."""

from pathlib import Path

from harness.tune.declared import declare

declare(Path(__file__).with_name("{_SHEET}"))
'''


@dataclass(frozen=True, slots=True)
class TriedPlans:
    """The candidates of a variant, by the names of their own variants."""

    op: str
    variant: str
    plans: dict[str, dict[str, Value]]


def name_of(variant: str, text: str) -> str:
    """The name of a candidate's variant."""
    return f"{variant}:{text}"


def write(sheet: TriedPlans, folder: Path) -> Path:
    """Write the sheet and the plug-in into a folder, and give the plug-in's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _SHEET).write_text(store.dump(sheet), encoding="utf-8")
    file = folder / FILE
    file.write_text(_TEXT, encoding="utf-8")
    return file


def declare(file: Path) -> None:
    """Add the variants of a sheet to its op."""
    sheet = store.parse(TriedPlans, file.read_text(encoding="utf-8"))
    op = find(sheet.op)
    tried = op.variants[sheet.variant]
    same = {each.name: getattr(tried, each.name) for each in fields(Variant) if each.name not in _OWN}
    for name, plan in sheet.plans.items():
        op.variant(name, f"{sheet.variant} with a plan that is tried", **same)(_with(tried, plan))


_OWN: Sequence[str] = ("name", "summary", "prepare", "tuning")


def _with(tried: Variant, plan: Mapping[str, Value]) -> Callable[[Context], Launch]:
    def prepare(ctx: Context) -> Launch:
        ctx.tried = plan
        launch: Any = tried.prepare(ctx)
        return launch  # type: ignore[no-any-return]

    return prepare
