"""What the parent and its measuring processes say to each other: one JSON line a message.

The parent asks on a process's standard input. Each question has one answer, which repeats the question's number;
`Progress` may come before it. A process answers on a pipe of its own, since libraries print on standard output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from harness import store
from harness.errors import Exit
from harness.limits import Needs
from harness.model import Job, Limits, Measurement, Scenario
from harness.processes.exchange import Step
from harness.processes.strictness import Spared, Strictness
from harness.processes.untimed import Untimed

VERSION = 2
"""Version of these messages and of the records in them."""

ANOTHER_CODE = "take a base that is nearer to the code to judge, or judge stored runs: harness gate REF RUN"
"""Advice where the process of another revision of the harness can't be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbered:
    """A question with its number, or a reply with the number of its question. `Ready`, which has no question, has 0."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class Measure(_Numbered):
    """Asks for `Measured`.

    process: index of the fresh process that the measurement is marked with. timed: False to check the case only.
    """

    job: Job
    process: int = 0
    timed: bool = True
    kind: Literal["measure"] = "measure"


@dataclass(frozen=True, slots=True)
class MeasureLimits(_Numbered):
    """Asks for `LimitsMeasured`. fresh: measure anew, even if what was measured earlier still holds."""

    needs: Needs
    fresh: bool = False
    kind: Literal["limits"] = "limits"


@dataclass(frozen=True, slots=True)
class MeasureLimitsAgain(_Numbered):
    """Asks for `LimitsMeasured`: the limits of a run's start, with `end` filled in."""

    start: Limits
    kind: Literal["limits again"] = "limits again"


@dataclass(frozen=True, slots=True)
class SurveyCode(_Numbered):
    """Asks for `Surveyed`. files: scenarios to read. jobs: cases of another code, some of which it may know."""

    files: tuple[str, ...] = ()
    jobs: tuple[Job, ...] = ()
    kind: Literal["survey"] = "survey"


@dataclass(frozen=True, slots=True)
class Confirm(_Numbered):
    """Asks for `Confirmed`: the process that gave the answer before still answers, and has said no more."""

    kind: Literal["confirm"] = "confirm"


@dataclass(frozen=True, slots=True)
class Exchange(_Numbered):
    """Asks for `Exchanged`: one step of judging a call by another code. folder: for the files of the steps."""

    step: Step
    job: Job
    folder: str
    kind: Literal["exchange"] = "exchange"


@dataclass(frozen=True, slots=True)
class Ready(_Numbered):
    """Sent once, unasked: torch is imported, no device is in use yet, and the ranks have found each other.

    protocol: VERSION of the process's code, 0 for code older than any version. root: the folder with its package.
    digest: the hash over its code and plug-ins, as `source.digest` gives it; "" from revisions that don't tell it.
    """

    protocol: int = 0
    root: str = ""
    digest: str = ""
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class Progress(_Numbered):
    """How much of a long request is done. share: from 0 to 1."""

    text: str
    share: float
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True)
class Measured(_Numbered):
    """Answers `Measure`. leaving: the process ends after this answer, since its device context may be broken."""

    measurement: Measurement
    leaving: bool = False
    kind: Literal["measurement"] = "measurement"


@dataclass(frozen=True, slots=True)
class LimitsMeasured(_Numbered):
    """Answers `MeasureLimits` and `MeasureLimitsAgain`."""

    limits: Limits
    kind: Literal["limits"] = "limits"


@dataclass(frozen=True, slots=True)
class Surveyed(_Numbered):
    """Answers `SurveyCode`.

    files: the jobs of each scenario file, None for one that this code can't load. known: ids of the jobs' cases that
    this code can measure. scenarios: each file's, with their floors and roles; an earlier harness tells none.
    used: path and SHA-256 of each file that the process has used, if it listens. checks: how strictly the ops of the
    files are checked; None from an earlier harness, which doesn't tell it. software: name and version of the driver and
    of each package that times rest on, as this process sees them; an earlier harness tells none. spared: with which
    extreme values the ops of the files aren't checked; None from an earlier harness. variables: what the ops, when they
    were loaded, have set in the environment; None for a variable that they have removed. untimed: what lets
    work of the ops' variants escape the time; None from an earlier harness.
    """

    files: tuple[tuple[Job, ...] | None, ...]
    known: tuple[str, ...]
    scenarios: tuple[tuple[Scenario, ...], ...] = ()
    used: tuple[tuple[str, str], ...] = ()
    checks: tuple[Strictness, ...] | None = None
    software: tuple[tuple[str, str], ...] = ()
    spared: tuple[Spared, ...] | None = None
    variables: tuple[tuple[str, str | None], ...] = ()
    untimed: tuple[Untimed, ...] | None = None
    kind: Literal["surveyed"] = "surveyed"


@dataclass(frozen=True, slots=True)
class Confirmed(_Numbered):
    """Answers `Confirm`."""

    kind: Literal["confirmed"] = "confirmed"


@dataclass(frozen=True, slots=True)
class Exchanged(_Numbered):
    """Answers `Exchange`. wrong, unable: as `exchange.take` gives them."""

    wrong: str
    unable: str
    kind: Literal["exchanged"] = "exchanged"


@dataclass(frozen=True, slots=True)
class Failed(_Numbered):
    """Comes in place of any answer: a HarnessError to raise in the parent."""

    message: str
    advice: str
    exit_code: Exit
    kind: Literal["failed"] = "failed"


Question = Measure | MeasureLimits | MeasureLimitsAgain | SurveyCode | Exchange | Confirm
Reply = Ready | Progress | Measured | LimitsMeasured | Surveyed | Exchanged | Exchange | Confirmed | Failed

_QUESTION: TypeAdapter[Question] = TypeAdapter(Annotated[Question, Field(discriminator="kind")])
_REPLY: TypeAdapter[Reply] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])


def encode(message: Question | Reply) -> bytes:
    """The message as one line."""
    return f"{store.dump(message)}\n".encode()


def decode_question(line: str | bytes) -> Question:
    """The question in a line. Raises ValueError if there is none."""
    return _QUESTION.validate_json(line)


def decode_reply(line: str | bytes) -> Reply:
    """The reply in a line. Raises ValueError if there is none."""
    return _REPLY.validate_json(line)
