"""Run jobs in a process of its own, to be interrupted or killed: FOLDER, the largest file in bytes, jobs as JSON."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from harness import runner, store
from harness.model import Job, Measurement
from harness.scenario import Plan


class Silent:
    """An observer that says nothing."""

    def planned(self, total: int, done: int) -> None: ...

    def note(self, text: str) -> None: ...

    def started(self, job: Job, process: int) -> None: ...

    def finished(self, measurement: Measurement) -> None: ...


folder, largest, *jobs = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest), resource.RLIM_INFINITY))
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
