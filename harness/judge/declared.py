"""The plug-in of a candidate: an op with the candidate as a variant, declared through the public door, from its sheet.

The plug-in's file runs no code of the candidate where it is loaded: that happens when the variant is prepared, in a
process that may die.
"""

from __future__ import annotations

from pathlib import Path

from harness import intact, store
from harness.judge.forms import all_forms
from harness.judge.records import SHEET, Sheet
from harness.ops import Op

FILE = "judged.py"
_TEXT = '''"""Written by harness judge: the candidate as a variant of an op."""

from pathlib import Path

from harness.judge.declared import op

OP = op(Path(__file__).with_name("{sheet}"))
'''


def write(sheet: Sheet, folder: Path) -> Path:
    """Write the sheet and the plug-in into a folder, and give the plug-in's path."""
    (folder / SHEET).write_text(store.dump(sheet), encoding="utf-8")
    file = folder / FILE
    file.write_text(_TEXT.format(sheet=SHEET), encoding="utf-8")
    return file


def op(file: Path) -> Op:
    """The op that a sheet describes."""
    sheet = store.parse(Sheet, file.read_text(encoding="utf-8"))
    made = all_forms()[sheet.form].op(sheet)
    intact.remember()  # also the modules that this has loaded, before a candidate is
    return made
