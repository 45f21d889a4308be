"""The plug-in of a search: each candidate as a variant of the op, declared through the public door, from a sheet.

So a candidate goes the way of every variant: it is checked, timed and checked again, in a process that may die.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from harness import store
from harness.errors import UsageError
from harness.model import Value
from harness.ops import Context, Launch, Variant, find
from harness.store import files
from harness.tune.candidates import Candidate

_NOT_IN_NAMES = re.compile(r"[^\w.+:-]")  # as the door has it for names of variants
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
    """The name of the variant of a plan that is written so.

    What names can't have, as the / of a value 'a/b', is '_' there; a hash of the text keeps the names of two texts
    different.
    """
    safe = _NOT_IN_NAMES.sub("_", text)
    return f"{variant}:{safe}" if safe == text else f"{variant}:{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def sheet_of(op: str, variant: str, candidates: Iterable[Candidate]) -> TriedPlans:
    """The sheet of the candidates of all cases. Raises UsageError for two different plans that are written alike."""
    plans: dict[str, dict[str, Value]] = {}
    for each in candidates:
        name = name_of(variant, each.text)
        if plans.setdefault(name, each.plan) != each.plan:
            raise UsageError(
                f"tuning of variant '{variant}' of op '{op}': two plans are written '{each.text}'",
                "write each value of a parameter in one way at all sizes: 8 or '8'",
            )
    return TriedPlans(op, variant, plans)


def write(sheet: TriedPlans, folder: Path) -> Path:
    """Write the sheet and the plug-in into a folder, and give the plug-in's path.

    Raises UnwritableError if they can't be written.
    """
    file = files.room(folder.parent, folder.name) / FILE
    files.replace(folder / _SHEET, store.dump(sheet))
    files.replace(file, _TEXT)
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
