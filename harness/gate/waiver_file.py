"""`waivers.yaml`: which cases may lose more than the margin, how much, why, who says so, and until when.

The gate's README has an example.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from harness.errors import InputError, Problem, nearest
from harness.gate.records import Waiver
from harness.scenario.documents import Document, read, shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

NAME = "waivers.yaml"
_EXAMPLE = "a file of waivers begins with 'waivers:', a list whose items have cases, largest_loss, reason, owner, until"
_MUST = {
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "list_type": "must be a list",
    "too_short": "must not be empty",
    "model_type": "must be a mapping",
    "date_type": "must be a day, such as 2027-03-31",
    "date_from_datetime_inexact": "must be a day, such as 2027-03-31",
    "date_from_datetime_parsing": "must be a day, such as 2027-03-31",
    "date_parsing": "must be a day, such as 2027-03-31",
}


def _share(value: object) -> object:
    """A share as a number: '3%' and 0.03 are the same."""
    text = str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = 0.0
    if not 0 < number < 1:
        raise ValueError("must be a share between 0 and 1, such as 3% or 0.03")
    return number


def _day(value: object) -> object:
    """A day as it is; a number isn't one, though pydantic would count seconds from 1970."""
    if not isinstance(value, date | str):
        raise ValueError("must be a day, such as 2027-03-31")
    return value


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


Text = Annotated[str, Field(min_length=1)]


class _WaiverKeys(BaseModel):
    model_config = ConfigDict(extra="forbid")

    cases: Annotated[list[Text], BeforeValidator(_listed), Field(min_length=1, description="patterns of case ids")]
    largest_loss: Annotated[float, BeforeValidator(_share), Field(description="the largest loss that passes, as 3%")]
    reason: Annotated[Text, Field(description="why the loss is right")]
    owner: Annotated[Text, Field(description="who answers for it")]
    until: Annotated[date, BeforeValidator(_day), Field(description="the last day on which it holds, as 2027-03-31")]


class _FileKeys(BaseModel):
    model_config = ConfigDict(extra="forbid")

    waivers: Annotated[list[_WaiverKeys], Field(description="a list of waivers")]


def load(file: Path, shown_as: str = "") -> tuple[Waiver, ...]:
    """The waivers of a file. shown_as: the path that findings name. Raises InputError with all problems, by line."""
    document = _document(file)
    try:
        keys = _FileKeys.model_validate(document.data)
    except ValidationError as error:
        wrong = [_problem(document, detail) for detail in error.errors(include_url=False)]
        raise InputError([*document.problems, *wrong]) from error
    if document.problems:
        raise InputError(document.problems)
    return tuple(
        Waiver(
            cases=tuple(each.cases),
            largest_loss=each.largest_loss,
            reason=" ".join(each.reason.split()),
            owner=each.owner,
            until=each.until.isoformat(),
            place=_place(document, index, shown_as or str(file)),
        )
        for index, each in enumerate(keys.waivers)
    )


def _document(file: Path) -> Document:
    """The mapping in the file. Raises InputError for another content, and for several documents."""
    try:
        documents = read(file)
    except InputError as error:
        raise InputError([_of_waivers(problem) for problem in error.problems]) from error
    if len(documents) > 1:
        raise InputError([Problem(str(file), "has several documents", "remove the lines '---'")])
    return documents[0]


def _of_waivers(problem: Problem) -> Problem:
    """A problem of reading YAML, without what is told about scenarios."""
    about = "scenario" in f"{problem.message} {problem.advice}"
    return Problem(problem.where, problem.message.partition("; a scenario")[0], _EXAMPLE) if about else problem


def _problem(document: Document, detail: ErrorDetails) -> Problem:
    """What pydantic found, in plain words, with file, line and key."""
    path, found = tuple(detail["loc"]), detail["input"]
    inside = len(path) > 1
    fields: dict[str, Any] = dict((_WaiverKeys if inside else _FileKeys).model_fields)
    match detail["type"]:
        case "missing":
            message, advice = "is missing", fields[str(path[-1])].description or _EXAMPLE
        case "extra_forbidden":
            message, advice = f"unknown key '{path[-1]}'", nearest(str(path[-1]), list(fields))
        case "value_error":
            message, advice = f"{detail['ctx']['error']}, found {shown(found)}", ""
        case kind:
            message, advice = f"{_MUST.get(kind, 'is wrong')}, found {shown(found)}", ""
    return document.problem(path, message, advice)


def _place(document: Document, index: int, file: str) -> str:
    """File and line of a waiver."""
    line = document.problem(("waivers", index), "").where.removeprefix(str(document.file)).split(":")[1]
    return f"{file}:{line}"
