"""What the processes of both sides inherit from this one: code of a user that is loaded here mustn't set it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from harness import intact
from harness.errors import UsageError


@contextmanager
def kept() -> Iterator[None]:
    """Undo what is done meanwhile to the environment, folder, processors and priority of this process.

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
            with suppress(OSError):
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


_INHERITED: tuple[tuple[str, Callable[[], Any], Callable[[Any], None]], ...] = (
    ("environment", lambda: dict(os.environ), _set_environment),
    ("working folder", os.getcwd, os.chdir),
    ("processors", lambda: os.sched_getaffinity(0), lambda value: os.sched_setaffinity(0, value)),
    (
        "priority",
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
        lambda value: os.setpriority(os.PRIO_PROCESS, 0, value),
    ),
)
