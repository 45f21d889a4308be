"""One measuring code for both sides: the working tree's, or another revision's, with the collection of each side.

A repository with the harness in it has two wings: the instrument, which measures, and the collection, which is
measured. If each side measured with its own instrument, a commit could make its numbers small instead of its kernels
fast. So a folder is made that has the instrument of one revision and the collection of another.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from harness import source
from harness.comments import without_comments
from harness.gate.worktree import Checkout
from harness.paths import COLLECTION

FOLDER = "measured"
_MEASURED = ("kernels", "scenarios", "pyproject.toml")
_SKIPPED = frozenset({*COLLECTION, "__pycache__", "_data"})
_CODE = frozenset({".py", ".c", ".cu", ".cuh", ".h"})


def with_instrument(code: Checkout, instrument: Path) -> Checkout:
    """The side, measured by the harness in the folder `instrument`; as it is if both instruments are the same."""
    if code.root is None or code.home is None or not any(_differing(code.root, instrument)):
        return code
    made = code.home / FOLDER
    shutil.rmtree(made, ignore_errors=True)
    (made / "harness").mkdir(parents=True)
    for place, wanted in ((instrument, False), (code.root, True)):
        for path in (place / "harness").iterdir():
            if (path.stem in COLLECTION) == wanted and path.name not in ("__pycache__", "_data"):
                _copy(path, made / "harness" / path.name)
    for name in _MEASURED:
        if (code.root / name).exists():
            _copy(code.root / name, made / name)
    digest = source.digest(code.plugins, made)
    return replace(code, root=made, own_root=code.root, code=replace(code.code, digest=digest))


def _copy(path: Path, target: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__", "_data"))
    else:
        shutil.copy2(path, target)


def changed(before: Path, now: Path, used: Mapping[str, str], inside: Path) -> list[str]:
    """Files of the instrument that a side used and that differ between the roots. inside: where the root lies."""
    differing = {str(inside / "harness" / name) for name in _differing(before, now)}
    return sorted(differing & used.keys())


def _differing(one: Path, other: Path) -> Iterator[str]:
    """Paths in the package of the instrument's files that say something else, or are missing on one side."""
    found = [{str(path.relative_to(root / "harness")) for path in _instrument(root)} for root in (one, other)]
    for name in sorted(found[0] | found[1]):
        files = [root / "harness" / name for root in (one, other)]
        contents = [file.read_bytes() if file.is_file() else None for file in files]
        # Nearly all files are the same byte by byte, and to leave out comments takes far longer than to compare.
        if contents[0] != contents[1] and _text(name, contents[0]) != _text(name, contents[1]):
            yield name


def _instrument(root: Path) -> Iterator[Path]:
    for path in (root / "harness").iterdir():
        if path.stem not in _SKIPPED:
            every = path.rglob("*") if path.is_dir() else [path]
            yield from (file for file in every if file.suffix in _CODE and file.is_file())


def _text(name: str, content: bytes | None) -> bytes | None:
    return None if content is None else without_comments(name, content)
