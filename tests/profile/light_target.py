"""Answers a request as the process does that a profiler watches, but runs nothing: a variant's name says how it ends.

$LIGHT_WRONG names a variant that is wrong.
"""

import os
import sys
from pathlib import Path

from harness.profile import _request
from harness.profile._request import CaseRan
from harness.store import dump


def main(file: Path) -> None:
    with _request.answers_file(file).open("a") as answers:
        for number, job in enumerate(_request.read(file).jobs, 1):
            variant = job.case.variant
            if variant == "abort":
                os.abort()
            status = "crashed" if variant == "crashed" else "ok"
            if variant in ("wrong", os.environ.get("LIGHT_WRONG")):
                status = "wrong"
            error = "" if status == "ok" else "not as it should be"
            answers.write(dump(CaseRan(job.case.id, number, status, error)) + "\n")
            answers.flush()
            if status == "crashed":
                sys.exit(1)


main(Path(sys.argv[1]))
