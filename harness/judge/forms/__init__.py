"""The forms in which candidates come, one file a form, found by its name.

Each file offers SUMMARY; `recognises(asked, source)`, whether a candidate has the form; `sheet(asked, source)`, what is
known without running it; `surveyed(sheet)`, the sheet with what a process had to run for, which is not the candidate
where the reference is another file; and `op(sheet)`, the op with the candidate and torch's baselines as its variants.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, cast

from harness.discover import discover
from harness.errors import UsageError
from harness.judge.records import Asked, Sheet
from harness.judge.sources import Source
from harness.ops import Op


class Form(Protocol):
    """What the file of a form offers."""

    SUMMARY: str

    def recognises(self, asked: Asked, source: Source) -> bool: ...

    def sheet(self, asked: Asked, source: Source) -> Sheet: ...

    def surveyed(self, sheet: Sheet) -> Sheet: ...

    def op(self, sheet: Sheet) -> Op: ...


def all_forms() -> dict[str, Form]:
    """Every form by name."""
    found = discover("harness.judge.forms", ["SUMMARY", "recognises", "sheet", "surveyed", "op"])
    return {name: cast(Form, module) for name, module in found.items()}


def form_of(asked: Asked, source: Source) -> Form:
    """The form of a candidate. Raises UsageError for a file that has none, and for --op beside one that needs none."""
    known = all_forms()
    if asked.op and not (asked.function or asked.isolated or source.adds):
        alone = replace(asked, op="")
        if other := next((name for name, form in known.items() if form.recognises(alone, source)), None):
            raise UsageError(
                f"{source.file}: has the form '{other}', whose reference isn't an op",
                f"leave out --op {asked.op}; or name a function of the file by --function",
            )
    for form in known.values():
        if form.recognises(asked, source):
            return form
    allowed = "; ".join(form.SUMMARY for form in known.values())
    raise UsageError(f"{source.file}: has no form of a candidate that is known", f"allowed: {allowed}")
