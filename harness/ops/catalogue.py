"""All ops by name: those of the entry points `harness.ops`, by which the collection comes in too, and plug-in files."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from harness.discover import discover, entry_points
from harness.errors import NO_EXIT, HarnessError, UsageError, brief, described, nearest
from harness.ops.sheet import Op

LOADED: dict[str, Op] = {}
"""Every op that this process has loaded, by name. Who reads a stored run finds there what its ops say of reports."""


class Catalogue(Mapping[str, Op]):
    """Ops by name.

    An entry point names a module that defines ops, or a package: then each `<family>/<op>.py` in it defines OP.
    """

    def __init__(self, plugins: Sequence[Path] = ()) -> None:
        self._ops: dict[str, Op] = {}
        for entry in entry_points("harness.ops"):
            with _loading(f"entry point '{entry.name}' ({entry.value})"):
                module = entry.load()
                is_package = hasattr(module, "__path__") and not _ops_in(module)
                modules = discover(module.__name__, ["OP"], nested=True).values() if is_package else [module]
            for each in modules:
                self._add(each, Path(each.__file__ or entry.value))
        for file in plugins:
            self._add(_load_file(file), file)

    def _add(self, module: ModuleType, file: Path) -> None:
        found = _ops_in(module)
        if not found:
            raise UsageError(f"{file}: defines no op", "assign an Op to a name at the top level, e.g. OP = Op(...)")
        for op in found:
            if op.name in self._ops:
                raise UsageError(f"{file}: there is an op named '{op.name}' already ({self._ops[op.name].file})")
            op.file = file.resolve()
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


def _ops_in(module: ModuleType) -> list[Op]:
    return [value for value in vars(module).values() if isinstance(value, Op)]


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
        raise UsageError(f"{what}: {error.message}", error.advice) from error
    except SyntaxError as error:
        # It names the line itself, and the innermost frame is the import, not the mistake.
        raise UsageError(f"{what}: {type(error).__name__}: {error}", "the plug-in isn't valid Python") from error
    except BaseException as error:
        # With the exit code of a plug-in, a command that has measured nothing would look passed.
        advice = "the plug-in raised while being loaded" if isinstance(error, Exception) else NO_EXIT
        raise UsageError(f"{what}: {brief(described(error))}", advice) from error
