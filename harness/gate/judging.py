"""The working tree's kernels, judged by the base's reference, check and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.gate.records import Judged
from harness.model import Job
from harness.processes import scratch
from harness.processes.supervisor import Workers


def judged(base: Workers, now: Workers, jobs: Sequence[Job]) -> tuple[Judged, ...]:
    """What the base finds wrong with each case of the working tree, and what it can't judge; nothing that is right.

    The base judges its own call first. What it finds wrong there says nothing about the working tree.
    """
    with scratch.folder("judging") as folder:
        found = [_judge(base, now, job, folder) for job in jobs]
    return tuple(each for each in found if each)


def _judge(base: Workers, now: Workers, job: Job, folder: Path) -> Judged | None:
    wrong, unable = base.exchange("give", job, folder)
    for workers in (base, now):
        if unable:
            break
        wrong, unable = workers.exchange("work", job, folder)
        if not wrong and not unable:
            wrong, unable = base.exchange("judge", job, folder)
        if workers is base and wrong:
            unable = f"the base finds its own result wrong, too: {wrong}"
    if unable.startswith("unsupported: "):
        return None  # its measurements say so, too
    # Where the base's own inputs differ from call to call, nothing can be said.
    if not wrong and not unable and not base.exchange("own", job, folder)[0]:
        other, _ = now.exchange("own", job, folder)
        unable = other and f"it is timed with another input {other} than the base's, which may take less time"
    if unable:
        return Judged(job.case, unable=unable)
    return Judged(job.case, wrong=wrong) if wrong else None
