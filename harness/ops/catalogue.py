"""All ops by name: the bundled ones, those of installed entry points, and plug-in files."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from harness.discover import discover
from harness.errors import NO_EXIT, HarnessError, UsageError, brief, described, nearest
from harness.ops.sheet import Op


class Catalogue(Mapping[str, Op]):
    """Ops by name. Bundled ops are found as `harness/ops/<family>/<op>.py`, each of which defines OP."""

    def __init__(self, plugins: Sequence[Path] = ()) -> None:
        self._ops: dict[str, Op] = {}
        for module in discover("harness.ops", ["OP"], nested=True).values():
            self._add(module, Path(module.__file__ or ""))
        for entry in importlib.metadata.entry_points(group="harness.ops"):
            with _loading(f"entry point '{entry.name}' ({entry.value})"):
                module = entry.load()
            self._add(module, Path(module.__file__ or entry.value))
        for file in plugins:
            self._add(_load_file(file), file)

    def _add(self, module: ModuleType, file: Path) -> None:
        found = [value for value in vars(module).values() if isinstance(value, Op)]
        if not found:
            raise UsageError(f"{file}: defines no op", "assign an Op to a name at the top level, e.g. OP = Op(...)")
        for op in found:
            if op.name in self._ops:
                raise UsageError(f"{file}: there is an op named '{op.name}' already ({self._ops[op.name].file})")
            op.file = file.resolve()
            self._ops[op.name] = op

    def __getitem__(self, name: str) -> Op:
        try:
            return self._ops[name]
        except KeyError:
            raise KeyError(f"no op named '{name}': {nearest(name, self._ops)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)


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
