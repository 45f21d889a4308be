"""Reads the tables of an SQLite export of Nsight Systems. The file of the tool is `nsys.py`.

NVIDIA documents the schema ("Post-Collection Analysis Guide", "SQLite schema reference"). An export
has only the tables that got rows, so a table may be missing. A table that is there must have the columns that are read.
Times are integers, in nanoseconds since the recording began. The upper bits of the id of a process or thread name the
process.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.errors import UsageError

EXPORT = "nsys export --type=sqlite"
_AGAIN = f"export the report once more with a current version of Nsight Systems: {EXPORT} REPORT.nsys-rep"
_COLUMNS = {
    "StringIds": ("id", "value"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "domainId", "globalTid"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *("start", "end", "globalPid", "correlationId", "shortName", "registersPerThread"),
        *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
        *("staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("start", "end", "globalPid", "correlationId", "bytes"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("start", "end", "globalPid", "correlationId"),
    "DIAGNOSTIC_EVENT": ("severity", "text"),
}
"""The tables and the columns of them that are read."""
# Numbers of NVTX events: ranges that are pushed and popped, ranges that are started and ended (each also as imported
# from a text file), and the creation of a domain, which tells its name.
_RANGES = "59, 60, 70, 71"
_DOMAIN = 75
_WORSE_THAN_INFO = 1  # severity of diagnostics


@dataclass(frozen=True, slots=True)
class TraceRange:
    """A range of a thread. text and domain are '' where there is none. A range that wasn't closed never ends."""

    text: str
    domain: str
    start: int
    end: int
    process: int
    thread: int


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call of the CUDA runtime or driver. correlation: what the work that it caused on the device has as well."""

    start: int
    end: int
    process: int
    thread: int
    correlation: int | None


@dataclass(frozen=True, slots=True)
class GpuWork:
    """Something that ran on the device. name: of a kernel. figures: by name, in SI units.

    A 'graph' is a CUDA graph that was recorded as a whole, so that its kernels are missing.
    """

    kind: Literal["kernel", "copy", "graph"]
    start: int
    end: int
    process: int
    correlation: int
    name: str = ""
    figures: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class NsysTrace:
    """What an export holds. Ranges, calls and the work of each kind are in the order in which they began.

    file: its name in messages.
    """

    file: Path
    ranges: tuple[TraceRange, ...]
    calls: tuple[HostCall, ...]
    work: tuple[GpuWork, ...]


def load(file: Path, source: Path) -> NsysTrace:
    """What an export holds. source: the file that errors name, which the export was made of, or the export itself.

    Raises UsageError for a file that isn't an export, lacks a column, or has no kernels.
    """
    if not file.is_file():
        raise UsageError(f"{source}: there is no such file", "name an SQLite export of Nsight Systems")
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return _Export(source, database).trace()
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{source}: isn't an SQLite export of Nsight Systems ({error})", _AGAIN) from None


class _Export:
    """One open export. Only tables whose columns were looked at are read."""

    def __init__(self, file: Path, database: sqlite3.Connection) -> None:
        self._file = file
        self._database = database
        found = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
        self._tables = found & set(_COLUMNS)
        for table in sorted(self._tables):
            columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
            if missing := [column for column in _COLUMNS[table] if column not in columns]:
                raise UsageError(f"{file}: its table {table} has no column {' and no '.join(missing)}", _AGAIN)

    def trace(self) -> NsysTrace:
        launched = (*self._kernels(), *self._graphs())
        if not launched:
            raise self._without_kernels()
        work = (*launched, *self._copies())
        return NsysTrace(self._file, tuple(self._ranges()), tuple(self._calls()), work)

    def _rows(self, table: str, query: str) -> Iterator[Any]:
        """The rows of a query, none if the export lacks the table."""
        return iter(self._database.execute(query)) if table in self._tables else iter(())

    def _ranges(self) -> Iterator[TraceRange]:
        # A text that the program registered is a number, which StringIds explains.
        text, source = "coalesce(t.text, '')", "NVTX_EVENTS t"
        if "StringIds" in self._tables:
            text, source = "coalesce(t.text, s.value, '')", "NVTX_EVENTS t LEFT JOIN StringIds s ON s.id = t.textId"
        names = f"SELECT t.globalTid >> 24, t.domainId, {text} FROM {source} WHERE t.eventType = {_DOMAIN}"
        domains = {(process, domain): name for process, domain, name in self._rows("NVTX_EVENTS", names)}
        query = (
            f'SELECT {text}, t.domainId, t.start, t."end", t.globalTid >> 24, t.globalTid FROM {source} '
            f"WHERE t.eventType IN ({_RANGES}) ORDER BY t.start"
        )
        for label, domain, start, end, process, thread in self._rows("NVTX_EVENTS", query):
            last = sys.maxsize if end is None else end
            yield TraceRange(label, domains.get((process, domain), ""), start, last, process, thread)

    def _calls(self) -> Iterator[HostCall]:
        table = "CUPTI_ACTIVITY_KIND_RUNTIME"
        query = (
            f'SELECT t.start, t."end", t.globalTid >> 24, t.globalTid, t.correlationId FROM {table} t ORDER BY t.start'
        )
        return (HostCall(*row) for row in self._rows(table, query))

    def _work(self, table: str, more: str = "", joins: str = "") -> Iterator[Any]:
        """Rows of what ran on the device: start, end, process and correlation, and `more` columns."""
        query = f'SELECT t.start, t."end", t.globalPid >> 24, t.correlationId{more} FROM {table} t {joins}'
        return self._rows(table, f"{query} WHERE t.correlationId IS NOT NULL ORDER BY t.start")

    def _graphs(self) -> Iterator[GpuWork]:
        return (GpuWork("graph", *row) for row in self._work("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"))

    def _copies(self) -> Iterator[GpuWork]:
        for start, end, process, correlation, size in self._work("CUPTI_ACTIVITY_KIND_MEMCPY", ", t.bytes"):
            yield GpuWork("copy", start, end, process, correlation, figures=(("bytes", float(size)),))

    def _kernels(self) -> Iterator[GpuWork]:
        figures = {
            "grid": "t.gridX * t.gridY * t.gridZ",
            "block": "t.blockX * t.blockY * t.blockZ",
            "registers": "t.registersPerThread",
            "shared_bytes": "t.staticSharedMemory + t.dynamicSharedMemory",
            "local_bytes": "t.localMemoryPerThread",
        }
        more = f", s.value, {', '.join(figures.values())}"
        joins = "LEFT JOIN StringIds s ON s.id = t.shortName"
        for start, end, process, correlation, name, *values in self._work("CUPTI_ACTIVITY_KIND_KERNEL", more, joins):
            numbers = tuple(zip(figures, map(float, values), strict=True))
            yield GpuWork("kernel", start, end, process, correlation, name or "?", numbers)

    def _without_kernels(self) -> UsageError:
        """The error for an export without kernels, with what Nsight Systems itself noted about CUDA."""
        query = (
            "SELECT DISTINCT t.text FROM DIAGNOSTIC_EVENT t "
            f"WHERE t.severity > {_WORSE_THAN_INFO} AND t.text LIKE '%CUDA%'"
        )
        notes = [text for (text,) in self._rows("DIAGNOSTIC_EVENT", query)]
        said = f"; Nsight Systems noted: {' '.join(notes)}" if notes else ""
        return UsageError(
            f"{self._file}: holds no kernels{said}",
            "check that the program used the GPU, and that it was recorded with --trace=cuda,nvtx; "
            "Nsight Systems must be at least as new as the driver",
        )
