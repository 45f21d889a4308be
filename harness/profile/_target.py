"""The process that a profiler watches: `harness.profile._target REQUEST`.

It prepares and checks each case as for timing. Then it calls the case a few times, while the device tells profilers to
watch and in an NVTX range with the case's id, so that a profiler can record these calls alone. A tool may run the cases
in a way of its own in the place of all that.

Of cases of several devices it is one of the ranks, which `_team` starts: what fails on one rank fails on all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import cast

from harness import devices, ranks
from harness.devices import Device, is_out_of_memory
from harness.errors import described
from harness.model import Job, Status
from harness.ops import Catalogue, Op
from harness.profile import Ways, _request, tools
from harness.profile._request import CaseRan, ProfileRequest
from harness.profile._trace import BEGIN, STEP
from harness.ranks import Group, PeerError
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
    group = ranks.from_environment() if request.world > 1 else ranks.ALONE
    with ExitStack() as stack:
        written = _request.answers_file(file, group.rank if group.size > 1 else None)
        answers = stack.enter_context(written.open("a", encoding="utf-8"))
        own = stack.enter_context(_own_way(request, catalogue, device, group)) if request.tool else None
        for number, job in enumerate(request.jobs, 1):
            if request.numbers and number not in request.numbers:
                continue
            run = partial(_run, request, job, number, catalogue[job.case.op], device, group)
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


def _own_way(
    request: ProfileRequest, catalogue: Catalogue, device: Device, group: Group
) -> AbstractContextManager[Callable[[int], None]]:
    """The tool's own way of running a case, on all ranks where there are several."""
    ways = Ways.of(tools()[request.tool])
    assert ways.running
    known = (request.jobs, dict(request.options), Path(request.files), catalogue, device)
    if group.size == 1:
        return ways.running(*known)
    device.use(group.local_rank)
    return _alike(ways.running(*known, group=group), group)


@contextmanager
def _alike(running: AbstractContextManager[Callable[[int], None]], group: Group) -> Iterator[Callable[[int], None]]:
    """What a tool runs ends on every rank if it fails on any, by EndedError, as steps of a `Session` do."""
    with running as own:

        def run(number: int) -> None:
            try:
                own(number)
                group.barrier()
            except PeerError as other:
                raise EndedError(cast(Status, other.status), other.text) from other
            except Exception as error:
                try:
                    failure = group.failed(*_ending(error))
                except TimeoutError:  # the other ranks wait for this one, and `_team` ends them
                    raise error from None
                raise EndedError(cast(Status, failure.status), failure.text) from error

        yield run


def _ending(error: Exception) -> tuple[Status, str]:
    if isinstance(error, EndedError):
        return error.status, error.text
    return "out_of_memory" if is_out_of_memory(error) else "crashed", described(error)


def _run(  # noqa: PLR0913, PLR0917 - what a case is run with
    request: ProfileRequest, job: Job, number: int, op: Op, device: Device, group: Group
) -> None:
    with Session(job.case, op, device, group) as session:
        session.prepare()
        if not request.checked and (wrong := session.check()):
            raise EndedError("wrong", wrong)
        calls = session.calls()
        with session.phase("warm"):
            for call in calls * _WARM_ROTATIONS:
                call()
            device.synchronize()
        with _recording(request, number, group) as marked, device.watched():
            device.mark(number, request.repeats)
            group.barrier()  # no rank begins while another one starts its profiler
            mark = marked if group.size > 1 else _no_mark
            with session.phase("sample"):
                mark(BEGIN)
                for turn in range(request.repeats):
                    calls[turn % len(calls)]()
                    mark(STEP)
                device.synchronize()


def _recording(request: ProfileRequest, number: int, group: Group) -> AbstractContextManager[Callable[[str], None]]:
    """The recording of a case, if it is recorded, with a function that marks a moment in the trace."""
    if not request.traces or (group.size > 1 and request.ranks and group.rank not in request.ranks):
        return nullcontext(_no_mark)
    from harness.profile import torch
    from harness.profile._record import recording

    return recording(torch.trace_of(Path(request.traces), number, group.rank if group.size > 1 else None))


def _no_mark(_name: str) -> None:
    """What marks nothing: a single rank's calls are told apart by their kernels, and not every rank is recorded."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
