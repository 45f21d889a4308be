"""What to do about an error of the harness, below its message in a traceback of Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from harness.errors import MOST_PROBLEMS, HarnessError, InputError

P = ParamSpec("P")
R = TypeVar("R")


def advised(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose errors of the harness get their advice as notes, which a notebook shows, too."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except HarnessError as error:
            problems = error.problems[:MOST_PROBLEMS] if isinstance(error, InputError) else [error]
            for advice in dict.fromkeys(each.advice for each in problems):
                if advice and advice not in getattr(error, "__notes__", ()):
                    error.add_note(advice)
            raise

    return call
