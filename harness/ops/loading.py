"""Which plug-in file is being loaded now: what it declares belongs to it, and to the catalogues that load it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Loading:
    """One load of a plug-in file.

    number: of the load, since a file may be loaded again after it was changed. catalogue: the ops that were loaded
    before the file, by name.
    """

    file: Path
    number: int
    catalogue: Mapping[str, Any]


_now: ContextVar[Loading | None] = ContextVar("_now", default=None)
_numbers = itertools.count(1)


def now() -> Loading | None:
    """The load that is going on; None outside of one."""
    return _now.get()


@contextmanager
def of_file(file: Path, catalogue: Mapping[str, Any]) -> Iterator[None]:
    """What is declared meanwhile belongs to the plug-in in `file`."""
    token = _now.set(Loading(file, next(_numbers), catalogue))
    try:
        yield
    finally:
        _now.reset(token)
