"""What the parent and its workers say to each other: one JSON line a message.

The parent asks on a worker's standard input: one request, one answer, with `Progress` in between. A worker answers
on a pipe of its own, since libraries print on standard output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from harness import store
from harness.errors import Exit
from harness.model import Ceilings, Job, Measurement

VERSION = 1
"""Of these messages and of the records in them. The gate speaks to workers of another revision of the harness."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Asks for a `Result`. `process` is the index of the fresh process that a measurement is marked with."""

    job: Job
    process: int = 0
    kind: Literal["measure"] = "measure"


@dataclass(frozen=True, slots=True)
class MeasureCeilings:
    """Asks for `Measured`: everything, or the streams to repeat at the end of a run, given what its start measured."""

    start: Ceilings | None = None
    kind: Literal["ceilings"] = "ceilings"


@dataclass(frozen=True, slots=True)
class Survey:
    """Asks for `Surveyed`. files: scenarios; jobs: those that somebody else knows."""

    files: tuple[str, ...]
    jobs: tuple[Job, ...] = ()
    kind: Literal["survey"] = "survey"


@dataclass(frozen=True, slots=True)
class Ready:
    """Said once, unasked: torch is imported, the device is there but untouched, the ranks have met.

    protocol: the worker's VERSION, 0 before there were any. root: the folder that its package lies in.
    """

    protocol: int = 0
    root: str = ""
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long request is; `share` is from 0 to 1."""

    text: str
    share: float
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True)
class Result:
    """Answers `Measure`. A worker that is `leaving` may have a broken device context and ends itself."""

    measurement: Measurement
    leaving: bool = False
    kind: Literal["result"] = "result"


@dataclass(frozen=True, slots=True)
class Measured:
    """Answers `MeasureCeilings`."""

    ceilings: Ceilings
    kind: Literal["measured"] = "measured"


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Answers `Survey`.

    files: the jobs of each scenario file, None for one that can't be loaded here. known: ids of the cases that are.
    """

    files: tuple[tuple[Job, ...] | None, ...]
    known: tuple[str, ...]
    kind: Literal["surveyed"] = "surveyed"


@dataclass(frozen=True, slots=True)
class Failed:
    """In place of any answer: a HarnessError to raise in the parent."""

    message: str
    advice: str
    exit_code: Exit
    kind: Literal["failed"] = "failed"


Request = Measure | MeasureCeilings | Survey
Reply = Ready | Progress | Result | Measured | Surveyed | Failed

_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_REPLY: TypeAdapter[Reply] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])


def encode(message: Request | Reply) -> bytes:
    """The message as one line."""
    return f"{store.dump(message)}\n".encode()


def decode_request(line: str | bytes) -> Request:
    """The request in a line."""
    return _REQUEST.validate_json(line)


def decode_reply(line: str | bytes) -> Reply:
    """The reply in a line."""
    return _REPLY.validate_json(line)
