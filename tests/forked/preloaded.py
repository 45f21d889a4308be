"""Gives a forked process the modules of the harness that the server has loaded, where it would load the same files.

Modules of the harness take half a second to load, and most processes that tests start do nothing else that takes long.
A process may be of another harness, as the base of a gate is. So `harness` itself is loaded anew in each process; its
folder tells whether the modules below it are the loaded ones.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import _lru_cache_wrapper
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

NAMES = ("harness.cli", "harness.ops", "harness.processes.child", "harness.report", "harness.report.formats.plots")


def forget(modules: Iterable[ModuleType]) -> None:
    """Clear what functions of the modules have cached: it may depend on variables, paths, the working folder."""
    for module in modules:
        classes = [kind for kind in vars(module).values() if isinstance(kind, type)]
        for function in (function for space in (module, *classes) for function in vars(space).values()):
            if isinstance(function, _lru_cache_wrapper):
                function.cache_clear()


class Preloaded(MetaPathFinder, Loader):
    """Finds modules of the harness among all that this process, or the process it is forked from, has loaded."""

    def __init__(self) -> None:
        """Load the harness that is installed, with all ops. Nothing is found if it can't be loaded."""
        self._modules: dict[str, ModuleType] = {}
        with suppress(Exception):  # the process that needs it will say so
            for name in NAMES:
                importlib.import_module(name)
            sys.modules["harness.ops"].Catalogue()
            self._folder = str(Path(sys.modules["harness"].__file__ or "").parent)
            self._modules = {name: module for name, module in sys.modules.items() if name.startswith("harness.")}
            forget(self._modules.values())
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
        for other, module in self._modules.items():
            parent, _, last = other.rpartition(".")
            if parent == "harness":
                setattr(sys.modules[parent], last, module)
            if other != name:
                sys.modules.setdefault(other, module)
        spec = spec_from_loader(name, self)
        if spec and hasattr(self._modules[name], "__path__"):
            spec.submodule_search_locations = list(self._modules[name].__path__)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module as it was loaded."""
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: the module has run."""
