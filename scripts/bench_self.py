"""What the harness itself costs, and the most that it may cost (a bar). Prints a table; ends with 1 if a bar is missed.

python scripts/bench_self.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import runner, scenario, store
from harness.model import Case, DeviceFacts, Header, Job, Limits, Machine, Measurement, Scenario, Traffic, Work
from harness.ops import Catalogue

QUICK_RUNS = 15
LARGE_RUN = 5_000
TINY_CASES = 40
# Sampling, compiling and checking; everything else that a case takes is the harness.
NOT_COUNTED = frozenset({"compile", "check", "warm", "sample", "calls"})

TINY_OP = '''
"""An op that does next to nothing."""
from harness.ops import Op, Tensor

OP = Op("tiny", "y = x", {"N": "elements"}, (Tensor("x", ("N",)),), (Tensor("y", ("N",)),), dtypes=("float32",),
        reference=lambda ctx, t: {"y": t.x})


@OP.variant("copy", "torch's copy_", devices=("cpu", "cuda"))
def copy(ctx):
    return lambda t: t.y.copy_(t.x)
'''
# With a cold cache, buffers of four times the cache's size would have to be filled.
TINY_SCENARIO = f"""
title: Tiny cases
op: tiny
cache: hot
shapes: {[{"N": 1024 * (i + 1)} for i in range(TINY_CASES)]}
baseline: copy
timing: {{max_time: 0.02}}
"""


@dataclass(frozen=True)
class Bar:
    """What was measured, and the most that it may be."""

    name: str
    measured: float
    most: float
    unit: str

    @property
    def held(self) -> bool:
        """Whether the measured figure keeps to the bar."""
        return self.measured <= self.most


def main() -> int:
    """Measure everything, print it, and give the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        bars = [*quick_commands(), *a_run(Path(folder)), *a_large_report(Path(folder))]
    print(f"{'':44}{'measured':>12}{'bar':>12}")
    for bar in bars:
        verdict = "held" if bar.held else "MISSED"
        print(f"{bar.name:44}{bar.measured:>9.2f} {bar.unit:2}{bar.most:>9.2f} {bar.unit:2}  {verdict}")
    return 0 if all(bar.held for bar in bars) else 1


def quick_commands() -> Iterator[Bar]:
    """--help and list, against importing the libraries that draw them."""
    commands = {
        "import": [sys.executable, "-c", "import typer, rich"],
        "harness --help": [sys.executable, "-m", "harness", "--help"],
        "harness list": [sys.executable, "-m", "harness", "list"],
    }
    # In turns, so that other work of the machine slows all of them alike.
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(1 + QUICK_RUNS):
        for name, command in commands.items():
            times[name].append(wall_time(command))
    # The first round fills the caches of files and of bytecode.
    medians = {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
    reference = medians.pop("import")
    for name, seconds in medians.items():
        yield Bar(f"{name}, over 'import typer, rich'", seconds / reference, 2.5, "x")


def wall_time(command: list[str]) -> float:
    """Seconds that a command takes, its output thrown away."""
    # Installed packages have bytecode, so ours must have it too, even if this shell switches bytecode off.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    return time.perf_counter() - start


class Stopwatch:
    """An observer that notes when each case ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def planned(self, total: int, done: int) -> None:
        """Not timed."""

    def note(self, text: str, share: float | None = None) -> None:
        """Not timed."""

    def limited(self, limits: Limits) -> None:
        """Not timed."""

    def started(self, job: Job, process: int) -> None:
        """Not timed."""

    def finished(self, measurement: Measurement) -> None:
        """Note the time."""
        self.ends.append(time.perf_counter())


def a_run(folder: Path) -> Iterator[Bar]:
    """Tiny cases on the CPU: what a case costs beside itself, and the memory of the parent."""
    op, file = folder / "tiny.py", folder / "tiny_cases.yaml"
    op.write_text(TINY_OP)
    file.write_text(TINY_SCENARIO)
    catalogue = Catalogue((op,))
    plan = scenario.plan(scenario.load([file], catalogue), catalogue, scenario.Selection(device="cpu"))
    watch = Stopwatch()
    run = runner.run(plan, name="tiny", folder=folder / "timed", device="cpu", plugins=(op,), observer=watch)
    # The first case waits for its worker to load torch, which is a cost of the process.
    elapsed, measured = watch.ends[-1] - watch.ends[0], run.measurements[1:]
    not_counted = sum(seconds for m in measured for name, seconds in m.phases if name in NOT_COUNTED)
    per_case = (elapsed - not_counted) / len(measured)
    yield Bar("a case, beside compiling, checking, sampling", 1e3 * per_case, 50, "ms")
    arguments = ["run", str(file), "--device", "cpu", "--ops", str(op), "--output", str(folder / "weighed")]
    yield Bar("memory of the parent of a run", peak_memory(arguments) / 1e6, 150, "MB")


def peak_memory(arguments: list[str]) -> int:
    """Most bytes that a command's own process had in memory, without the workers'."""
    program = (
        "import atexit, sys; from pathlib import Path\n"
        "atexit.register(lambda: Path(sys.argv[1]).write_text(Path('/proc/self/status').read_text()))\n"
        "from harness.cli import app; app(sys.argv[2:])"
    )
    with tempfile.NamedTemporaryFile() as status:
        subprocess.run([sys.executable, "-c", program, status.name, *arguments], capture_output=True, check=True)
        lines = Path(status.name).read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def a_large_report(folder: Path) -> Iterator[Bar]:
    """`harness report` of a run with thousands of cases."""
    large = folder / "large"
    write_large_run(large)
    yield Bar(
        f"report of {LARGE_RUN} cases", wall_time([sys.executable, "-m", "harness", "report", str(large)]), 10, "s"
    )


def write_large_run(folder: Path) -> None:
    """A run with 50 samples a case, every case a little slower than the one before."""
    measurements = list(large_measurements())
    cases = tuple(m.case.id for m in measurements)
    machine = Machine("cpu", "0" * 12, (DeviceFacts("a machine", memory_bytes=2**35, cache_bytes=2**25),))
    header = Header(
        name="large",
        machine=machine,
        scenarios=(Scenario("large", "Many cases", "tiny", cases, baseline="eager"),),
        command=("harness", "run", "large"),
        started="2025-01-01T00:00:00+00:00",
        plan="",
        jobs=len(cases),
    )
    with store.create(folder, header) as writer:
        for measurement in measurements:
            writer.append(measurement)


def large_measurements() -> Iterator[Measurement]:
    """Two variants at each size."""
    for index in range(LARGE_RUN // 2):
        size = 2**20 + 256 * index
        for variant, seconds in (("eager", 2e-4), ("tuned", 1e-4)):
            time_of_one = seconds * (1 + index / LARGE_RUN)
            yield Measurement(
                Case("tiny", variant, "float32", (("N", size),), device="cpu"),
                "ok",
                samples=tuple(time_of_one * (1 + 1e-4 * (sample % 7)) for sample in range(50)),
                call_samples=(time_of_one,) * 5,
                timer="host",
                work=Work(4 * size, 4 * size),
                traffic=Traffic(4 * size, 4 * size),
                stopped="interval",
            )


if __name__ == "__main__":
    sys.exit(main())
