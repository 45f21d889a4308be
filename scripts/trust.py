"""Compare the harness's times with two independent ones: Nsight Compute's counter, and triton.testing.do_bench.

    harness run prelu copy --repeat 5 --output reports/mine/trust
    python scripts/trust.py reports/mine/trust > reports/mine/trust.md

Needs a GPU, ncu on the PATH and triton. It takes the cases of the run that move 100 MB or more. Each is called on the
harness's own rotation of buffers, so that all three see the same state of the L2.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import stats, store, units
from harness.devices.cuda import Cuda
from harness.model import Case, Result, Run
from harness.ops import Catalogue
from harness.session import Session

LEAST_BYTES = 100_000_000
CALLS = 12
_METRIC = "gpu__time_duration.sum"
NCU = [
    *("ncu", "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"),
    *("--metrics", _METRIC, "--csv", "--page", "raw", "--print-units", "base"),
]
BAR_OTHERS, BAR_PROCESSES = 0.02, 0.002


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds per call of one case by each way of timing. overhead: do_bench's time of a kernel of one element."""

    result: Result
    ncu: float
    do_bench: float
    overhead: float

    @property
    def ours(self) -> float:
        assert self.result.time is not None  # `comparable` took only timed cases
        return self.result.time

    @property
    def off_ncu(self) -> float:
        return self.ours / self.ncu - 1

    @property
    def off_do_bench(self) -> float:
        return self.ours / self.do_bench - 1

    @property
    def off_without_overhead(self) -> float:
        return self.ours / (self.do_bench - self.overhead) - 1

    @property
    def between_processes(self) -> float:
        return stats.range_over_median(self.result.medians)


def comparable(run: Run) -> list[Result]:
    """Results of timed kernels that move enough bytes. Library copies aren't kernels, so ncu doesn't see them."""
    timed = [r for r in run.results if r.time and r.timer == "graph" and r.case.world == 1]
    return [r for r in timed if r.work and r.work.moved >= LEAST_BYTES]


def rotations(cases: list[Case]) -> Iterator[tuple[Case, list[Callable[[], object]]]]:
    """Each case with its calls, one a set of buffers, checked and warmed up as for a measurement."""
    device, catalogue = Cuda(), Catalogue()
    for case in cases:
        with Session(case, catalogue[case.op], device) as session:
            session.prepare()
            if wrong := session.check():
                sys.exit(f"{case.id} is wrong: {wrong}")
            calls = session.calls()
            for call in calls * 2:
                call()
            device.synchronize()
            yield case, calls
            del calls, call


def child_ncu(cases: list[Case]) -> None:
    """Call each case between the profiler's start and stop. It runs under ncu, which records only what lies there."""
    import torch

    for _, calls in rotations(cases):
        torch.cuda.profiler.start()
        for turn in range(CALLS):
            calls[turn % len(calls)]()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def child_do_bench(cases: list[Case]) -> None:
    """Print a JSON object of seconds by case id. The key '' has the overhead, measured with one element."""
    import torch
    from triton.testing import do_bench

    one = torch.ones(1, device="cuda")
    found = {"": do_bench(one.neg_, warmup=50, rep=200, return_mode="median") * 1e-3}
    for case, calls in rotations(cases):
        turn = iter(range(10**9))

        def one(calls: list[Callable[[], object]] = calls, turn: Iterator[int] = turn) -> None:
            calls[next(turn) % len(calls)]()

        found[case.id] = do_bench(one, warmup=50, rep=200, return_mode="median") * 1e-3
    print(json.dumps(found))


def ask_child(mode: str, folder: Path, prefix: list[str]) -> str:
    """Standard output of this script in a fresh process."""
    command = [*prefix, sys.executable, __file__, mode, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def launches(output: str) -> list[tuple[str, float]]:
    """Name and nanoseconds of each kernel, in the order of launches, from what ncu prints."""
    rows = list(csv.DictReader(io.StringIO(output[output.index('"ID"') :])))[1:]  # the first row holds the units
    return [(row["Kernel Name"], float(row[_METRIC].replace(",", ""))) for row in rows]


def ncu_seconds(folder: Path, cases: list[Case]) -> dict[str, float]:
    """Median gpu__time_duration of each case's calls. Clocks and caches are left as they are."""
    nanoseconds = [seconds for _, seconds in launches(ask_child("--ncu", folder, NCU))]
    if len(nanoseconds) != CALLS * len(cases):
        sys.exit(f"ncu saw {len(nanoseconds)} kernels where {CALLS} for each of {len(cases)} cases were launched")
    chunks = [nanoseconds[i * CALLS : (i + 1) * CALLS] for i in range(len(cases))]
    return {case.id: statistics.median(chunk) * 1e-9 for case, chunk in zip(cases, chunks, strict=True)}


def render(run: Run, folder: Path, rows: list[Row]) -> str:
    """The page's first part: how close the times are, and a line for each case."""
    machine = run.header.machine
    how = (
        f"{machine.name}, driver {machine.driver}. Cases of 100 MB and more. `ours` is the median over"
        f" {run.header.repeat} fresh processes; `ncu` the median gpu__time_duration of {CALLS} calls on the same"
        " rotation of buffers, with clocks and caches left alone; `do_bench` triton's, which overwrites the L2 before"
        " each call and times it between two events. A kernel of one element takes"
        f" {units.seconds(rows[0].overhead)} that way; the last column but one is the difference with that taken off,"
        " which takes off its microsecond of work too."
    )
    lines = ["# Do the times hold?", "", *_agreement(rows), ""]
    lines += [
        how,
        "",
        "| case | MB | ours | ncu | off | do_bench | off | off, less its overhead | between processes |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        work = row.result.work
        lines.append(
            f"| {row.result.case.id} | {work.moved / 1e6 if work else 0:.0f} | {units.seconds(row.ours)}"
            f" | {units.seconds(row.ncu)}"
            f" | {row.off_ncu:+.1%} | {units.seconds(row.do_bench)} | {row.off_do_bench:+.1%}"
            f" | {row.off_without_overhead:+.1%} | {units.percent(row.between_processes, 2)} |"
        )
    lines += ["", f"Made by `python scripts/trust.py` from the run in `{folder.name}/`."]
    return "\n".join(lines)


def _agreement(rows: list[Row]) -> Iterator[str]:
    """How close our times are to the times of other ways, and to each other in several processes."""
    for name, values, bar in (
        ("ours beside ncu", [abs(row.off_ncu) for row in rows], BAR_OTHERS),
        ("ours beside do_bench", [abs(row.off_do_bench) for row in rows], BAR_OTHERS),
        ("ours beside do_bench less its overhead", [abs(row.off_without_overhead) for row in rows], BAR_OTHERS),
        ("ours between processes", [row.between_processes for row in rows], BAR_PROCESSES),
    ):
        within = sum(value <= bar for value in values)
        yield (
            f"- {name}: {within} of {len(values)} cases within {units.percent(bar)};"
            f" median {units.percent(statistics.median(values), 2)}, worst {units.percent(max(values), 2)}."
        )


def main() -> None:
    """Print the table, or do one child's part of it."""
    *mode, path = sys.argv[1:] or sys.exit(__doc__)
    folder = Path(path)
    run = store.load(folder)
    results = comparable(run)
    cases = [result.case for result in results]
    if mode == ["--ncu"]:
        child_ncu(cases)
    elif mode == ["--do-bench"]:
        child_do_bench(cases)
    else:
        ncu, do_bench = ncu_seconds(folder, cases), json.loads(ask_child("--do-bench", folder, []).splitlines()[-1])
        print(render(run, folder, [Row(r, ncu[r.case.id], do_bench[r.case.id], do_bench[""]) for r in results]))


if __name__ == "__main__":
    main()
