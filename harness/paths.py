"""Where the files that come with the package lie: beside it in a checkout, inside it in a wheel."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
COLLECTION = ("collection", "nn")
"""The folder of this package that holds what is measured, and the module that is a short name of a part of it.

The rest of the package is the instrument, which works without both."""


def data(name: str) -> Path:
    """The folder `name` ('kernels', 'plans' or 'scenarios') of this installation."""
    bundled = _PACKAGE / "_data" / name
    return bundled if bundled.is_dir() else _PACKAGE.parent / name


def cache() -> Path:
    """The folder for compiled kernels and measured limits: $HARNESS_CACHE, else the user's cache folder.

    It is made if it can be, for this user alone: what lies there is executed (see harness.kept).
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("HARNESS_CACHE") or Path(base) / "gpu-bench-harness")
    make_private(folder)
    return folder


def new_report(name: str) -> Path:
    """The folder in reports/, named by the time, for results that the user has named no folder for."""
    return Path("reports", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")


def make_private(folder: Path) -> None:
    """Make a folder, and the folders above that are missing, with the mode 0700, whatever the umask is.

    A folder that is there stays as it is. Where none can be made there is none afterwards.
    """
    with suppress(OSError):
        if not folder.exists():
            make_private(folder.parent)
            folder.mkdir(0o700)
            folder.chmod(0o700)


def python_path() -> list[str]:
    """The folders that PYTHONPATH names. An empty entry, which Python takes for the working folder, names none."""
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def import_folders() -> list[str]:
    """Where modules are looked for: `sys.path` without the working folder, unless PYTHONPATH names that folder.

    Python adds the working folder for `-m`, `-c`, notebooks, and for empty entries of PYTHONPATH.
    """
    entries = [entry for entry in sys.path if entry]
    try:
        here = Path.cwd().resolve()
    except FileNotFoundError:  # somebody has removed it, so it holds no modules
        return entries
    if here in (Path(entry).resolve() for entry in python_path()):
        return entries
    return [entry for entry in entries if Path(entry).resolve() != here]
