"""Nsight Compute: what the hardware counted of each kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from harness.errors import MachineError, UsageError
from harness.model import Attachment, KernelProfile
from harness.profile import CALLS, MARK
from harness.profile._ncu_metrics import BYTES, DETAILS, SECTIONS, translated

SUMMARY = "hardware counters of each kernel (Nsight Compute)"
SUFFIXES = (".ncu-rep", ".csv")

_OLDEST = (2022, 2)  # the first that knows sm_90
_PARTS = ("bytes", "details")
_SUFFIX = ".ncu-rep"
_NAME, _GRID, _ID = "Kernel Name", "Grid Size", "ID"
_WHERE = "it comes with the CUDA toolkit, and alone from developer.nvidia.com/nsight-compute"
_PERMISSION = (
    "counters are allowed for root only here: run as root, or ask for NVreg_RestrictProfilingToAdminUsers=0 "
    "(developer.nvidia.com/ERR_NVGPUCTRPERM); 'harness profile torch' needs no counters"
)
_CONTAINER = "give the container the driver's libcuda and libnvidia-ml of the host; some sandboxes can't have counters"
_FAILURES = (
    ("ERR_NVGPUCTRPERM", "the driver doesn't let this user read counters", _PERMISSION),
    ("LibraryNotLoaded", "Nsight Compute can't reach the driver's profiler", _CONTAINER),
    ("driver is not compatible", "Nsight Compute and the driver don't fit", "update the driver, or take an older ncu"),
    ("InterprocessLockFile", "another profiler holds Nsight Compute's lock", "wait for it, or remove the lock file"),
    ("already in use", "another profiler uses this GPU's counters", "end it (dcgm-exporter reads counters, too)"),
)
"""What Nsight Compute writes, what it means, and what to do."""


def refuse() -> None:
    """Raise MachineError if ncu is missing, or so old that it doesn't know today's GPUs."""
    found = shutil.which("ncu")
    if not found:
        raise MachineError("ncu isn't on the PATH", f"{_WHERE}; 'harness profile torch' needs nothing")
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"Version (\d+)\.(\d+)", told)
    if version and (int(version[1]), int(version[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise MachineError(f"ncu {version[1]}.{version[2]} is too old: {oldest} or later is needed", _WHERE)


def commands(target: Sequence[str], base: Path) -> list[list[str]]:
    """Two runs: the first counts bytes alone, which takes one pass; the second replays each kernel for all the rest.

    Clocks and caches are left as they are, so that a kernel finds in the L2 what it finds when it is timed.
    """
    common = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--cache-control", "none", "--nvtx",
              "--target-processes", "application-only", "--force-overwrite"]  # fmt: skip
    sections = [argument for section in SECTIONS for argument in ("--section", section)]
    counted = (["--metrics", ",".join(BYTES)], [*sections, "--metrics", ",".join((*BYTES, *DETAILS))])
    return [
        [*common, *metrics, "--export", str(_report(base, part)), *target]
        for part, metrics in zip(_PARTS, counted, strict=True)
    ]


def failure(output: str) -> MachineError | None:
    """What it means if ncu wrote one of the known messages."""
    return next((MachineError(meaning, advice) for text, meaning, advice in _FAILURES if text in output), None)


def read(base: Path, cases: Sequence[str], calls: int) -> list[Attachment]:
    """The counters of each case: bytes and times of the first run, where it has them, and all else of the second."""
    first, second = (_by_case(_rows(_report(base, part)), cases) for part in _PARTS)
    return [
        _attachment(case, _with(_kernels(first[case], calls), _kernels(second[case], calls)))
        for case in filter(None, cases)
        if first[case] or second[case]
    ]


def imported(file: Path, cases: Sequence[str]) -> list[Attachment]:
    """The counters in a report, or in its raw page as CSV (ncu --import FILE --page raw --csv --print-units base).

    The marks of a report that our command made say which case a kernel belongs to. Without marks all kernels belong to
    the only case, or to none ('') if no case is named, and it was called once.
    """
    rows = list(_rows(file))
    if cases and any(row[_NAME].startswith(MARK) for row in rows):
        found = _by_case(rows, cases)
        return [_attachment(case, _kernels(found[case], CALLS)) for case in cases if found[case]]
    if len(cases) > 1:
        raise UsageError(
            f"{file}: doesn't tell which of {len(cases)} cases it is about", "choose one by --only, or run our command"
        )
    return [_attachment(cases[0] if cases else "", _kernels(rows, 1))]


def _report(base: Path, part: str) -> Path:
    return base.with_name(f"{base.name}.{part}{_SUFFIX}")


Row = dict[str, str]


def _rows(file: Path) -> Iterator[Row]:
    """The kernels of a report, or of the CSV of its raw page, each with its columns as text."""
    import csv
    import io

    if not file.exists():
        raise UsageError(f"{file}: there is no such file", "ncu writes it when a kernel was counted")
    text = _exported(file) if file.suffix == _SUFFIX else file.read_text(encoding="utf-8", errors="replace")
    start = text.find(f'"{_ID}"')
    if start < 0:
        raise UsageError(
            f"{file}: isn't the raw page of a report of ncu", "make it by: ncu --import REPORT --page raw --csv"
        )
    rows = csv.DictReader(io.StringIO(text[start:]))
    for row in rows:
        # The first row has the units.
        if row[_ID]:
            yield row


def _exported(report: Path) -> str:
    command = ["ncu", "--import", str(report), "--page", "raw", "--csv", "--print-units", "base"]
    refuse()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise UsageError(
            f"{report}: ncu can't read it: {''.join(last)}", "take the version of ncu that made it, or later"
        )
    return done.stdout


def _by_case(rows: Iterable[Row], cases: Sequence[str]) -> dict[str, list[Row]]:
    """The kernels of each case: those after the mark with its number."""
    found: dict[str, list[Row]] = defaultdict(list)
    case = ""
    for row in rows:
        if row[_NAME].startswith(MARK):
            number = int(re.findall(r"\d+", row[_GRID])[0])
            case = cases[number - 1] if number <= len(cases) else ""
        elif case:
            found[case].append(row)
    return found


def _kernels(rows: Sequence[Row], calls: int) -> dict[str, KernelProfile]:
    """What was counted of each kernel: the mean of its launches, and how many there are in a call."""
    launches: dict[str, list[dict[str, float]]] = defaultdict(list)
    for row in rows:
        if not row[_NAME].startswith(MARK):
            launches[row[_NAME]].append(translated(_numbers(row)))
    return {name: KernelProfile(name, len(own) / calls, _mean(own)) for name, own in launches.items()}


def _numbers(row: Row) -> dict[str, float]:
    """The columns that hold a number."""
    found = {}
    for name, text in row.items():
        try:
            found[name] = float((text or "").replace(",", ""))
        except ValueError:
            continue
    return found


def _mean(launches: Sequence[dict[str, float]]) -> tuple[tuple[str, float], ...]:
    names = dict.fromkeys(name for launch in launches for name in launch)
    known = {name: [launch[name] for launch in launches if name in launch] for name in names}
    return tuple((name, sum(values) / len(values)) for name, values in known.items())


def _with(first: dict[str, KernelProfile], second: dict[str, KernelProfile]) -> dict[str, KernelProfile]:
    """The kernels of both runs. Where both have a figure, that of the first counts."""
    merged = {}
    for name in {**first, **second}:
        known = [run[name] for run in (second, first) if name in run]
        values = {figure: value for kernel in known for figure, value in kernel.values}
        merged[name] = KernelProfile(name, known[-1].launches, tuple(values.items()))
    return merged


def _attachment(case: str, kernels: dict[str, KernelProfile]) -> Attachment:
    """The figures of a call: sums over its launches."""
    totals: dict[str, float] = {"kernels": sum(kernel.launches for kernel in kernels.values())}
    for name in ("time", "read_bytes", "written_bytes"):
        known = [dict(kernel.values).get(name) for kernel in kernels.values()]
        if known and None not in known:
            totals[name] = sum(k.launches * dict(k.values)[name] for k in kernels.values())
    return Attachment(case, "ncu", tuple(totals.items()), kernels=tuple(kernels.values()))
