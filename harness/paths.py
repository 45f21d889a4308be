"""Where the files that come with the package lie: beside it in a checkout, inside it in a wheel."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data(name: str) -> Path:
    """The folder `name` ('kernels' or 'scenarios') of this installation."""
    bundled = _PACKAGE / "_data" / name
    return bundled if bundled.is_dir() else _PACKAGE.parent / name


def cache() -> Path:
    """The folder for compiled kernels and measured limits: $HARNESS_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("HARNESS_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpu-bench-harness"
