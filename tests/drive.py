"""Run jobs in a process of its own, to be interrupted or killed: FOLDER, the largest file in bytes, jobs as JSON."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from harness import runner, store
from harness.model import Job, Limits, Measurement, StreamPoint
from harness.scenario import Plan


class Silent:
    """An observer that says nothing."""

    def planned(self, total: int, done: int) -> None: ...

    def note(self, text: str, share: float | None = None) -> None: ...

    def limited(self, limits: Limits) -> None: ...

    def started(self, job: Job, process: int) -> None: ...

    def finished(self, measurement: Measurement) -> None: ...


def known_limits(*_: object, **__: object) -> Limits:
    """Limits in place of measured ones, which take two more processes and have tests of their own."""
    return Limits((StreamPoint(read=2**20, written=2**20, seconds=1e-4, way="memcpy", is_copy=True),))


def main() -> None:
    folder, largest, *jobs = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest), resource.RLIM_INFINITY))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_limits", known_limits)
        runner.run(
            Plan(scenarios=(), jobs=tuple(store.parse(Job, job) for job in jobs)),
            name="test",
            folder=Path(folder),
            device="cpu",
            plugins=tuple(
                Path(__file__).parent / "plugins" / f"{name}.py" for name in ("cuda_faults", "faults", "ranks", "small")
            ),
            observer=Silent(),
        )


if __name__ == "__main__":
    main()
