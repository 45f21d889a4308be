"""The process that measures: `python -m harness.processes.child`, which the parent starts and asks through stdin.

It may die of what it measures; the parent sees to the rest. One worker is one rank: of several that measure a case
together each gets the same requests, and only rank 0 is listened to.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import harness
from harness import devices, limits, measure, ranks, scenario
from harness.errors import HarnessError, UsageError
from harness.model import Case, Job, Measurement
from harness.ops import Catalogue
from harness.processes.messages import (
    VERSION,
    Failed,
    Measure,
    MeasureCeilings,
    Measured,
    Progress,
    Ready,
    Reply,
    Request,
    Result,
    Survey,
    Surveyed,
    decode_request,
    encode,
)

_PR_SET_PDEATHSIG = 1
_FRAMES = 4


class Worker:
    """What a worker needs to answer: its device, the ops, and the other ranks."""

    def __init__(self, device: str, plugins: Sequence[Path], reply: Callable[[Reply], None]) -> None:
        self._device = devices.kinds()[devices.choose(device)]
        self._ops = Catalogue(plugins)
        self._reply = reply
        # So that 'ready' means it, and no case pays for the import. It doesn't touch the device: the gate starts this
        # process while another one measures.
        import torch  # noqa: F401

        self._group = ranks.from_environment()

    def answer(self, request: Request) -> Reply:
        """The reply to one request. Lets pass whatever may have broken the device's context."""
        match request:
            case Measure(job, process):
                try:
                    measurement = measure.measure(job, self._ops[job.case.op], self._device, self._group, process)
                except HarnessError as error:
                    measurement = _crashed(job.case, process, f"{error.message}\n{error.advice}".rstrip())
                return Result(measurement)
            case MeasureCeilings(start) if start:
                return Measured(limits.again(self._device, start))
            case MeasureCeilings():
                measured = limits.measure(self._device, self._progress)
                limits.remember(self._device.machine(), measured)
                return Measured(measured)
            case Survey(files, jobs):
                known = tuple(job.case.id for job in jobs if self._knows(job.case))
                return Surveyed(tuple(self._jobs(Path(file)) for file in files), known)

    def _jobs(self, file: Path) -> tuple[Job, ...] | None:
        """What a scenario file asks for, as this code understands it; None if it doesn't."""
        try:
            definitions = scenario.load([file], self._ops)
            return scenario.plan(definitions, self._ops, scenario.Selection(self._device.kind)).jobs
        except UsageError:
            return None

    def _knows(self, case: Case) -> bool:
        """Whether this code can be asked for the case: it may have another op of that name, or none."""
        op = self._ops.get(case.op)
        variant = op.variants.get(case.variant) if op else None
        if op is None or variant is None:
            return False
        symbols = tuple(symbol for symbol, _ in case.shape)
        return case.device in variant.devices and case.dtype in op.dtypes and tuple(op.symbols) == symbols

    def _progress(self, text: str, share: float) -> None:
        self._reply(Progress(text, share))


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer requests until standard input ends. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="harness.processes.child", description="started by 'harness run'; not for users"
    )
    parser.add_argument("--device", required=True)
    parser.add_argument("--replies", type=int, required=True, metavar="FD")
    parser.add_argument("--ops", type=Path, nargs="*", default=[], metavar="FILE")
    options = parser.parse_args(arguments)
    _tie_to_parent()

    # A child of this process that held the pipe open would hide the worker's death from the parent.
    os.set_inheritable(options.replies, False)
    with os.fdopen(options.replies, "wb", buffering=0) as replies:

        def reply(message: Reply) -> None:
            replies.write(encode(message))

        try:
            worker = Worker(options.device, options.ops, reply)
            reply(Ready(VERSION, str(Path(harness.__file__).resolve().parents[1])))
            for line in sys.stdin:
                _serve(worker, decode_request(line), reply)
        except HarnessError as error:
            reply(Failed(error.message, error.advice, error.exit_code))
            return error.exit_code
    return 0


def _serve(worker: Worker, request: Request, reply: Callable[[Reply], None]) -> None:
    """Answer, or say what was raised and leave: after a device error nothing that this process measures is worth it."""
    try:
        reply(worker.answer(request))
    except Exception as error:
        traceback.print_exc()
        if isinstance(request, Measure):
            reply(Result(_crashed(request.job.case, request.process, _describe(error)), leaving=True))
        raise SystemExit(1) from error


def _crashed(case: Case, process: int, error: str) -> Measurement:
    return Measurement(case, "crashed", error=error, process=process)


def _describe(error: Exception) -> str:
    """The exception, then the innermost frames that it came through, the last one first."""
    summary = "".join(traceback.format_exception_only(error)).rstrip()
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return "\n".join([summary, *(f"  {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in reversed(frames))])


def _tie_to_parent() -> None:
    """Die with the parent, leave Ctrl-C to it, and say where Python was when killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)


if __name__ == "__main__":
    sys.exit(main())
