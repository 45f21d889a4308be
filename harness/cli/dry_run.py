"""`harness run --dry-run`: the cases, their bytes, and the time that this machine needs for them at best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from rich.table import Table

from harness import devices, limits, units
from harness.cli.console import open_console
from harness.cli.estimate import Estimate
from harness.metrics import Subject
from harness.model import Job, Limits, Measurement
from harness.ops import Op
from harness.processes.supervisor import too_few
from harness.scenario import Plan
from harness.session import bytes_needed


def show(plan: Plan, ops: Mapping[str, Op], kind: str, repeat: int) -> None:
    """Print the table of cases, then what the run as a whole takes."""
    machine = devices.kinds()[kind].machine()
    known = limits.recall(machine)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("case", overflow="fold")
    for title in ("read", "written", "at best", "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for job in plan.jobs:
        table.add_row(*_row(job, ops[job.case.op], known, machine.device.memory_bytes))
    console = open_console()
    console.print(table)
    for reason, count in Counter(too_few(kind, job.case.world) for job in plan.jobs).items():
        if reason:
            console.print(f"\n{units.plural(count, 'case')} can't run here: {reason}", markup=False)
    if plan.left_out:
        console.print(f"\n{plan.left_out}", markup=False)
    estimate = Estimate.make(plan, kind, repeat)
    about = timedelta(seconds=round(estimate.total))
    console.print(f"\n{units.plural(estimate.count, 'measurement')} on {machine.name}, about {about}", markup=False)
    if known is None:
        text = "There are no times at best: run 'harness peak' once on this machine, which measures its limits."
        console.print(text, markup=False)


def _row(job: Job, op: Op, known: Limits | None, memory: int) -> tuple[str, ...]:
    case = job.case
    variant = op.variants[case.variant]
    work, timer = op.work_done_by(variant, case.values, case.dtype), variant.timer or op.timer
    best = Subject.of(Measurement(case, "skipped", work=work, timer=timer), known).best
    needed = bytes_needed(case, op)
    return (
        case.id,
        units.size(work.read),
        units.size(work.written),
        units.seconds(best) if best else "-",
        f"{units.size(needed)}{'' if needed <= memory else ', out of memory'}",
    )
