"""What a check tells while it works: each case with its outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.markup import escape

from harness.cli.progress import Lines
from harness.errors import brief
from harness.model import FAILED, Job, Measurement
from harness.ops import Op

_WIDTH = len("out of memory")


class Told(Lines):
    """Prints each case with its outcome as soon as it is checked, and on a terminal the case that is being checked."""

    def __init__(self, console: Console, progress: Console, ops: Mapping[str, Op]) -> None:
        super().__init__(console)
        self._ops = ops
        self._status = progress.status("starting") if progress.is_terminal else None
        self._outcomes: Counter[str] = Counter()

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def started(self, job: Job, process: int) -> None:  # noqa: ARG002 - as an observer has it
        """Show the case on a terminal."""
        if self._status:
            self._status.update(escape(job.case.id))

    def finished(self, measurement: Measurement) -> None:
        """Print the outcome, and below it why it isn't 'ok'."""
        op = self._ops[measurement.case.op]
        # Called once and then compared with nothing: that says only that it doesn't crash.
        unchecked = measurement.status == "ok" and op.reference is None and op.check is None
        status = "unchecked" if unchecked else measurement.status.replace("_", " ")
        self._outcomes[status] += 1
        parts = [f"{status:{_WIDTH}}", measurement.case.id, *(f"[{warning.code}]" for warning in measurement.warnings)]
        self._say("  ".join(parts))
        reason = "the op has neither a reference nor a check" if unchecked else brief(measurement.error or "")
        if reason:
            self._say(f"{'':{_WIDTH}}  {reason}")

    @property
    def passed(self) -> bool:
        """Whether some case is right and none failed."""
        return self._outcomes["ok"] > 0 and not any(self._outcomes[status] for status in FAILED)

    @property
    def crashed(self) -> bool:
        """Whether some case crashed, as by a size that the op can't have."""
        return self._outcomes["crashed"] > 0

    @property
    def summary(self) -> str:
        """How many cases ended in which way."""
        sorted_ = sorted(self._outcomes.items(), key=lambda item: item[0] != "ok")
        counts = ", ".join(f"{count} {status}" for status, count in sorted_)
        return counts if self._outcomes["ok"] else f"{counts}: no result was found right"
