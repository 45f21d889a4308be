"""One tree of errors. Each carries the exit code that the command line ends with."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

_FRAMES = 4
NO_EXIT = "remove the call of sys.exit: code that the harness calls returns, or raises an Exception"


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    GATE_FAILED = 1
    USAGE = 2
    UNDECIDED = 3
    ENVIRONMENT = 4
    CASES_FAILED = 5
    BUG = 70  # a bug of the harness itself, after a traceback; 1 would look like a gate that failed


class HarnessError(Exception):
    """An error that the harness itself reports. `advice` says what to do next."""

    exit_code = Exit.USAGE

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


class UsageError(HarnessError):
    """The request can't be carried out as written."""


class MachineError(HarnessError):
    """The machine can't give valid numbers (no device, a full disk, a library that is missing)."""

    exit_code = Exit.ENVIRONMENT


class CompileError(HarnessError):
    """A kernel didn't compile. `message` holds the compiler's log."""

    exit_code = Exit.CASES_FAILED


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input: where it stands, what was found, what is allowed."""

    where: str
    message: str
    advice: str = ""


class InputError(UsageError):
    """Everything that is wrong with the given files, at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{p.where}: {p.message}" for p in self.problems))


@contextmanager
def without_exit(what: str) -> Iterator[None]:
    """For calls of code that may be a user's: with sys.exit(0) it would end the command, which would look passed.

    Raises UsageError, which names `what` and the line, in place of SystemExit, of everything else that is neither an
    Exception nor Ctrl-C, and of the exception by which libraries of command lines, such as typer, end one with 0.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception | KeyboardInterrupt) and getattr(error, "exit_code", None) != 0:
            raise
        raise UsageError(f"{what}: {described(error)}", NO_EXIT) from error


def described(error: BaseException) -> str:
    """The error, then the innermost frames that it came through, the last one first.

    Errors that the harness itself reports say everything in their message and advice.
    """
    if isinstance(error, HarnessError):
        return f"{error.message}\n{error.advice}".rstrip()
    summary = "".join(traceback.format_exception_only(error)).rstrip()
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return "\n".join([summary, *(f"  {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in reversed(frames))])


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Advice that names the allowed spelling nearest to `word`, or all allowed ones if none is near."""
    choices = sorted(allowed)
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"allowed: {', '.join(choices)}" if choices else "none is known"
