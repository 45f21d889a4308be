"""Files of candidates and references, loaded as modules in a process that may die."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from harness.errors import NO_PACKAGE, UsageError

CANDIDATE = "judged_candidate"
REFERENCE = "harness.judged.reference"
"""Where the reference stands among the loaded modules: there a case notices whether its functions were replaced."""


def load(file: str, name: str, folders: Iterable[str] = ()) -> ModuleType:
    """The module in a file. folders: where it may import more from, after all that is installed.

    Raises what the file raises, and UsageError where it is no file of Python.
    """
    for folder in (*folders, str(Path(file).resolve().parent)):
        if folder not in sys.path:
            sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file}: isn't a file of Python", "name a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if error.name != spec.parent:
            raise
        # The name that the module has here has a dot, but there is no package.
        raise ImportError(NO_PACKAGE).with_traceback(error.__traceback__) from None
    return module
