"""Gives a forked process the modules of the harness that the server has loaded, where it would load the same files.

Modules of the harness take half a second to load, and most processes that tests start do nothing else that takes long.
A process may be of another harness, as the base of a gate is. So `harness` itself is loaded anew in each process; its
folder tells whether the modules below it are the loaded ones.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import _lru_cache_wrapper
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

NAMES = (
    "harness.processes.child",
    "harness.ops",
    "harness.cli",
    "harness.scenario.checks",
    "harness.runner",
    "harness.report.build",
    "harness.report.charts",
    "harness.report.formats.plots",
    "harness.report.web.document",
)
"""What is loaded, one after the other. A process gets what was loaded up to what it asks for, so those that measure,
which look through all modules of the harness again and again, come first."""


def forget(modules: Iterable[ModuleType]) -> None:
    """Clear what functions of the modules have cached: it may depend on variables, paths, the working folder."""
    for module in modules:
        classes = [kind for kind in vars(module).values() if isinstance(kind, type)]
        for function in (function for space in (module, *classes) for function in vars(space).values()):
            if isinstance(function, _lru_cache_wrapper):
                function.cache_clear()


def loaded(name: str) -> dict[str, ModuleType]:
    """Load a module of the harness, and tell what was loaded with it."""
    before = set(sys.modules)
    importlib.import_module(name)
    if name == "harness.ops":
        sys.modules[name].Catalogue()
    return {name: sys.modules[name] for name in set(sys.modules) - before if name.startswith("harness.")}


def read(folder: Path, source: ModuleType) -> None:
    """Take what is hashed of most ops, without comments, and what it imports: it depends on nothing but the files.

    A process that hashes the code of an op would parse a hundred files, for half a second.
    """
    source.code("", folder / "collection" / "ops" / "rows" / "softmax.py")


def warm() -> None:
    """Draw a picture and colour sources, for fonts and regular expressions that are made at the first time."""
    canvas = sys.modules["harness.report.canvas"]
    with canvas.canvas(1.0, "") as (figure, _):
        canvas.save(figure, Path(os.devnull))
    for name in ("a.cu", "a.py"):
        sys.modules["harness.report.web.sources"].highlighted(name, "x")


class Preloaded(MetaPathFinder, Loader):
    """Finds modules of the harness among all that this process, or the process it is forked from, has loaded."""

    def __init__(self) -> None:
        """Load the harness that is installed, with all ops. Nothing is found if it can't be loaded."""
        self._groups: list[dict[str, ModuleType]] = []
        self._modules: dict[str, ModuleType] = {}
        with suppress(Exception):  # the process that needs it will say so
            groups = [loaded(name) for name in NAMES]
            warm()
            self._folder = str(Path(sys.modules["harness"].__file__ or "").parent)
            self._groups = groups
            self._modules = {name: module for group in self._groups for name, module in group.items()}
            forget(self._modules.values())
            read(Path(self._folder), self._modules["harness.source"])
        for name in [name for name in sys.modules if name.partition(".")[0] == "harness"]:
            del sys.modules[name]

    def install(self, run: Iterable[str]) -> None:
        """Find modules from now on, except modules to `run` as scripts, which start with new code."""
        for name in run:
            self._modules.pop(name, None)
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The loaded module, if its package lies in the folder of the loaded harness."""
        if name not in self._modules or self._folder not in sys.modules["harness"].__path__:
            return None
        # All at once: what looks for a module in sys.modules, such as pydantic, doesn't import it.
        for group in self._groups:
            for other in group.keys() & self._modules.keys():
                parent, _, last = other.rpartition(".")
                if parent == "harness":
                    setattr(sys.modules[parent], last, group[other])
                if other != name:
                    sys.modules.setdefault(other, group[other])
            if name in group:
                break
        spec = spec_from_loader(name, self)
        if spec and hasattr(self._modules[name], "__path__"):
            spec.submodule_search_locations = list(self._modules[name].__path__)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module as it was loaded."""
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: the module has run."""
