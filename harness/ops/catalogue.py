"""All ops by name: of the entry points `harness.ops`, by which the collection comes in too, and of plug-in files."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

from harness import trial
from harness.discover import discover, entry_points, is_foreign
from harness.errors import NO_EXIT, HarnessError, UsageError, brief, described, nearest, shown_place
from harness.ops import loading
from harness.ops.declarations import at, refusal
from harness.ops.sheet import Op

_PLACE = re.compile(r"\S+\.py(:\d+)?: ")
"""How a message begins that names the file itself."""
LOADED: dict[str, Op] = {}
"""Every op that this process has loaded, by name. Who reads a stored run finds there what its ops say of reports."""


class Catalogue(Mapping[str, Op]):
    """Ops by name, each with the variants that the loaded plug-ins add to it.

    An entry point names a module that defines ops or adds variants, or a package: then each `<family>/<op>.py` in it
    defines OP. plugins: Python files that do the same. Raises UsageError for a plug-in that does neither.
    """

    def __init__(self, plugins: Sequence[Path] = ()) -> None:
        self._ops: dict[str, Op] = {}
        for entry in entry_points("harness.ops"):
            before, what = self._variants(), f"entry point '{entry.name}' ({entry.value})"
            with _loading(what):
                if is_foreign(entry):
                    trial.first(what, partial(_modules_of, entry), "ops")
                modules = _modules_of(entry)
            adds = self._variants() > before
            for each in modules:
                self._add(each, Path(each.__file__ or entry.value), adds=adds)
        files = [file.resolve() for file in plugins]
        for file in files:
            with loading.of_file(file, self):
                trial.first(str(file), partial(_load_file, file), _digest(file))
                module = _load_file(file)
            self._add(module, file, adds=any(file in op.added for op in self._ops.values()))
        for name, op in self._ops.items():
            self._ops[name] = op.with_added(files)
            self._ops[name].refuse_unchecked()

    def _variants(self) -> int:
        return sum(len(op.variants) for op in self._ops.values())

    def _add(self, module: ModuleType, file: Path, *, adds: bool) -> None:
        """Add the ops that a module defines. adds: whether it added variants to ops that are here already."""
        found = [op for op in _ops_in(module) if self._ops.get(op.name) is not op]
        if not found and not adds:
            advice = "assign an Op to a name at the top level (OP = Op(...)), or add a variant: harness.ops says how"
            raise UsageError(f"{file}: defines no op and adds no variant to one", advice)
        for op in found:
            if op.name in self._ops:
                there = self._ops[op.name]
                advice = f"rename it; or add a variant to the op that is there: @find('{op.name}').variant(...)"
                raise at(op.place, f"there is an op named '{op.name}' already ({shown_place(there.place)})", advice)
            op.file = _resolved(file)
            self._ops[op.name] = LOADED[op.name] = op

    def __getitem__(self, name: str) -> Op:
        try:
            return self._ops[name]
        except KeyError:
            raise KeyError(f"no op named '{name}': {nearest(name, self._ops)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)


def find(name: str) -> Op:
    """The op of that name, so that a plug-in can add a variant to it. Raises UsageError if there is none.

    A plug-in file that is being loaded finds the ops of the files that were loaded before it, too.
    """
    load = loading.now()
    ops = load.catalogue if load else Catalogue()
    if name not in ops:
        raise refusal(f"no op is named '{name}'", nearest(name, ops))
    return ops[name]


@cache
def _resolved(file: Path) -> Path:
    """The file without links, for which the disk is asked about each folder above it."""
    return file.resolve()


def _ops_in(module: ModuleType) -> list[Op]:
    return [value for value in vars(module).values() if isinstance(value, Op)]


def _modules_of(entry: EntryPoint) -> Sequence[ModuleType]:
    """The modules that define what an entry point brings: the module that it names, or the files of a package."""
    module = entry.load()
    is_package = hasattr(module, "__path__") and not _ops_in(module)
    return [*discover(module.__name__, ["OP"], nested=True).values()] if is_package else [module]


def _digest(file: Path) -> str:
    """A hash of the file's content; '' if there is none to load."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _load_file(file: Path) -> ModuleType:
    """The module in a plug-in file. Whatever it raises is reported with the file's name."""
    name = f"harness_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"{file}: not a Python file", "--ops takes a .py file that defines an op")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _loading(str(file)):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _loading(what: str) -> Iterator[None]:
    """Raises UsageError, which names the plug-in and the line, in place of what it raises, sys.exit included.

    Ctrl-C passes. An error that the harness itself reports keeps its advice.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except HarnessError as error:
        if _PLACE.match(error.message):
            raise
        raise UsageError(f"{what}: {error.message}", error.advice) from error
    except SyntaxError as error:
        # It names the line itself, and the innermost frame is the import, not the mistake.
        place = f"{error.filename or what}:{error.lineno}" if error.lineno else what
        needed = "" if place.startswith(what) else f" (needed by {what})"
        raise UsageError(
            f"{place}: {type(error).__name__}: {error.msg}{needed}", "the file isn't valid Python: correct that line"
        ) from error
    except BaseException as error:
        # With the exit code of a plug-in, a command that has measured nothing would look passed.
        advice = "the plug-in raised while being loaded" if isinstance(error, Exception) else NO_EXIT
        raise UsageError(f"{what}: {brief(described(error))}", advice) from error
