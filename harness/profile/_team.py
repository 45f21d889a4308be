"""The process that starts the ranks of cases of several devices under a tool: `harness.profile._team REQUEST`.

Each rank is a process of `harness.profile._target`. The first rank's answers count, until a rank fails: then the other
ranks may wait for that rank in a collective, or fail since it is gone, so all of them end, and its failure is told.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.processes import python, scratch
from harness.processes.rank import GRACE, Meeting
from harness.profile import _request
from harness.profile._request import CaseRan
from harness.store import dump

_TARGET = "harness.profile._target"
_LOOK_EVERY = 0.1  # seconds between two looks at the processes


def main(arguments: Sequence[str]) -> int:
    """Run the request on all of its ranks. Returns 1 if one of them failed; then all of them have ended."""
    file = Path(arguments[0])
    world = _request.read(file).world
    for number in range(world):
        _request.answers_file(file, number).unlink(missing_ok=True)
    with scratch.folder("ranks") as folder:
        meeting = Meeting(world, world, "", 0, folder)
        ranks = [_started(file, number, meeting) for number in range(world)]
        try:
            failed = _followed(file, ranks)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if failed is None:
        return 0
    if why := _failure(file, failed):
        _tell(file, [why])
    else:
        print(f"rank {failed} ended with {ranks[failed].returncode}", file=sys.stderr)  # noqa: T201
    return 1


def _started(file: Path, rank: int, meeting: Meeting) -> subprocess.Popen[bytes]:
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    around = {**python.environment(), **meeting.environment(), **own}
    return subprocess.Popen(python.command(_TARGET, [str(file)]), env=around)


def _followed(file: Path, ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Pass on what the first rank answers, until all ranks have ended. Gives the rank that failed first, if one did.

    The other ranks have a moment then, in which they end, too, if they can.
    """
    told, deadline, running = 0, float("inf"), True
    codes: list[int | None] = []
    while running and time.monotonic() < deadline:
        codes = [rank.poll() for rank in ranks]
        running = None in codes
        fine = [ran for ran in _request.answers(_request.answers_file(file, 0)) if ran.status != "crashed"]
        _tell(file, fine[told:])
        told = len(fine)
        if any(codes):
            deadline = min(deadline, time.monotonic() + GRACE)
        if running:
            time.sleep(_LOOK_EVERY)
    failed = [number for number, code in enumerate(codes) if code or (code is None and _failure(file, number))]
    return min(failed, key=lambda rank: _failed_at(file, rank), default=None)


def _failed_at(file: Path, rank: int) -> int:
    """When a rank has told of its failure; 0 if it died without a word.

    A rank that loses the connection to another one tells of that later than the other one, but may end earlier.
    """
    return _request.answers_file(file, rank).stat().st_mtime_ns if _failure(file, rank) else 0


def _failure(file: Path, failed: int) -> CaseRan | None:
    """What a rank says of its failure, with its number; None if it died without a word."""
    said = _request.answers(_request.answers_file(file, failed))
    if not said or said[-1].status != "crashed":
        return None
    error = said[-1].error
    return replace(said[-1], error=error if error.startswith("rank ") else f"rank {failed}: {error}")


def _tell(file: Path, ended: Sequence[CaseRan]) -> None:
    """Write answers where they are read. Each is whole at once."""
    with _request.answers_file(file).open("a", encoding="utf-8") as answers:
        answers.write("".join(f"{dump(ran)}\n" for ran in ended))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
