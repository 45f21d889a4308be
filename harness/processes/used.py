"""Which files of a folder this process uses: so the gate learns which code it measured on both sides.

Two sides that load one and the same file measure the same code there, whatever their revisions say.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from harness import paths

_OWN = Path(__file__).resolve().parents[1]
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class UsedFiles:
    """Files below `top` that this process has loaded as modules, and files that it opens from now on.

    Modules that were installed from `top` count too, wherever they lie. What lies in the folders of this Python, of the
    harness and of its cache doesn't count.
    """

    def __init__(self, top: Path) -> None:
        """Begin to listen. A process can't stop listening: make one object, in a process that will end soon."""
        self._top = top.resolve()
        self._opened: set[str] = set()
        sys.addaudithook(self._hear)

    def so_far(self) -> tuple[str, ...]:
        """The full paths, sorted."""
        modules = {
            name: os.path.realpath(file)
            for name, module in list(sys.modules.items())
            if isinstance(file := getattr(module, "__file__", None), str)
        }
        installed = {*_packages(self._top), *_installed_from(self._top)} - {"harness"}
        from_top = {
            file for name, file in modules.items() if name.partition(".")[0] in installed and not _standard(file)
        }
        heard = map(os.path.realpath, tuple(self._opened))
        below = {Path(file) for file in (*modules.values(), *heard) if file.startswith(f"{self._top}{os.sep}")}
        return tuple(sorted(from_top | {str(path) for path in below if self._counts(path)}))

    def _counts(self, path: Path) -> bool:
        # A repository may hold a virtual environment, or lie below a Python that was installed for all.
        pythons = [found for found in map(Path, (sys.prefix, sys.base_prefix)) if found.is_relative_to(self._top)]
        elsewhere = (_OWN, paths.data("kernels"), paths.data("scenarios"), paths.cache().resolve(), *pythons)
        return (
            path.is_file()
            and "__pycache__" not in path.parts
            and not _INSTALLED & {*path.parts}
            and not any(path.is_relative_to(folder) for folder in elsewhere)
        )

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook: called for everything that this process does, so it must be quick and never raise."""
        named = {"open": 0, "ctypes.dlopen": 0, "import": 1}.get(event)
        if named is None or not isinstance(arguments[named], str):
            return
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return  # what a process writes is no code of it
        self._opened.add(str(Path.cwd() / arguments[named]))


def _standard(file: str) -> bool:
    """Whether a file is of Python's own library."""
    found = Path(file)
    return found.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve()) and not _INSTALLED & {*found.parts}


def _packages(top: Path) -> Iterator[str]:
    """Names of the packages whose sources lie in the repository: at its top, or in a folder such as src."""
    for found in (*top.glob("*/__init__.py"), *top.glob("*/*/__init__.py")):
        if not (found.parents[1] / "__init__.py").is_file():
            yield found.parent.name


def _installed_from(top: Path) -> Iterator[str]:
    """Names of the modules of every distribution that pip installed from the repository, or from a wheel in it."""
    for distribution in importlib.metadata.distributions():
        try:
            url = urlparse(json.loads(distribution.read_text("direct_url.json") or "{}").get("url", ""))
        except ValueError:
            continue
        if url.scheme == "file" and Path(unquote(url.path)).resolve().is_relative_to(top):
            yield from {file.parts[0].partition(".")[0] for file in distribution.files or ()}
