"""What a variant defers until its case is over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Closers(ExitStack):
    """Calls every callback, whatever another one raises, and keeps all errors, of which ExitStack raises the last."""

    def __init__(self) -> None:
        super().__init__()
        self._errors: list[Exception] = []

    def callback(self, callback: Callable[_P, _T], /, *args: _P.args, **kwds: _P.kwargs) -> Callable[_P, _T]:
        """Add a callback."""

        def guarded() -> None:
            try:
                callback(*args, **kwds)
            except Exception as error:
                self._errors.append(error)

        super().callback(guarded)
        return callback

    def close_all(self) -> list[Exception]:
        """Call the callbacks, the last one first. Gives the errors that they raised, in that order."""
        try:
            self.close()
        except Exception as error:  # of a context manager that was entered
            self._errors.append(error)
        return self._errors
