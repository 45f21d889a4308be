"""Compare harness.time with Nsight Compute's counter, triton's do_bench, and torch.utils.benchmark, at 30 kernels.

    python scripts/trust_calls.py    writes its section of reports/h200/trust.md

Needs a GPU of 80 GB, ncu on the PATH and triton. The kernels take 2 us to 20 ms on an H200. ncu sees the calls of the
harness's own rotation of buffers. do_bench and torch.utils.benchmark are called as their documentation shows: do_bench
overwrites the L2 before each call, torch.utils.benchmark calls the function again and again with the same arguments.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from make_trust import BEGIN, PAGE
from torch.nn import functional
from trust import NCU, launches

import harness as hb
from harness import units
from harness.api.called import called
from harness.devices import MARK
from harness.session import Session

HEADING = "## Calls timed from Python"
CALLS = 12
BAR = 0.02
_POWER = (
    "Products of halves draw so much power that the GPU lowers its clocks while they run again and again; a run's peaks"
    " are therefore measured twice, `burst` and `settled`. ncu runs each kernel alone, with pauses between, at full"
    " clocks. Compare the other ways with each other here:"
)
FROM = 20e-6
"""Seconds of a kernel, by ncu, from which on the times have to agree within BAR."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of torch that launches a kernel, or few. tensors: how many random arguments of the shape it takes."""

    function: Callable[..., Any]
    shape: tuple[int, ...]
    tensors: int = 1
    rest: tuple[Any, ...] = ()
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        """Its name in the table."""
        sizes = "x".join(map(str, self.shape))
        return f"{self.function.__name__} {sizes} {str(self.dtype).removeprefix('torch.')}"

    def arguments(self, device: str = "cuda") -> list[Any]:
        """New arguments."""
        made = [torch.randn(self.shape, device=device, dtype=self.dtype) for _ in range(self.tensors)]
        return [*made, *self.rest]


KERNELS = [
    *(Kernel(torch.exp, (2**power,)) for power in (18, 20, 22, 24, 26, 28, 30)),
    *(Kernel(torch.add, (2**power,), 2) for power in (20, 25, 28)),
    *(Kernel(torch.softmax, shape, 1, (-1,)) for shape in ((512, 1024), (4096, 1000), (2**15, 1024), (2**17, 4096))),
    *(
        Kernel(functional.layer_norm, shape, 1, (shape[-1:],), torch.float16)
        for shape in ((512, 1024), (8192, 1024), (2**16, 4096), (2**18, 4096))
    ),
    *(Kernel(torch.mm, (n, n), 2, (), torch.float16) for n in (256, 1024, 2048, 4096, 8192, 12288, 16384)),
    *(Kernel(torch.mm, (n, n), 2) for n in (512, 1024, 2048, 4096, 7680)),
]


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of a call of one kernel by each way of timing. timer: harness.time's."""

    name: str
    ours: float
    timer: str
    ncu: float
    do_bench: float
    benchmark: float

    @property
    def in_halves(self) -> bool:
        """Whether it is a matrix product of halves."""
        return self.name.startswith("mm ") and self.name.endswith("float16")


def child_ncu() -> None:
    """Call each kernel on the rotation of buffers that harness.time has. ncu records what lies in `watched`."""
    for number, kernel in enumerate(KERNELS, 1):
        options: dict[str, Any] = {"reference": None, "bytes": None, "rtol": None, "atol": None}
        made = called({"f": kernel.function}, kernel.arguments(), {}, usual="f", name="f", **options)
        with Session(made.cases[0], made.op, made.device) as session:
            session.prepare()
            if wrong := session.check():
                sys.exit(f"{kernel.name} is wrong: {wrong}")
            calls = session.calls()
            for call in calls * 2:
                call()
            made.device.synchronize()
            with made.device.watched():
                made.device.mark(number, CALLS)
                for turn in range(CALLS):
                    calls[turn % len(calls)]()
            del calls, call


def child_ours() -> None:
    """Print a JSON list of harness.time's seconds and timer."""
    found = []
    for kernel in KERNELS:
        time = hb.time(kernel.function, *kernel.arguments())
        found.append([time.seconds, time.timer])
        torch.cuda.empty_cache()
    print(json.dumps(found))


def child_others() -> None:
    """Print a JSON list of the seconds of do_bench and of torch.utils.benchmark."""
    from torch.utils.benchmark import Timer
    from triton.testing import do_bench

    found = []
    for kernel in KERNELS:
        function, arguments = kernel.function, kernel.arguments()
        bench = do_bench(lambda f=function, a=arguments: f(*a), warmup=50, rep=200, return_mode="median") * 1e-3
        timer = Timer("f(*arguments)", globals={"f": function, "arguments": arguments})
        found.append([bench, timer.blocked_autorange(min_run_time=0.5).median])
        del arguments, timer
        torch.cuda.empty_cache()
    print(json.dumps(found))


def ask_child(mode: str, prefix: Sequence[str] = ()) -> str:
    """Standard output of this script in a fresh process."""
    command = [*prefix, sys.executable, __file__, mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def per_call(launches: Sequence[tuple[str, float]]) -> list[float]:
    """Seconds of a call of each of KERNELS: the median over its calls of the sum over the kernels that it launches.

    launches: names and nanoseconds of all kernels that ncu saw, where MARK stands before the calls of each of KERNELS.
    Raises SystemExit if the calls of one of them didn't launch as many kernels each.
    """
    found: list[list[float]] = []
    for name, nanoseconds in launches:
        if MARK in name:
            found.append([])
        else:
            found[-1].append(nanoseconds)
    for kernel, own in zip(KERNELS, found, strict=True):
        if not own or len(own) % CALLS:
            sys.exit(f"ncu saw {len(own)} kernels in {CALLS} calls of {kernel.name}")
    sums = [[sum(own[i : i + len(own) // CALLS]) for i in range(0, len(own), len(own) // CALLS)] for own in found]
    return [1e-9 * statistics.median(own) for own in sums]


def render(device: str, rows: Sequence[Row]) -> str:
    """The section as Markdown: how far each way is from ncu from `FROM` on, and the table."""
    how = (
        f"{device}. `ours` is `harness.time(f, x)`; `ncu` the median gpu__time_duration of {CALLS} calls on the same"
        " rotation of buffers, with clocks and caches left alone; `do_bench` triton's, which overwrites the L2 before"
        " each call; `benchmark` torch.utils.benchmark's, whose calls find the data of the last call, and which sees"
        " what the host takes. `off` is over ncu."
    )
    lines = [HEADING, "", *_agreement([row for row in rows if not row.in_halves], ""), ""]
    lines += [
        how,
        "",
        "| kernel | ncu | ours | timer | off | do_bench | off | benchmark | off |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for row in sorted(rows, key=lambda row: row.ncu):
        ours, others = units.seconds(row.ours), (row.do_bench, row.benchmark)
        cells = [row.name, units.seconds(row.ncu), ours, row.timer, f"{row.ours / row.ncu - 1:+.1%}"]
        cells += [text for each in others for text in (units.seconds(each), f"{each / row.ncu - 1:+.1%}")]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", _POWER, "", *_agreement([row for row in rows if row.in_halves], "products of halves, ")]
    return "\n".join([*lines, "", "Made by `python scripts/trust_calls.py`.", ""])


def _agreement(rows: Sequence[Row], which: str) -> Iterator[str]:
    """How far each way is from ncu from `FROM` on."""
    long = [row for row in rows if row.ncu >= FROM]
    for name in ("ours", "do_bench", "benchmark"):
        off = [abs(getattr(row, name) / row.ncu - 1) for row in long]
        if not off:
            return
        within = sum(value <= BAR for value in off)
        yield (
            f"- {which}{name}: {within} of {len(long)} kernels of {units.seconds(FROM)} and more within"
            f" {units.percent(BAR)} of ncu; median {units.percent(statistics.median(off), 2)}, worst"
            f" {units.percent(max(off), 2)}."
        )


def placed(page: str, section: str) -> str:
    """The page with the section in place of an earlier one, before the part that make_trust.py writes."""
    first, begin, rest = page.partition(BEGIN)
    return f"{first.partition(HEADING)[0].rstrip()}\n\n{section}\n{begin}{rest}"


def main() -> None:
    """Print the section and put it into the page, or do one child's part of it."""
    children = {"--ncu": child_ncu, "--ours": child_ours, "--others": child_others}
    if sys.argv[1:]:
        children[sys.argv[1]]()
        return
    ours, others = (json.loads(ask_child(mode).splitlines()[-1]) for mode in ("--ours", "--others"))
    ncu = per_call(launches(ask_child("--ncu", NCU)))
    rows = [
        Row(kernel.name, seconds, timer, counted, do_bench, benchmark)
        for kernel, (seconds, timer), counted, (do_bench, benchmark) in zip(KERNELS, ours, ncu, others, strict=True)
    ]
    section = render(torch.cuda.get_device_name(), rows)
    print(section)
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8"), section), encoding="utf-8")


if __name__ == "__main__":
    main()
