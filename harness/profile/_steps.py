"""Records a user's program with torch's profiler: the steps of its optimizer that are asked for.

The profiler begins with the program and marks where the steps begin, so that a program which ends before has a timeline
as well. It ends with the steps, or where the program starts a profiler of its own, since a process can have only one;
it doesn't start again: what is open when torch's profiler ends, such as the program's own `record_function`, would then
be closed in another profiler, which corrupts memory. A process that the program forks isn't watched: the profiler's
threads don't exist there, so that whoever stops the profiler there waits for ever. Steps of another thread than the
program's first one aren't counted: torch's profiler sees nothing of that thread's operators, and to end it there ends
the program with a segmentation fault.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple

import harness
from harness.profile._trace import BEGIN, END, STEP


class Window(NamedTuple):
    """The steps that are recorded: `active` of them, after `wait` others, which compile, fill caches and allocate."""

    wait: int
    active: int


_TOLD = -1
"""Who counts steps where the program says itself where they end, by harness.step(). Optimizers have numbers above 0."""


class Recorder:
    """Torch's profiler around a program. path: of the trace. window: of steps."""

    def __init__(self, path: Path, window: Window) -> None:
        from torch.profiler import profile

        self.process = os.getpid()
        self._path, self._window = path, window
        self._profiler: Any = profile()  # of everything that this torch can watch
        self._profiler.start()
        self._steps = 0
        self._stepping: int | None = None
        self._was_interrupted = False
        self._thread = threading.get_ident()
        self._was_elsewhere = False
        self._is_lost = False

    def step(self, stepping: int) -> None:
        """A step has ended. stepping: who counts; what counts first goes on counting, as programs may have several.

        A program that says itself where its steps end is believed from then on, unless the recording has begun.
        """
        if self._is_on and threading.get_ident() != self._thread:
            self._was_elsewhere = True
            return
        if self._stepping is None:
            self._stepping = stepping
        elif stepping == _TOLD != self._stepping and self._steps < max(1, self._window.wait):
            self._stepping, self._steps = _TOLD, 0
        if stepping != self._stepping or not self._is_on:
            return
        self._steps += 1
        if self._steps == self._window.wait:
            self._mark(BEGIN)
            return
        if self._steps > self._window.wait:
            self._mark(STEP)
        if self._steps == sum(self._window):
            self._mark(END)
            self.stop()

    def stop(self) -> None:
        """End the recording, unless it has ended, and write the trace."""
        if self._is_on:
            _synchronize()  # so that no kernel is still to come
            profiler, self._profiler = self._profiler, None
            profiler.stop()
            profiler.export_chrome_trace(str(self._path))

    def give_way(self, begin: Callable[[Any], None]) -> Callable[[Any], None]:
        """`begin` of any profiler: ours stops before. In another thread it can't, and is left as it is."""

        @wraps(begin)
        def begins(profiler: Any) -> None:
            self._was_interrupted = self._was_interrupted or self._is_on
            if self._is_on and threading.get_ident() != self._thread:
                self._profiler, self._is_lost = None, True
            self.stop()
            begin(profiler)

        return begins

    def told(self) -> str:
        """What was recorded, in a sentence."""
        if self._is_lost:
            return "recorded: nothing, since the program began a profiler of its own in another thread than its first"
        wait, last = self._window.wait, min(self._steps, sum(self._window))
        whose = "by harness.step()" if self._stepping == _TOLD else "of its optimizer"
        steps = f"steps {wait + 1} to {last} {whose}; others by --wait and --active"
        what = "the whole program" if self._steps <= wait else steps
        if self._was_elsewhere and self._steps <= wait:
            what += (
                ", but no operators of the thread that makes its steps, since torch's profiler sees those of the "
                "program's first thread alone: train in that one"
            )
        rank = os.environ.get("RANK")
        where = f" in rank {rank}" if rank else ""
        return f"recorded{where}: {what}{', until its own profiler began' if self._was_interrupted else ''}"

    @property
    def _is_on(self) -> bool:
        return self._profiler is not None and os.getpid() == self.process

    def _mark(self, name: str) -> None:
        from torch.profiler import record_function

        if name != STEP:  # to wait for the device at every step would slow the program down
            _synchronize()
        with record_function(name):
            pass


@contextmanager
def recording(path: Path, window: Window) -> Iterator[None]:
    """Watch a program meanwhile, and write one trace. The trace is written after an error and after Ctrl-C, too."""
    from torch.autograd.profiler import profile
    from torch.optim.optimizer import register_optimizer_step_post_hook

    recorder = Recorder(path, window)
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: recorder.step(id(optimizer)))
    told = partial(recorder.step, _TOLD)
    harness._watching.append(told)
    begin = profile._prepare_trace
    profile._prepare_trace = recorder.give_way(begin)
    try:
        yield
    finally:
        profile._prepare_trace = begin
        hook.remove()
        harness._watching.remove(told)
        recorder.stop()
        if os.getpid() == recorder.process:
            print(recorder.told(), file=sys.stderr)  # noqa: T201


def _synchronize() -> None:
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
