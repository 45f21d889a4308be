"""The process that a profiler watches: `harness.profile._target REQUEST`.

It prepares and checks each case as for timing. Then it calls the case a few times, while the device tells profilers to
watch and in an NVTX range with the case's id, so that a profiler can record these calls alone. A tool may run the cases
in a way of its own in the place of all that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path

from harness import devices
from harness.devices import Device
from harness.errors import described
from harness.model import Job
from harness.ops import Catalogue, Op
from harness.profile import Ways, _request, tools
from harness.profile._request import CaseRan, ProfileRequest
from harness.session import EndedError, Session
from harness.store import dump

_WARM_ROTATIONS = 2


def main(arguments: list[str]) -> int:
    """Run every case of the request, and write how each ended. Returns 1 after an error, which ends the process.

    After an error of a kernel the device can't be used by this process any more.
    """
    file = Path(arguments[0])
    request = _request.read(file)
    device = devices.kinds()[request.device]
    catalogue = Catalogue(tuple(map(Path, request.plugins)))
    running = Ways.of(tools()[request.tool]).running if request.tool else None
    with ExitStack() as stack:
        answers = stack.enter_context(_request.answers_file(file).open("a", encoding="utf-8"))
        own = None
        if running:
            files, options = Path(request.files), dict(request.options)
            own = stack.enter_context(running(request.jobs, options, files, catalogue, device))
        for number, job in enumerate(request.jobs, 1):
            if request.numbers and number not in request.numbers:
                continue
            run = partial(_run, request, job, number, catalogue[job.case.op], device)
            ran = _ran(job, number, partial(own, number) if own else run)
            answers.write(f"{dump(ran)}\n")
            answers.flush()
            if ran.status == "crashed":
                return 1
    return 0


def _ran(job: Job, number: int, run: Callable[[], None]) -> CaseRan:
    try:
        run()
    except EndedError as ended:
        return CaseRan(job.case.id, number, ended.status, ended.text)
    except Exception as error:  # of a user's op, too
        return CaseRan(job.case.id, number, "crashed", described(error))
    return CaseRan(job.case.id, number, "ok")


def _run(request: ProfileRequest, job: Job, number: int, op: Op, device: Device) -> None:
    with Session(job.case, op, device) as session:
        session.prepare()
        if not request.checked and (wrong := session.check()):
            raise EndedError("wrong", wrong)
        calls = session.calls()
        with session.phase("warm"):
            for call in calls * _WARM_ROTATIONS:
                call()
            device.synchronize()
        with _recording(request, number), device.watched():
            device.mark(number, request.repeats)
            with session.phase("sample"):
                for turn in range(request.repeats):
                    calls[turn % len(calls)]()
                device.synchronize()


def _recording(request: ProfileRequest, number: int) -> AbstractContextManager[None]:
    if not request.traces:
        return nullcontext()
    from harness.profile import torch
    from harness.profile._record import recording

    return recording(torch.trace_of(Path(request.traces), number))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
