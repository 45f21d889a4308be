"""Protocol 1, which the measuring processes of harness 0.1.0 speak: translated to and from the messages of today.

The gate needs it: the base that a change is compared with may be such a revision. Its processes are started as
`harness.worker`. Questions had no numbers, so each answer is taken as that to the last question.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from harness import store
from harness.errors import MachineError
from harness.model import Job
from harness.processes.messages import (
    ANOTHER_CODE,
    Measure,
    MeasureLimits,
    MeasureLimitsAgain,
    Question,
    Reply,
    SurveyCode,
    decode_reply,
)
from harness.store.version1 import downgrade_case, upgrade_id, upgrade_job, upgrade_measurement

VERSION = 1
MODULE = "harness.worker"

Json = dict[str, Any]


def encode(question: Question) -> bytes:
    """The question as a line of protocol 1. Raises MachineError for a case that protocol 1 can't express."""
    return f"{json.dumps(_question(question))}\n".encode()


def decode(line: bytes, question: Question | None) -> Reply:
    """The reply in a line of protocol 1. question: the last one, None before the first. Raises ValueError."""
    message = json.loads(line)
    try:
        reply = _reply(message, question)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"isn't a reply of protocol 1: {message}") from error
    return decode_reply(json.dumps({**reply, "number": question.number if question else 0}))


def _question(question: Question) -> Json:
    match question:
        case Measure(job, process):
            old = _old_job(job)
            if old is None:
                raise MachineError(f"harness 0.1.0 can't be asked for {job.case.id}", ANOTHER_CODE)
            return {"kind": "measure", "job": old, "process": process}
        case MeasureLimits():  # Version 1 knew streams only, and measured them each time.
            return {"kind": "ceilings", "start": None}
        case MeasureLimitsAgain(start):
            limits = json.loads(store.dump(start))
            return {"kind": "ceilings", "start": {"points": limits["points"], "end": limits["end"]}}
        case SurveyCode(files, jobs):
            return {"kind": "survey", "files": files, "jobs": [old for job in jobs if (old := _old_job(job))]}


def _old_job(job: Job) -> Json | None:
    """The job in version 1; None if version 1 can't express it."""
    if job.case.world > 1 and job.case.device != "cpu":
        return None  # Version 1 put all ranks on the first device, so its times are those of another case.
    new = json.loads(store.dump(job))
    case = downgrade_case(new["case"])
    return case and {"case": case, "timing": new["timing"], "ranks": job.case.world}


def _reply(message: Json, question: Question | None) -> Json:
    match message.get("kind"), question:
        case "result", Measure(job):
            measurement = upgrade_measurement(message["measurement"])
            # Version 1 didn't store the number of devices with a case.
            measurement["case"] = {**measurement["case"], "world": job.case.world}
            return {**message, "kind": "measurement", "measurement": measurement}
        case "measured", _:
            return {"kind": "limits", "limits": message["ceilings"]}
        case "surveyed", SurveyCode():
            files = [jobs and [upgrade_job(job) for job in jobs] for jobs in message["files"]]
            return {"kind": "surveyed", "files": files, "known": list(_known(message["known"], question))}
        case _:
            return message


def _known(known: list[str], question: SurveyCode) -> Iterator[str]:
    """Ids of those cases of the question that are known. Ids of version 1 don't have the number of devices."""
    upgraded = {upgrade_id(case) for case in known}
    for job in question.jobs:
        if _old_job(job) and replace(job.case, world=1).id in upgraded:
            yield job.case.id
