"""What a process under a profiler is asked to do, and what it says of each case: two files, which outlive a crash."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness import foreign
from harness.errors import UsageError, brief
from harness.model import Job, Status
from harness.profile import CALLS
from harness.store import dump, parse

_MOST_BYTES = 256 << 20
_MOVE = "move the file away if it isn't the harness's own; it is read since its name begins as the imported file's"
REQUEST = ".request.json"
"""Ends the name of the file of a request."""


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """The cases to run, as for timing, but each only a few times. plugins: files with more ops.

    All cases are of equally many devices. ranks: the ranks that are recorded; all if empty.

    checked: the cases were checked by a process before this one, which counted what differs from call to call; one call
    is enough. numbers: of the cases to run, from 1; all if empty.

    traces: where torch's own profiler writes a trace of each case, as the beginning of file names; "" for none.
    tool: the name of the tool that runs each case in a way of its own, in the place of preparing and calling it; "" for
    none. options: the tool's. files: the beginning of the names of the files that it writes.
    """

    device: str
    plugins: tuple[str, ...]
    jobs: tuple[Job, ...]
    calls: int = CALLS
    ranks: tuple[int, ...] = ()
    traces: str = ""
    tool: str = ""
    options: tuple[tuple[str, int], ...] = ()
    files: str = ""
    checked: bool = False
    numbers: tuple[int, ...] = ()

    @property
    def world(self) -> int:
        """How many devices each case is of."""
        return max((job.case.world for job in self.jobs), default=1)

    @property
    def repeats(self) -> int:
        """Calls of each case in this process."""
        return 1 if self.checked else self.calls


@dataclass(frozen=True, slots=True)
class CaseRan:
    """How a case ended under a profiler. number: the case's place in the request, from 1."""

    case: str
    number: int
    status: Status
    error: str = ""


def write(request: ProfileRequest, file: Path) -> None:
    """Write the request."""
    file.write_text(dump(request), encoding="utf-8")


def read(file: Path) -> ProfileRequest:
    """The request in a file. Raises UsageError where it has none that can be carried out."""
    try:
        found = parse(ProfileRequest, foreign.read(file, _MOST_BYTES))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or brief(str(error))
        raise UsageError(f"{file}: isn't a request of a profile: {reason}", _MOVE) from None
    if found.calls < 1:
        raise UsageError(f"{file}: isn't a request of a profile: its cases are called {found.calls} times", _MOVE)
    return found


def answers(file: Path) -> list[CaseRan]:
    """The cases that have ended, in order. A last line that is cut short is left out."""
    if not file.exists():
        return []
    *lines, _ = file.read_text(encoding="utf-8").split("\n")
    return [parse(CaseRan, line) for line in lines]


def beside(file: Path) -> ProfileRequest | None:
    """The request that a file of a tool came from, by the beginning of its name; None if it isn't beside the file."""
    requests = file.parent.glob(f"?*{REQUEST}")
    found = [path for path in requests if file.name.startswith(path.name.removesuffix(REQUEST))]
    # The longer name is meant where both ncu-1 and ncu-11 fit.
    return read(max(found, key=lambda path: len(path.name))) if found else None


def answers_file(request: Path, rank: int | None = None) -> Path:
    """Where the answers to the request in a file are written. rank: of several, whose answers `_team` reads."""
    return request.with_suffix(".answers" if rank is None else f".rank{rank}.answers")
