"""Nsight Compute: what the hardware counted of each kernel."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import foreign
from harness.devices import MARK
from harness.errors import MachineError, UsageError, clipped
from harness.model import Attachment, KernelProfile
from harness.profile import _request
from harness.profile._ncu_metrics import BYTES, DETAILS, SECTIONS, is_read, translated

SUMMARY = "counters of each kernel: bytes, stalls, pipes (Nsight Compute)"
SUFFIXES = (".ncu-rep", ".csv")

_OLDEST = (2022, 3)  # of CUDA 11.8, the first toolkit for sm_90
_PARTS = ("bytes", "details")
_SUFFIX = ".ncu-rep"
_NAME, _GRID, _BLOCK, _ID = "Kernel Name", "Grid Size", "Block Size", "ID"
_WHERE = "it comes with the CUDA toolkit, and alone from developer.nvidia.com/nsight-compute"
_PERMISSION = (
    "counters are allowed for root only here: run as root, or ask for NVreg_RestrictProfilingToAdminUsers=0 "
    "(developer.nvidia.com/ERR_NVGPUCTRPERM); 'harness profile torch' needs no counters"
)
_CONTAINER = "give the container the driver's libcuda and libnvidia-ml of the host; some sandboxes can't have counters"
_END_IT = "end it (dcgm-exporter reads counters, too)"
_FAILURES = (
    ("ERR_NVGPUCTRPERM", "the driver doesn't let this user read counters", _PERMISSION),
    ("LibraryNotLoaded", "Nsight Compute can't reach the driver's profiler", _CONTAINER),
    ("driver is not compatible", "Nsight Compute and the driver don't fit", "update the driver, or take an older ncu"),
    ("InterprocessLockFile", "another profiler holds Nsight Compute's lock", "wait for it, or remove the lock file"),
    ("already in use", "another profiler uses this GPU's counters", _END_IT),
    ("concurrently collecting", "another profiler uses this GPU's counters", _END_IT),
)
"""What Nsight Compute writes, what it means, and what to do."""


def refuse() -> None:
    """Raise MachineError if ncu is missing, or so old that it doesn't know today's GPUs."""
    found = shutil.which("ncu")
    if not found:
        raise MachineError("ncu isn't on the PATH", f"{_WHERE}; 'harness profile torch' needs nothing")
    try:
        told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise MachineError(f"{found} doesn't run: {error}", _WHERE) from None
    version = re.search(r"Version (\d+)\.(\d+)", told)
    if version and (int(version[1]), int(version[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise MachineError(f"ncu {version[1]}.{version[2]} is too old: {oldest} or later is needed", _WHERE)


def commands(target: Sequence[str], base: Path) -> list[list[str]]:
    """Two runs: the first counts bytes alone, which takes one pass; the second replays each kernel for all the rest.

    The second calls each case once, since its passes are many, and differ less than what a cache holds.

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


def read(base: Path, cases: Sequence[str], calls: int) -> list[Attachment]:  # noqa: ARG001 - marks tell the calls
    """The counters of each case: bytes and times of the first run, where it has them, and all else of the second.

    One of the two reports may be missing, if that run failed.
    """
    reports = [_report(base, part) for part in _PARTS]
    if not any(report.exists() for report in reports):
        raise UsageError(f"{reports[0]}: there is no such file", "ncu writes it when a kernel was counted")
    first, second = (_by_case(_rows(report), cases) if report.exists() else {} for report in reports)
    return [
        _attachment(case, _with(first.get(case, {}), second.get(case, {})))
        for case in cases
        if case and (first.get(case) or second.get(case))
    ]


def imported(file: Path, cases: Sequence[str]) -> list[Attachment]:
    """The counters in a report, or in its raw page as CSV (ncu --import FILE --page raw --csv --print-units base).

    A report of our command lies beside its request, which tells the cases; then both of its parts are read. Any other
    report is about the only case of `cases`, or about none (''), and the case was called once.
    """
    if request := _request.beside(file):
        base = file.with_name(file.name.partition(".")[0])
        every = [job.case.id for job in request.jobs]
        return read(base, [case if case in cases or not cases else "" for case in every], request.calls)
    rows = list(_rows(file))
    if any(row.name.startswith(MARK) for row in rows):
        advice = f"put the request, {file.name.partition('.')[0]}{_request.REQUEST}, beside it"
        raise UsageError(f"{file}: is of several cases, and what they are isn't known", advice)
    if len(cases) > 1:
        raise UsageError(f"{file}: doesn't tell which of {len(cases)} cases it is about", "choose one by --only")
    return [_attachment(cases[0] if cases else "", _kernels(rows, 1))]


def _report(base: Path, part: str) -> Path:
    return base.with_name(f"{base.name}.{part}{_SUFFIX}")


@dataclass(frozen=True, slots=True)
class _Row:
    """A launch: its line in the page, and its columns as text, in base units."""

    place: str
    cells: Mapping[str, str]

    @property
    def name(self) -> str:
        """The kernel's."""
        return foreign.name(self.cells[_NAME])

    def first(self, column: str) -> int:
        """The first number of a size such as '(4, 1, 1)'. Raises UsageError where it isn't one from 1 on."""
        found = _SIZE.match(self.cells.get(column, ""))
        if not found or not int(found[1]):
            said = clipped(self.cells.get(column, ""), _SHOWN)
            raise UsageError(f"{self.place}: '{said}' isn't a {column.lower()} from (1, 1, 1) on", _HOW)
        return int(found[1])

    def numbers(self) -> dict[str, float]:
        """The columns that hold a number. Raises UsageError for a figure that no launch can have.

        What wasn't counted is 'n/a', 'nan' or 'inf', and left out.
        """
        found = {}
        for column, text in self.cells.items():
            value = _number(text)
            if value is not None and is_read(column) and not 0 <= value <= _LARGEST:
                said = clipped(text, _SHOWN)
                raise UsageError(f"{self.place}: {column} is {said}; it can be from 0 to {_LARGEST:g}", _HOW)
            if value is not None:
                found[column] = value
        return found


_SIZE = re.compile(r"\D*([0-9]{1,9})\b")
_LARGEST = 1e30
"""The largest figure, in base units. No counter comes near it."""
_SHOWN = 60  # characters of a cell that an error shows
_HOW = "make it by: ncu --import REPORT --page raw --csv --print-units base"
_MOST_BYTES = 256 << 20
"""The most bytes of a page as CSV. A launch takes about 10 KiB of it, and ten times as much memory."""
_TO_BASE = {
    "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9,
    "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12, "Khz": 1e3, "Mhz": 1e6, "Ghz": 1e9,
}  # fmt: skip
"""What ncu's units are in its base units, which are ns, bytes and Hz."""
_CYCLES = {"cycle/nsecond": 1e9, "cycle/ns": 1e9, "cycle/usecond": 1e6, "cycle/us": 1e6}


def _rows(file: Path) -> Iterator[_Row]:
    """The kernels of a report, or of the CSV of its raw page. Raises UsageError for a file that isn't one."""
    import csv

    text = _text(file)
    start = text.find(f'"{_ID}"')
    page = text[start:] if start >= 0 else ""
    ahead = text.count("\n", 0, max(start, 0))
    del text
    rows = csv.reader(io.StringIO(page, newline=""))
    try:
        columns = next(rows, [])
        if not {_ID, _NAME, _GRID} <= {*columns} or "Metric Name" in columns:
            raise UsageError(f"{file}: isn't the raw page of a report of ncu", _HOW)
        scales: dict[str, float] = {}
        for cells in rows:
            place = f"{file}:{ahead + rows.line_num}"
            if not cells:
                continue
            if len(cells) != len(columns):
                raise UsageError(f"{place}: has {len(cells)} cells, its head has {len(columns)}", _HOW)
            row = dict(zip(columns, cells, strict=True))
            if row[_ID]:
                yield _Row(place, {name: _scaled(text, scales.get(name, 1.0)) for name, text in row.items()})
            else:  # the row with the units
                scales = {name: _TO_BASE.get(unit.partition("/")[0], 1.0) for name, unit in row.items()}
                scales |= {name: _CYCLES[unit] for name, unit in row.items() if unit in _CYCLES}
    except csv.Error as error:
        raise UsageError(f"{file}:{ahead + rows.line_num}: isn't CSV: {error}", _HOW) from None


def _scaled(text: str, scale: float) -> str:
    """A number in base units; text that isn't one, such as 'n/a', as it is."""
    value = _number(text) if scale != 1.0 else None
    return text if value is None else str(value * scale)


def _number(text: str) -> float | None:
    """The number that a cell holds; None if it holds none. One of too many digits is infinite."""
    if not any(map(str.isdigit, text)):
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _text(file: Path) -> str:
    """The raw page of a report, or of a file that has it."""
    try:
        foreign.refuse_special(file)
        if file.suffix == _SUFFIX:
            return _exported(file)
        return foreign.read(file, _MOST_BYTES).decode("utf-8", "replace")
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(f"{file}: there is no such file", "name a report of ncu, or its raw page as CSV") from None
    except OSError as error:
        raise UsageError(f"{file}: can't be read: {error.strerror}", _HOW) from None


def _exported(report: Path) -> str:
    command = ["ncu", "--import", str(report), "--page", "raw", "--csv", "--print-units", "base"]
    refuse()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MachineError(f"ncu doesn't run: {error}", _WHERE) from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise UsageError(
            f"{report}: ncu can't read it: {''.join(last)}", "take the version of ncu that made it, or later"
        )
    return done.stdout


def _by_case(rows: Iterable[_Row], cases: Sequence[str]) -> dict[str, dict[str, KernelProfile]]:
    """The kernels of each case: they come after the mark with the case's number, which tells the calls too."""
    found: dict[str, list[_Row]] = defaultdict(list)
    calls: dict[str, int] = {}
    case = ""
    for row in rows:
        if row.name.startswith(MARK):
            number = row.first(_GRID)
            case = cases[number - 1] if number <= len(cases) else ""
            calls[case] = row.first(_BLOCK)
        elif case:
            found[case].append(row)
    return {case: _kernels(own, calls[case]) for case, own in found.items()}


def _kernels(rows: Sequence[_Row], calls: int) -> dict[str, KernelProfile]:
    """What was counted of each kernel: the mean of its launches, and how many there are in a call."""
    launches: dict[str, list[dict[str, float]]] = defaultdict(list)
    for row in rows:
        if not row.name.startswith(MARK):
            launches[row.name].append(translated(row.numbers()))
    return {name: KernelProfile(name, len(own) / calls, _mean(own)) for name, own in launches.items()}


def _mean(launches: Sequence[dict[str, float]]) -> tuple[tuple[str, float], ...]:
    names = dict.fromkeys(name for launch in launches for name in launch)
    known = {name: [launch[name] for launch in launches if name in launch] for name in names}
    return tuple((name, sum(values) / len(values)) for name, values in known.items())


def _with(first: dict[str, KernelProfile], second: dict[str, KernelProfile]) -> dict[str, KernelProfile]:
    """The kernels of both runs. Where both have a figure, the first run's counts.

    A library that tries out its kernels may have chosen another one in each run. Then the second alone counts, which
    has all figures.
    """
    if first and second and first.keys() != second.keys():
        return second
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
