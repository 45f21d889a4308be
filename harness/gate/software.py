"""Files that say which software is installed: constraints, requirements, lock files, and what a project depends on."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

_FILES = (
    "*constraints*.txt", "*constraints*.in", "*requirements*.txt", "*requirements*.in", "requirements/*.txt",
    "requirements/*.in", "*.lock", "*.lockb", "*-lock.json", "*conda-lock*.yml", "environment*.yml",
    "environment*.yaml", "pylock*.toml", "pixi.toml", "Pipfile", "Dockerfile*", "*.dockerfile", "Containerfile*",
)  # fmt: skip
_PROJECT = "pyproject.toml"
_DEPENDS = (
    ("project", "dependencies"), ("project", "optional-dependencies"), ("project", "requires-python"),
    ("build-system", "requires"), ("dependency-groups",), ("tool", "uv"), ("tool", "poetry"), ("tool", "pdm"),
)  # fmt: skip


def changed(files: Iterable[str], base: Path, now: Path) -> list[str]:
    """Those of the changed files by which other software would be installed. base, now: the folders of both sides."""
    return [file for file in files if _names_software(file) or _depends_otherwise(file, base, now)]


def differing(base: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Which versions the two sides ran with where they aren't the same, one text each. Software is told by name.

    A side that tells nothing has an earlier harness.
    """
    for name in sorted(base.keys() | now.keys()) if base and now else ():
        if base.get(name) != now.get(name):
            yield f"{name} {base.get(name, 'none')}, now {now.get(name, 'none')}"


def _names_software(file: str) -> bool:
    path = PurePosixPath(file)
    names = (path.name, "/".join(path.parts[-2:]))
    return any(fnmatchcase(name, pattern) for name in names for pattern in _FILES)


def _depends_otherwise(file: str, base: Path, now: Path) -> bool:
    return PurePosixPath(file).name == _PROJECT and _needs(base / file) != _needs(now / file)


def _needs(file: Path) -> list[Any]:
    """What a project says that it needs; nothing where there is no such file, or it can't be read."""
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [_at(project, keys) for keys in _DEPENDS]


def _at(table: Any, keys: Iterable[str]) -> Any:
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table
