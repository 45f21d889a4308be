"""Plug-in folders: each of their files offers one thing, such as an op or a format, and is found by its name.

A file whose name starts with `_` is a helper. Every other file must define certain names. A file that lacks one is an
error that names the file, so that nothing is left out silently.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from harness.errors import UsageError, without_exit


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
    for file in home.glob("[!_]*/[!_]*.py" if nested else "[!_]*.py"):
        inside = file.relative_to(home).with_suffix("").parts
        yield ".".join((package, *inside))
