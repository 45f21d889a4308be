"""What the processes of both sides inherit from this one: code of a user that is loaded here mustn't set it."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from harness import intact
from harness.errors import UsageError


@contextmanager
def kept() -> Iterator[None]:
    """Undo what is done meanwhile to what processes that this one starts inherit, such as the environment.

    An op may set OMP_NUM_THREADS where it is declared. The base, whose op doesn't, would run with that as well. Raises
    UsageError for what can't be undone, such as a lower priority, and for ops that replace functions of the harness.
    """
    with intact.remembering():
        before = [read() for _, read, _ in _INHERITED]
        try:
            yield
        finally:
            _restore(before)
        if changed := intact.replaced("the ops were loaded"):
            raise UsageError(changed, "leave the harness as it is: what judges the ops mustn't be theirs")


def _restore(before: list[Any]) -> None:
    for (name, read, write), value in zip(_INHERITED, before, strict=True):
        if read() != value:
            with suppress(OSError, ValueError):  # a hard limit of a resource is lowered once and for all
                write(value)
        if read() != value:
            raise UsageError(
                f"the ops set the {name} of the process that loads them, and of all that it starts: both sides would "
                "have it",
                "set it in the function of a variant, which runs in a process of its side",
            )


def _set_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _scheduling() -> tuple[int, os.sched_param]:
    return os.sched_getscheduler(0), os.sched_getparam(0)


def _limits() -> dict[int, tuple[int, int]]:
    return {number: resource.getrlimit(number) for number in _LIMITS}


def _set_limits(limits: Mapping[int, tuple[int, int]]) -> None:
    for number, value in limits.items():
        if resource.getrlimit(number) != value:
            resource.setrlimit(number, value)


def _prctl(option: int, value: int) -> Any:
    return ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


_LIMITS = sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")})
_SET_THP_DISABLE, _GET_THP_DISABLE = 41, 42  # of Linux's prctl
_INHERITED: tuple[tuple[str, Callable[[], Any], Callable[[Any], None]], ...] = (
    ("environment", lambda: dict(os.environ), _set_environment),
    ("working folder", os.getcwd, os.chdir),
    ("processors", lambda: os.sched_getaffinity(0), lambda value: os.sched_setaffinity(0, value)),
    (
        "priority",
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
        lambda value: os.setpriority(os.PRIO_PROCESS, 0, value),
    ),
    ("scheduling policy", _scheduling, lambda value: os.sched_setscheduler(0, *value)),
    ("limits of resources", _limits, _set_limits),
    ("huge pages", lambda: _prctl(_GET_THP_DISABLE, 0), lambda value: _prctl(_SET_THP_DISABLE, value)),
)
