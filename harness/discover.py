"""Plug-in folders and entry points: how files and installed packages that offer something are found.

Each file of a plug-in folder offers one thing, such as an op or a format, and is found by its name. A file whose name
starts with `_` is a helper. Every other file must define certain names. A file that lacks one is an error that names
the file, so that nothing is left out silently.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from glob import glob
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import trial
from harness.errors import UsageError, without_exit

_DISTRIBUTION = "gpu-bench-harness"
_NESTED = "[!_]*/[!_]*.py"
_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def discover(package: str, offers: Sequence[str], nested: bool = False) -> dict[str, ModuleType]:
    """Modules of a package by the name of their file, sorted.

    offers: names that each module must have. nested: look in the folders of the package, not in the package itself.
    Raises UsageError for a file that lacks one of `offers`, and for two files of one name.
    """
    found: dict[str, ModuleType] = {}
    for name in sorted(_modules(package, nested)):
        with without_exit(name):
            module = importlib.import_module(name)
        if missing := [offer for offer in offers if not hasattr(module, offer)]:
            raise UsageError(
                f"{module.__file__}: defines no {' and no '.join(missing)}, which every file in {package} must have",
                "add it, or start the file's name with '_' if it is a helper",
            )
        stem = name.rpartition(".")[2]
        if stem in found:
            raise UsageError(f"{module.__file__}: has the name of {found[stem].__file__}", "rename one of the two")
        found[stem] = module
    return dict(sorted(found.items()))


def _modules(package: str, nested: bool) -> Iterator[str]:
    home = Path(importlib.import_module(package).__file__ or "").parent
    # Path.glob takes four times as long, and every process does this.
    for file in glob(_NESTED if nested else "[!_]*.py", root_dir=home):  # noqa: PTH207
        yield f"{package}.{file.removesuffix('.py').replace(os.sep, '.')}"


def names(package: str) -> list[str]:
    """Names of what a plug-in folder of ours offers and of the entry points of its group, none of which is imported."""
    folder = Path(__file__).parent.joinpath(*package.split(".")[1:])
    files = [file.stem for file in folder.glob("[!_]*.py")]
    return sorted({*files, *(entry.name for entry in entry_points(package))})


def names_of_files(group: str) -> list[str] | None:
    """Names that the files `<family>/<name>.py` give to what our own entry points of a group bring, none imported.

    None where another package has an entry point of the group: only its code tells what it brings.
    """
    found: list[str] = []
    for entry in entry_points(group):
        if is_foreign(entry):
            return None
        package = importlib.util.find_spec(entry.module)
        folders = map(Path, package.submodule_search_locations or () if package else ())
        found += sorted(file.stem for folder in folders for file in folder.glob(_NESTED))
    return found


def entry_points(group: str) -> list[EntryPoint]:
    """Entry points of a group: the harness's own whose modules are there, then the entry points of other packages.

    A checkout's own entry points stand in its pyproject.toml, since an installation may be older, or of another
    checkout. What they name may have been left out, as the collection can be.
    """
    found = list(installed_entry_points(group=group))
    others = [entry for entry in found if entry.dist is None or _name_of(entry.dist) != _DISTRIBUTION]
    declared = _of_checkout()
    if declared is None:
        own = [entry for entry in found if entry not in others]
    else:
        own = [EntryPoint(name, value, group) for name, value in declared.get(group, {}).items()]
    return [*filter(_is_there, own), *others]


def installed_entry_points(group: str) -> Sequence[EntryPoint]:
    """Entry points of a group in all installed packages. To read the packages' files takes milliseconds.

    So they are read again only after a change of sys.path, or of what lies in its folders.
    """
    return _read(group, tuple(sys.path), tuple(map(_changed, sys.path)))


@cache
def _read(group: str, _path: tuple[str, ...], _changes: tuple[int, ...]) -> tuple[EntryPoint, ...]:
    return tuple(metadata.entry_points(group=group))


@cache
def _name_of(distribution: metadata.Distribution) -> str:
    """The name of an installed package, for which all that the package says of itself is parsed."""
    return distribution.name


def _changed(folder: str) -> int:
    """When something was last added to or removed from a folder, in nanoseconds; 0 if the folder isn't there."""
    try:
        return Path(folder or ".").stat().st_mtime_ns
    except OSError:
        return 0


@cache
def _of_checkout() -> dict[str, dict[str, str]] | None:
    """The entry points that the checkout around this package declares, by group; None if there is no checkout."""
    if not _PROJECT.is_file():
        return None
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8")).get("project", {})
    if project.get("name") != _DISTRIBUTION:
        return None
    declared: dict[str, dict[str, str]] = project.get("entry-points", {})
    return declared


def load(entry: EntryPoint) -> Any:
    """What an entry point names. A command loads code of another package in a process of its own first.

    Raises what the code raises, and UsageError, which names the entry point, where that process didn't end well.
    """
    if is_foreign(entry):
        trial.first(f"entry point '{entry.name}' ({entry.value})", entry.load)
    return entry.load()


def is_foreign(entry: EntryPoint) -> bool:
    """Whether an entry point names code of another package."""
    return entry.module.partition(".")[0] != __package__


def _is_there(entry: EntryPoint) -> bool:
    try:
        return importlib.util.find_spec(entry.module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
