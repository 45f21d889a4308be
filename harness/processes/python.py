"""How processes of ours are started: with the harness that is asked for, and without the working folder on their path.

A file in the working folder, such as copy.py, must not be taken for a library's module of that name.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import harness
from harness import paths
from harness.processes import start
from harness.processes.surroundings import Surroundings

_PATH_LENGTH = 256


def own_root() -> Path:
    """The folder with the package that runs."""
    return Path(harness.__file__).resolve().parents[1]


def command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command that runs a module of the package, in an environment that `environment` gave."""
    return [sys.executable, "-P", start.__file__, module, *arguments]


def environment(root: Path | None = None, around: Surroundings | None = None) -> dict[str, str]:
    """The environment of a process of ours. root: the folder whose harness it imports; this process's if None.

    around: what one side of a comparison has in place of this process's packages, folders and variables.
    """
    own = own_root()
    root = root.resolve() if root else own
    place = around.place if around else str
    path = [None if Path(entry).resolve() == own else place(entry) for entry in paths.import_folders()]
    path = [str(around.site), *path] if around and around.site else path
    # Processes that a library starts there may need the package too. They find it last, behind all other modules.
    path += [] if None in path else [None]
    imports = {"root": str(root), "path": path, "refused": "" if root == own else str(own)}
    # The same length for every root: the size of the environment decides where a process's stack lies.
    room = " " * max(0, 2 * _PATH_LENGTH - len(json.dumps([imports["root"], imports["refused"]])))
    # The processes that a library starts there don't look into the working folder either.
    variables = {**os.environ, "PYTHONSAFEPATH": "1", start.VARIABLE: json.dumps(imports) + room}
    named = [_named(entry, own, root) for entry in paths.python_path()]
    sites = [str(around.site)] if around and around.site else []
    # Set before the rest is moved, so that an entry of the harness stays the harness that was asked for.
    variables["PYTHONPATH"] = os.pathsep.join([*sites, *map(place, filter(None, named))])
    return around.applied(variables) if around else variables


def _named(entry: str, own: Path, root: Path) -> str:
    """An entry of PYTHONPATH for a process that imports the harness in `root`; '' for none."""
    if Path(entry).resolve() != own:
        return entry
    return "" if os.pathsep in str(root) else str(root).ljust(_PATH_LENGTH, "/")
