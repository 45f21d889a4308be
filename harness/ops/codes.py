"""The code behind the numbers of ops and their variants."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness import source
from harness.model import Code
from harness.ops.sheet import Op

Codes = dict[tuple[str, str], Code]


def codes(ops: Iterable[Op]) -> Codes:
    """The code of each variant, by the names of op and variant. It covers the plug-in that adds the variant, too."""
    known: dict[tuple[Path, ...], Code] = {}
    found: Codes = {}
    for op in ops:
        for name in op.variants if op.file else ():
            files = op.files_of(name)
            if files not in known:
                known[files] = source.code(op.name, *files)
            found[op.name, name] = known[files]
    return found
