"""Teams without any real process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.model import Measurement
from harness.processes.messages import Measured, Ready

ROOT = Path("/elsewhere")


class FakeTeam:
    """A team whose start ends as `starts` say, one after the other. made: every team."""

    made: list[FakeTeam]
    starts: list[Ready | Exception]

    def __init__(
        self,
        device: str,
        plugins: Any,
        size: int,
        root: Path | None,
        around: object = None,
        *,
        compiler: bool = False,
        waits: bool = False,
    ) -> None:
        self.size, self.root, self.alive, self.compiler, self.waits = size, root, True, compiler, waits
        self.ready: Ready | None = None
        self.made.append(self)

    def wait_until_ready(self) -> Ready:
        if self.ready is None:
            found = self.starts.pop(0)
            if isinstance(found, Exception):
                self.alive = False
                raise found
            self.ready = found
        return self.ready

    def wait_until_loaded(self) -> None:
        """Its start decides whether it could."""
        if isinstance(self.starts[0], Exception):
            self.alive = False
            raise self.starts.pop(0)  # type: ignore[misc]

    def confirm(self, limit: float) -> None:
        """It stands by all that it says."""

    def ask(self, question: Any, kind: Any, limit: float) -> dict[int, Measured]:
        return {0: Measured(Measurement(question.job.case, "ok"))}

    def close(self) -> None:
        self.alive = False

    kill = close
