"""One tree of errors. Each carries the exit code that the command line ends with."""

from __future__ import annotations

import difflib
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import FrameType, SimpleNamespace

from harness.paths import COLLECTION

MOST_PROBLEMS = 50
"""The most problems of an input that are told one by one."""
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


class UnwritableError(MachineError):
    """A file that the harness needs can't be written: a full disk, a read-only folder."""


class CompileError(HarnessError):
    """A kernel didn't compile. `message` holds the compiler's log."""

    exit_code = Exit.CASES_FAILED


class WrongResultError(HarnessError):
    """A result isn't what it must be, so the call has no time. `message` says which element, and by how much."""

    exit_code = Exit.CASES_FAILED


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input: where it stands, what was found, what is allowed."""

    where: str
    message: str
    advice: str = ""

    @property
    def told(self) -> str:
        """All of it, in one line."""
        return f"{self.where}: {self.message}" + (f" ({self.advice})" if self.advice else "")


class InputError(UsageError):
    """Everything that is wrong with the given files, at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.told(advice=False)))

    def told(self, *, advice: bool = True) -> list[str]:
        """A line for each of the first problems, and one that counts the rest. advice: whether it is told, too."""
        first = [p.told if advice else f"{p.where}: {p.message}" for p in self.problems[:MOST_PROBLEMS]]
        more = len(self.problems) - len(first)
        return [*(clipped(line, _LONGEST_PROBLEM) for line in first), *([f"and {more:,} more"] if more else [])]


@contextmanager
def without_exit(what: str) -> Iterator[None]:
    """Call a user's code in this context: if the code tries to end the command, that is an error.

    Otherwise sys.exit(0) in the code would end the command with exit code 0, as if all had passed. Raises UsageError,
    which names `what` and the line, in place of SystemExit, of every other error that is neither an Exception nor
    Ctrl-C, and of the exception by which libraries such as typer end a command with exit code 0.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception | KeyboardInterrupt) and getattr(error, "exit_code", None) != 0:
            raise
        raise UsageError(f"{what}: {brief(described(error))}", NO_EXIT) from error


def described(error: BaseException) -> str:
    """The error, the place in the user's code that it comes from (marked by '>'), and all frames, the last one first.

    The user's code is the code of ops, bundled or not. The code of Python, of other packages and of the rest of the
    harness is not. Errors that the harness itself reports say everything in their message and advice.
    """
    if isinstance(error, HarnessError):
        return f"{error.message}\n{error.advice}".rstrip()
    frames = [f for f in reversed(traceback.extract_tb(error.__traceback__)) if not f.filename.startswith("<frozen")]
    summary = _summary(error, frames)
    own = next((f for f in frames if _is_of_an_op(f.filename)), None)
    marked = [f"> {_written(own)}"] if own else []
    return "\n".join([summary, *marked, *(f"  {_written(f)}" for f in frames)])


def _summary(error: BaseException, frames: Sequence[traceback.FrameSummary]) -> str:
    """The error in Python's words. Where a user's function gave something of another kind, also what it must give.

    Where a file that is loaded alone doesn't find a file beside it, also how the other file is found.
    """
    if isinstance(error, AttributeError) and type(error.obj) is SimpleNamespace:
        # The tensors and the sizes of a case, whose class tells a user nothing.
        return f"AttributeError: nothing here is named '{error.name}' ({nearest(str(error.name), vars(error.obj))})"
    summary = "".join(traceback.format_exception_only(error)).rstrip()
    if frames and isinstance(error, ImportError):
        return _of_import(error, summary, Path(frames[0].filename).parent)
    if not frames or not isinstance(error, AttributeError | TypeError):
        return summary
    file = Path(frames[0].filename)
    must = _MUST.get((file.name, frames[0].name)) if file.parent == Path(__file__).parent else None
    return f"{summary}; {must}" if must else summary


def _of_import(error: ImportError, summary: str, folder: Path) -> str:
    """The error of an import, and how a file in the folder of the importing file can be imported."""
    beside = f"PYTHONPATH={_shortened(str(folder), '')} harness ..."
    if NO_PACKAGE in summary:
        return f"relative import, but the file is loaded alone, in no package; write 'import x', and run {beside}"
    if isinstance(error, ModuleNotFoundError) and (folder / f"{error.name}.py").is_file():
        return f"{summary}, but {error.name}.py lies beside the file: run {beside}"
    return summary


NO_PACKAGE = "attempted relative import with no known parent package"
"""Python's words where a module that is no part of a package imports something relative to itself."""
_REFERENCE = "a reference must return a dict of tensors, by the names of outputs"
_MUST = {
    ("session.py", "_call_once"): "a variant must return the call that is timed, a function of the tensors",
    ("check.py", "_expected"): _REFERENCE,
    ("check.py", "_parts"): _REFERENCE,
}
"""What the harness takes from a user's function in a function of its own, by the file and the name of the latter."""


def brief(text: str) -> str:
    """A described error, or the last words of a process, in one line: what happened, and where in the user's code."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    places = [_shortened(*found.groups()) for line in lines if (found := _MARKED.match(line))]
    # What faulthandler writes when a signal kills the process, the innermost frame first.
    places += [
        _shortened(f"{found[1]}:{found[2]}", f" in {found[3]}")
        for line in lines
        if (found := _OF_FAULTHANDLER.match(line)) and _is_of_an_op(found[1])
    ]
    said = clipped(lines[0], _LONGEST)
    return f"{said} ({places[0]})" if places else said


def clipped(text: str, longest: int) -> str:
    """The text, cut where it is longer than `longest` characters, with '…' as the last one."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


_LONGEST = 160  # characters of a message, which may be a compiler's log
_LONGEST_PROBLEM = 600  # characters of a problem with its place and what to do
_MARKED = re.compile(r"> (.+?:\d+)( in .*)$")
_OF_FAULTHANDLER = re.compile(r'File "(.+)", line (\d+) in (\S+)')


def _written(frame: traceback.FrameSummary) -> str:
    code = f": {frame.line}" if frame.line else ""
    return f"{frame.filename}:{frame.lineno} in {frame.name}{code}"


def user_place() -> str:
    """The file and line of the code outside the instrument that made the present call: '/home/me/mine.py:12'."""
    frame: FrameType | None = sys._getframe(1)
    while frame:
        if _is_outside(file := frame.f_code.co_filename):
            return f"{Path(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@cache
def _is_outside(file: str) -> bool:
    """Whether a file isn't the instrument's. Methods that dataclasses write have no file."""
    path = Path(file)
    package = Path(__file__).parent
    inside = path.is_relative_to(package) and path.relative_to(package).parts[0] not in COLLECTION
    return not inside and not file.startswith("<")


def shown_place(place: str) -> str:
    """A place as messages name it: from the current folder, if it lies there."""
    return _shortened(place, "")


@cache
def _is_of_an_op(file: str) -> bool:
    """Whether a file is code of an op rather than Python's, another package's or the harness's."""
    path = Path(file)
    package = Path(__file__).parent
    if path.is_relative_to(package):
        return path.relative_to(package).parts[0] in COLLECTION
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return path.suffix == ".py" and not any(path.is_relative_to(library) for library in libraries)


def _shortened(place: str, rest: str) -> str:
    """A place with its path as it is seen from the current folder, if it lies there."""
    path = Path(place)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}{rest}"


def shown(value: object) -> str:
    """A value of a user as messages show it: on one line, not too long, and whatever its `repr` does."""
    try:
        text = repr(value)
    except Exception:  # of a class of the user, or of an integer with too many digits
        text = f"a value of type {type(value).__name__}"
    text = " ".join(text.encode(errors="backslashreplace").decode().split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def can_be_written(text: str) -> bool:
    """Whether a file can hold the text: no half of a character stands in it, as in a name that isn't UTF-8."""
    return text == text.encode(errors="replace").decode()


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Advice that names the allowed spelling nearest to `word`, or the first of the allowed words if none is near."""
    choices = sorted(allowed)
    if _SHORT_NAMES.get(word) in choices:
        return f"did you mean '{_SHORT_NAMES[word]}'?"
    close = difflib.get_close_matches(word[:_LONGEST], choices, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    more = f" and {len(choices) - _MOST_ALLOWED} more" if len(choices) > _MOST_ALLOWED else ""
    return f"allowed: {', '.join(choices[:_MOST_ALLOWED])}{more}" if choices else "none is known"


_SHORT_NAMES = {
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
}
"""What others call types, none of whose spellings is near to torch's."""
_MOST_ALLOWED = 100  # words that an advice lists
