"""What `harness run --dry-run` shows: the cases, their bytes, and the time below which no kernel can get."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from rich.table import Table

from harness import devices, limits, units
from harness.cli.console import open_console
from harness.measure import bytes_needed
from harness.model import Ceilings, Job
from harness.ops import Op
from harness.scenario import Plan

_BESIDE_SAMPLING = 1.0  # seconds a case, for compiling and checking
_START = 15.0  # seconds a process, for loading torch and measuring the ceilings


def show(plan: Plan, ops: Mapping[str, Op], kind: str, repeat: int) -> None:
    """Print the table of cases, then what the run as a whole takes."""
    machine = devices.kinds()[kind].machine()
    known = limits.recall(machine)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("case", overflow="fold")
    for title in ("read", "written", "floor", "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for job in plan.jobs:
        table.add_row(*_row(job, ops[job.case.op], known, machine.memory_bytes))
    console = open_console()
    console.print(table)
    total = len(plan.jobs) * repeat
    longest = repeat * (_START + sum(job.timing.max_time + _BESIDE_SAMPLING for job in plan.jobs))
    estimate = timedelta(seconds=round(longest))
    console.print(f"\n{total} measurements on {machine.name}, at most about {estimate}", markup=False)
    if known is None:
        console.print("No floor times: run 'harness peak' once on this machine to measure its ceilings.", markup=False)


def _row(job: Job, op: Op, known: Ceilings | None, memory: int) -> tuple[str, ...]:
    case = job.case
    work = op.essential(case.symbols, case.dtype)
    floor = known.seconds(work) if known else None
    needed = bytes_needed(case, op)
    return (
        case.id,
        units.size(work.read),
        units.size(work.written),
        units.seconds(floor) if floor else "-",
        f"{units.size(needed)}{'' if needed <= memory else ', out of memory'}",
    )
