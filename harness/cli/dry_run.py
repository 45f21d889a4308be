"""`harness run --dry-run`: the cases, their bytes, and the time that this machine needs for them at best.

A dry run needs no device. Without one nothing is known of the machine: no time at best, and no memory to fit into.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta

from harness import devices, limits, units
from harness.cli.console import open_console
from harness.cli.estimate import Estimate, at_best
from harness.model import Job, Limits
from harness.ops import Op
from harness.report import terminal
from harness.report.tree import Column, Page, Table, text_column
from harness.scenario import Plan
from harness.session import bytes_needed


def show(plan: Plan, ops: Mapping[str, Op], kind: str, repeat: int) -> None:
    """Print the table of cases, then what the run as a whole takes."""
    missing = devices.kinds()[kind].missing()
    machine = None if missing else devices.kinds()[kind].machine()
    known = limits.recall(machine) if machine else None
    memory = machine.device.memory_bytes if machine else math.inf
    figures = zip(*(_figures(job, ops[job.case.op], known, memory) for job in plan.jobs), strict=True)
    columns = [text_column("case", (job.case.id for job in plan.jobs), code=True)]
    columns += map(Column, ("read", "written", "at best", "memory"), figures)
    console = open_console()
    terminal.show(Page("", (Table(tuple(columns)),)), console)
    for reason, count in _too_large(plan, kind) if machine else ():
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


def _too_large(plan: Plan, kind: str) -> Iterator[tuple[str, int]]:
    """Why cases have more ranks than this machine has devices, and how many cases."""
    if several := [job.case.world for job in plan.jobs if job.case.world > 1]:
        # What processes say to each other takes a fifth of a dry run to load.
        from harness.processes.supervisor import too_few

        yield from ((reason, count) for reason, count in Counter(too_few(kind, n) for n in several).items() if reason)


def _figures(job: Job, op: Op, known: Limits | None, memory: float) -> tuple[str, ...]:
    """What a row tells. Ops that make their inputs themselves, such as whole steps, don't say what they need."""
    case = job.case
    work, best = op.work_done_by(op.variants[case.variant], case.values, case.dtype), at_best(job, op, known)
    needed = bytes_needed(case, op)
    moved = (units.size(work.read), units.size(work.written)) if work.read + work.written else ("", "")
    much = f"{units.size(needed)}{'' if needed <= memory else ', out of memory'}" if needed else ""
    return (*moved, units.seconds(best) if best else "", much)
