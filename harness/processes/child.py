"""The process that measures: `harness.processes.child`, which the parent starts and asks through standard input.

What it measures may kill it; the parent then starts another one. Each process is one rank: the ranks that measure a
case together all get the same questions, and each answers on its own pipe.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from harness import devices, intact, limits, measure, ranks, scenario, source
from harness.errors import HarnessError, InputError, UsageError, described
from harness.model import Case, Measurement
from harness.ops import Catalogue
from harness.ops.known_cases import recognised
from harness.processes import descendants, exchange, python
from harness.processes.messages import (
    VERSION,
    Confirm,
    Confirmed,
    Exchange,
    Exchanged,
    Failed,
    LimitsMeasured,
    Measure,
    Measured,
    MeasureLimits,
    MeasureLimitsAgain,
    Progress,
    Question,
    Ready,
    Reply,
    SurveyCode,
    Surveyed,
    decode_question,
    encode,
)
from harness.processes.strictness import spared, strictness
from harness.processes.untimed import untimed
from harness.processes.used import UsedFiles

_PR_SET_PDEATHSIG = 1


class Worker:
    """Answers questions in a measuring process, with its device, the ops, and the other ranks."""

    def __init__(
        self,
        device: str,
        plugins: Sequence[Path],
        send: Callable[[Reply], None],
        heard: UsedFiles | None = None,
        compiler: bool = False,
    ) -> None:
        self._device = devices.kinds()[devices.choose(device)]
        self._send = send
        self._heard = heard
        # Imported now, so that 'ready' is true and no case pays for the import. It doesn't touch the device: the gate
        # starts this process while another one measures. Nearly all that the import makes stays, so a search for
        # garbage meanwhile would only take time: a quarter of the whole. A search that came later, and went through all
        # of it, might fall into a case.
        gc.disable()
        import torch  # noqa: F401

        if compiler:
            # Most of its modules. If one can't be imported, the first compiled case says so.
            with suppress(Exception):
                importlib.import_module("torch._inductor.compile_fx")
        gc.freeze()
        gc.enable()
        if heard:
            heard.libraries_loaded()
        # Before any code of a plug-in runs.
        intact.remember()
        self._replaced = intact.replaced
        before = dict(os.environ)
        self._ops = Catalogue(plugins)
        changed = {name: os.environ.get(name) for name, _ in before.items() ^ os.environ.items()}
        self._variables = tuple(sorted(changed.items()))
        self._group = ranks.from_environment()

    def answer(self, question: Question) -> Reply:  # noqa: PLR0911 - one return for each question
        """The answer to one question. Raises errors after which the device's context may be unusable."""
        match question:
            case Measure(job, process, timed):
                job = replace(job, case=recognised(job.case, self._ops))
                op = self._ops[job.case.op]
                try:
                    measurement = measure.measure(job, op, self._device, self._group, process, timed=timed)
                except HarnessError as error:
                    measurement = _crashed(job.case, process, described(error))
                if changed := self._replaced():
                    # What comes next would be measured by the same functions.
                    return Measured(Measurement(job.case, "wrong", error=changed, process=process), leaving=True)
                return Measured(measurement)
            case MeasureLimits(needs, fresh):
                return LimitsMeasured(limits.ready(self._device, needs, fresh, self._progress))
            case MeasureLimitsAgain(start):
                return LimitsMeasured(limits.again(self._device, start))
            case Confirm():
                return Confirmed()
            case Exchange(step, job, folder):
                job = replace(job, case=recognised(job.case, self._ops))
                op = self._ops[job.case.op]
                return Exchanged(*exchange.take(step, job, op, self._device, Path(folder), group=self._group))
            case SurveyCode(files, jobs):
                known = tuple(job.case.id for job in jobs if self._knows(recognised(job.case, self._ops)))
                plans = [self._plan(Path(file)) for file in files]
                asked = tuple(plan.jobs if plan else None for plan in plans)
                scenarios = tuple(plan.scenarios if plan else () for plan in plans)
                ops = {name: op for plan in plans if plan for name, op in plan.ops.items()}
                used = self._heard.so_far() if self._heard else ()
                return Surveyed(
                    asked,
                    known,
                    scenarios,
                    used,
                    strictness(ops.values()),
                    self._software,
                    spared(ops.values()),
                    self._variables,
                    untimed(ops.values()),
                )

    @cached_property
    def _software(self) -> tuple[tuple[str, str], ...]:
        """The driver and the packages that times rest on, each with its version."""
        machine = self._device.machine()
        return (*((("driver", machine.driver),) if machine.driver else ()), *machine.versions)

    def _plan(self, file: Path) -> scenario.Plan | None:
        """What a scenario file asks for, as this code understands it; None if it can't load the file.

        It may ask for nothing on this device.
        """
        try:
            definitions = scenario.load([file], self._ops)
            return scenario.plan(definitions, self._ops, scenario.Selection(self._device.kind))
        except InputError:
            return None
        except UsageError:
            return scenario.Plan((), ())

    def _knows(self, case: Case) -> bool:
        """Whether this code can measure the case: it may have another op of that name, or none."""
        op = self._ops.get(case.op)
        variant = op.variants.get(case.variant) if op else None
        if op is None or variant is None:
            return False
        chosen = dict(case.choices)
        return (
            variant.runs_on(case.device)
            and case.dtype in op.dtypes
            and tuple(op.symbols) == tuple(symbol for symbol, _ in case.shape)
            and tuple(op.choices) == tuple(chosen)
            and all(choice.accepts(chosen[name]) for name, choice in op.choices.items())
        )

    def _progress(self, text: str, share: float) -> None:
        self._send(Progress(text, share))


class _Pipe:
    """The pipe of replies. number: the number of the question being answered, which each reply repeats."""

    def __init__(self, descriptor: int) -> None:
        # A child of this process that held the pipe open would hide the death of this process from the parent.
        os.set_inheritable(descriptor, False)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._owner = os.getpid()
        self.number = 0

    def send(self, reply: Reply) -> None:
        """Write a reply. A forked copy of this process, which a variant made and let go on, ends here instead."""
        if os.getpid() != self._owner:
            os._exit(1)
        self._file.write(encode(replace(reply, number=self.number)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer questions until standard input ends. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="harness.processes.child", description="started by 'harness run'; not for users"
    )
    parser.add_argument("--device", required=True)
    parser.add_argument("--replies", type=int, required=True, metavar="FD")
    parser.add_argument("--ops", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--listen", type=Path, nargs="*", default=[], metavar="FOLDER")
    parser.add_argument("--compiler", action="store_true")
    parser.add_argument("--waits", action="store_true")
    options = parser.parse_args(arguments)
    _tie_to_parent()
    pipe = _Pipe(options.replies)
    send = pipe.send  # bound before any code of a plug-in runs
    try:
        before = [*sys.modules.values()]
        if options.waits and not _waited(send):
            return 0
        digest = source.digest(options.ops)  # before the rest is imported, so that it isn't of later code
        heard = UsedFiles(options.listen, before) if options.listen else None
        worker = Worker(options.device, options.ops, send, heard, options.compiler)
        send(Ready(VERSION, str(python.own_root()), digest))
        for line in sys.stdin:
            question = decode_question(line)
            pipe.number = question.number
            _serve(worker, question, send)
    except HarnessError as error:
        send(Failed(error.message, error.advice, error.exit_code))
        return error.exit_code
    # Python would search all objects of torch for garbage when it ends, which takes most of a second.
    gc.freeze()
    return 0


def _waited(send: Callable[[Reply], None]) -> bool:
    """Load torch and nothing of a side, then wait for a line. Returns whether one came before the end of the input."""
    gc.disable()  # as `Worker` does, which enables it
    importlib.import_module("torch")
    send(Progress("torch is loaded", 0.0))
    return bool(sys.stdin.readline())


def _serve(worker: Worker, question: Question, send: Callable[[Reply], None]) -> None:
    """Answer, or report what was raised and leave: after a device error, nothing that this process measures counts."""
    try:
        send(worker.answer(question))
    except HarnessError:
        raise
    except BaseException as error:  # also SystemExit: a variant that calls sys.exit(0) has crashed
        traceback.print_exc()
        if isinstance(question, Measure):
            send(Measured(_crashed(question.job.case, question.process, described(error)), leaving=True))
        raise SystemExit(1) from error


def _crashed(case: Case, process: int, error: str) -> Measurement:
    return Measurement(case, "crashed", error=error, process=process)


def _tie_to_parent() -> None:
    """Die with the parent, leave Ctrl-C to it, keep what loses its parent, and say where Python was when killed."""
    descendants.adopt()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)


if __name__ == "__main__":
    sys.exit(main())
