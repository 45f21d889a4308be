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
class Ready:
    """Said once, unasked: torch is imported, the device is there, the ranks have met."""

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
class Failed:
    """In place of any answer: a HarnessError to raise in the parent."""

    message: str
    advice: str
    exit_code: Exit
    kind: Literal["failed"] = "failed"


Request = Measure | MeasureCeilings
Reply = Ready | Progress | Result | Measured | Failed

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
