"""How a signal ends a command: what was measured stays, and no process that the command has started goes on."""

from __future__ import annotations

import os
import signal
import threading
from os import _exit  # as it is before any code of others is loaded
from types import FrameType
from typing import Any, Self

from harness.processes import descendants

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ending:
    """A context in which a command runs. number: the first signal that asked it to end; 0 if none has.

    The first signal raises KeyboardInterrupt, after which the command cleans up. The second one kills all processes
    below the command at once, so that it waits for none of them. After the third one the command ends where it is.
    Signals that were ignored before, as nohup does, stay so. The exit status is 128 and the number of the signal.
    """

    def __init__(self) -> None:
        self.number = 0
        self._heard = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        descendants.adopt()
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """End what goes on after a signal. Raises SystemExit with the status that tells of the signal."""
        status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 0
        if self.number or kind is KeyboardInterrupt or status > 128:
            descendants.end(os.getpid())
        for number, before in self._before.items():
            signal.signal(number, before)
        if self.number or kind is KeyboardInterrupt:
            raise SystemExit(128 + (self.number or signal.SIGINT)) from None

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._heard += 1
        if self._heard > 1:
            descendants.end(os.getpid())
        if self._heard > 2:
            _exit(128 + self.number)
        if self._heard == 1:
            self.number = number
            raise KeyboardInterrupt
