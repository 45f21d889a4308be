"""`harness run --dry-run`: the cases, their bytes, and the time that this machine needs for them at best.

A dry run needs no device. Without one nothing is known of the machine: no time at best, and no memory to fit into.
"""

from __future__ import annotations

import math
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
    missing = devices.kinds()[kind].missing()
    machine = None if missing else devices.kinds()[kind].machine()
    known = limits.recall(machine) if machine else None
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("case", overflow="fold")
    for title in ("read", "written", "at best", "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for job in plan.jobs:
        table.add_row(*_row(job, ops[job.case.op], known, machine.device.memory_bytes if machine else math.inf))
    console = open_console()
    console.print(table)
    for reason, count in Counter(too_few(kind, job.case.world) for job in plan.jobs if machine).items():
        if reason:
            console.print(f"\n{units.plural(count, 'case')} can't run here: {reason}", markup=False)
    if plan.left_out:
        console.print(f"\n{plan.left_out}", markup=False)
    estimate = Estimate.make(plan, kind, repeat)
    about = timedelta(seconds=round(estimate.total))
    where = machine.name if machine else f"a {kind} device"
    console.print(f"\n{units.plural(estimate.count, 'measurement')} on {where}, about {about}", markup=False)
    if missing:
        console.print(f"No such device can be used here: {missing}", markup=False)
    elif known is None:
        text = "There are no times at best: run 'harness peak' once on this machine, which measures its limits."
        console.print(text, markup=False)


def _row(job: Job, op: Op, known: Limits | None, memory: float) -> tuple[str, ...]:
    """A row of the table. Ops that make their inputs themselves, such as whole steps, don't say what they need."""
    case = job.case
    variant = op.variants[case.variant]
    work, timer = op.work_done_by(variant, case.values, case.dtype), variant.timer or op.timer
    best = Subject.of(Measurement(case, "skipped", work=work, timer=timer), known).best
    needed = bytes_needed(case, op)
    return (
        case.id,
        *((units.size(work.read), units.size(work.written)) if work.read + work.written else ("-", "-")),
        units.seconds(best) if best else "-",
        f"{units.size(needed) if needed else '-'}{'' if needed <= memory else ', out of memory'}",
    )
