"""Reads the tables of an SQLite export of Nsight Systems. The file of the tool is `nsys.py`.

NVIDIA documents the schema ("Post-Collection Analysis Guide", "SQLite schema reference"). An export
has only the tables that got rows, so a table may be missing. A table that is there must have the columns that are read.
Times are integers, in nanoseconds since the recording began. The upper bits of the id of a process or thread name the
process.

The file may be anybody's. SQLite evaluates nothing that is written in it: tables are read, views aren't, and each table
from its first row on, without a condition, an order or a join. A cell may hold anything, whatever its column declares,
so each is looked at.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness import foreign
from harness.errors import UsageError

EXPORT = "nsys export --type=sqlite"
_AGAIN = f"export the report once more with a current version of Nsight Systems: {EXPORT} REPORT.nsys-rep"
_FEWER = "record fewer cases or calls at once"
_WHOLE, _TEXT = "a whole number", "text"
_OR_NOTHING = " or nothing"
_COLUMNS = {
    "StringIds": {"id": _WHOLE, "value": _TEXT},
    "NVTX_EVENTS": {
        "start": _WHOLE, "end": _WHOLE + _OR_NOTHING, "eventType": _WHOLE, "text": _TEXT + _OR_NOTHING,
        "textId": _WHOLE + _OR_NOTHING, "domainId": _WHOLE + _OR_NOTHING, "globalTid": _WHOLE + _OR_NOTHING,
    },
    "CUPTI_ACTIVITY_KIND_RUNTIME": {
        "start": _WHOLE, "end": _WHOLE, "globalTid": _WHOLE + _OR_NOTHING, "correlationId": _WHOLE + _OR_NOTHING,
    },
    "CUPTI_ACTIVITY_KIND_KERNEL": {
        "start": _WHOLE, "end": _WHOLE, "globalPid": _WHOLE + _OR_NOTHING, "correlationId": _WHOLE + _OR_NOTHING,
        "shortName": _WHOLE, "registersPerThread": _WHOLE,
        "gridX": _WHOLE, "gridY": _WHOLE, "gridZ": _WHOLE, "blockX": _WHOLE, "blockY": _WHOLE, "blockZ": _WHOLE,
        "staticSharedMemory": _WHOLE, "dynamicSharedMemory": _WHOLE, "localMemoryPerThread": _WHOLE,
    },
    "CUPTI_ACTIVITY_KIND_MEMCPY": {
        "start": _WHOLE, "end": _WHOLE, "globalPid": _WHOLE + _OR_NOTHING, "correlationId": _WHOLE + _OR_NOTHING,
        "bytes": _WHOLE,
    },
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": {
        "start": _WHOLE, "end": _WHOLE, "globalPid": _WHOLE + _OR_NOTHING, "correlationId": _WHOLE + _OR_NOTHING,
    },
    "DIAGNOSTIC_EVENT": {"severity": _WHOLE + _OR_NOTHING, "text": _TEXT + _OR_NOTHING},
}  # fmt: skip
"""The tables, the columns of them that are read, and what a cell holds."""
_NOT_NEGATIVE = {
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "bytes"),
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
}
_KINDS = {type(None): "nothing", str: "text", bytes: "bytes", float: "a fraction"}
# Numbers of NVTX events: ranges that are pushed and popped, ranges that are started and ended (each also as imported
# from a text file), and the creation of a domain, which tells its name.
_RANGES = (59, 60, 70, 71)
_DOMAIN = 75
_WORSE_THAN_INFO = 1  # severity of diagnostics

_MOST_ROWS = 2_000_000
"""The most rows of a table that are read. A row takes about 1 KiB of memory."""
_LONGEST_CELL = 1 << 20
"""The most bytes of a text."""
_STEPS = 1_000
"""Steps of SQLite's machine between two looks at how many there were."""
_FEWEST_STEPS = 10_000_000
_STEPS_A_BYTE = 4
"""To read a row takes about as many steps as the row has bytes. A file that refers to itself in a circle takes more."""


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

    Raises UsageError for a file that isn't an export, lacks a column, holds in a cell what can't stand there, has more
    rows than the limit, or has no kernels.
    """
    try:
        foreign.refuse_special(file)
    except FileNotFoundError:
        raise UsageError(f"{source}: there is no such file", "name an SQLite export of Nsight Systems") from None
    except OSError as error:
        raise UsageError(f"{source}: can't be read: {error.strerror}", _AGAIN) from None
    try:
        # Immutable, so that neither a lock nor a journal beside the file counts.
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            _guard(database, file.stat().st_size)
            return _Export(source, database).trace()
    except (sqlite3.Error, OSError) as error:
        raise UsageError(f"{source}: isn't an SQLite export of Nsight Systems ({_reason(error)})", _AGAIN) from None


def _guard(database: sqlite3.Connection, size: int) -> None:
    """Let SQLite take no more steps and give no more text than a file of this size can need, and no longer cells.

    Functions that the file names aren't called.
    """
    left = (_FEWEST_STEPS + _STEPS_A_BYTE * size) // _STEPS

    def count() -> int:
        nonlocal left
        left -= 1
        return left < 0

    text = 2 * size + _LONGEST_CELL

    def decoded(data: bytes) -> str:
        nonlocal text
        text -= len(data)
        if text < 0:
            raise sqlite3.DataError("interrupted")
        return data.decode("utf-8", "replace")

    database.set_progress_handler(count, _STEPS)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_CELL)
    database.execute("PRAGMA trusted_schema = OFF")
    database.text_factory = decoded


def _reason(error: Exception) -> str:
    text = str(error)
    if text == "interrupted":
        return "its tables have more rows or text than a file of its size can have"
    return f"a cell has more than {foreign.megabytes(_LONGEST_CELL)}" if "too big" in text else text


class _Export:
    """One open export. Only tables whose columns were looked at are read."""

    def __init__(self, file: Path, database: sqlite3.Connection) -> None:
        self._file = file
        self._database = database
        # What is computed has no page of its own: views, and tables of modules.
        found = dict(database.execute("SELECT name, rootpage FROM sqlite_master WHERE type IN ('table', 'view')"))
        self._tables = found.keys() & _COLUMNS.keys()
        for table in sorted(self._tables):
            if not found[table]:
                raise UsageError(f"{file}: its table {table} is a view, which isn't read", _AGAIN)
            # Columns that are computed aren't among them.
            columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
            if missing := [column for column in _COLUMNS[table] if column not in columns]:
                raise UsageError(f"{file}: its table {table} has no column {' and no '.join(missing)}", _AGAIN)

    def trace(self) -> NsysTrace:
        strings = {row["id"]: row["value"] for row in self._rows("StringIds")}
        launched = (*self._kernels(strings), *self._graphs())
        if not launched:
            raise self._without_kernels()
        work = (*launched, *self._copies())
        return NsysTrace(self._file, tuple(self._ranges(strings)), tuple(self._calls()), work)

    def _rows(self, table: str) -> Iterator[dict[str, Any]]:
        """The rows of a table by column, each cell of its kind; none if the export lacks the table."""
        if table not in self._tables:
            return
        columns = _COLUMNS[table]
        names = ", ".join(f'"{name}"' for name in columns)
        for number, cells in enumerate(self._database.execute(f'SELECT {names} FROM "{table}"'), 1):
            if number > _MOST_ROWS:
                message = f"{self._file}: its table {table} has more than {_MOST_ROWS:,} rows, the limit"
                raise UsageError(message, _FEWER)
            row = dict(zip(columns, cells, strict=True))
            if problem := _problem(row, columns):
                raise UsageError(f"{self._file}: its table {table}, row {number}: {problem}", _AGAIN)
            yield row

    def _ranges(self, strings: Mapping[int, str]) -> list[TraceRange]:
        domains: dict[tuple[int, int | None], str] = {}
        found: list[dict[str, Any]] = []
        for row in self._rows("NVTX_EVENTS"):
            if row["eventType"] == _DOMAIN:
                domains[_process(row["globalTid"]), row["domainId"]] = _range_text(row, strings)
            elif row["eventType"] in _RANGES:
                found.append(row)
        made = (
            TraceRange(
                _range_text(row, strings),
                domains.get((_process(row["globalTid"]), row["domainId"]), ""),
                row["start"],
                sys.maxsize if row["end"] is None else row["end"],
                _process(row["globalTid"]),
                row["globalTid"] or 0,
            )
            for row in found
        )
        return sorted(made, key=lambda each: each.start)

    def _calls(self) -> list[HostCall]:
        made = (
            HostCall(row["start"], row["end"], _process(row["globalTid"]), row["globalTid"] or 0, row["correlationId"])
            for row in self._rows("CUPTI_ACTIVITY_KIND_RUNTIME")
        )
        return sorted(made, key=lambda each: each.start)

    def _work(self, kind: str) -> list[dict[str, Any]]:
        """Rows of what ran on the device, in the order in which it began."""
        rows = self._rows(f"CUPTI_ACTIVITY_KIND_{kind}")
        return sorted((row for row in rows if row["correlationId"] is not None), key=lambda row: row["start"])

    def _graphs(self) -> Iterator[GpuWork]:
        return (GpuWork("graph", *_place(row)) for row in self._work("GRAPH_TRACE"))

    def _copies(self) -> Iterator[GpuWork]:
        for row in self._work("MEMCPY"):
            yield GpuWork("copy", *_place(row), figures=(("bytes", float(row["bytes"])),))

    def _kernels(self, strings: Mapping[int, str]) -> Iterator[GpuWork]:
        for row in self._work("KERNEL"):
            figures = {
                "grid": row["gridX"] * row["gridY"] * row["gridZ"],
                "block": row["blockX"] * row["blockY"] * row["blockZ"],
                "registers": row["registersPerThread"],
                "shared_bytes": row["staticSharedMemory"] + row["dynamicSharedMemory"],
                "local_bytes": row["localMemoryPerThread"],
            }
            name = strings.get(row["shortName"]) or "?"
            yield GpuWork("kernel", *_place(row), name, tuple((key, float(value)) for key, value in figures.items()))

    def _without_kernels(self) -> UsageError:
        """The error for an export without kernels, with what Nsight Systems itself noted about CUDA."""
        rows = self._rows("DIAGNOSTIC_EVENT")
        worse = (row["text"] or "" for row in rows if (row["severity"] or 0) > _WORSE_THAN_INFO)
        notes = dict.fromkeys(text for text in worse if "cuda" in text.lower())
        said = f"; Nsight Systems noted: {' '.join(notes)}" if notes else ""
        return UsageError(
            f"{self._file}: holds no kernels{said}",
            "check that the program used the GPU, and that it was recorded with --trace=cuda,nvtx; "
            "Nsight Systems must be at least as new as the driver",
        )


def _problem(row: dict[str, Any], columns: Mapping[str, str]) -> str:
    """What can't be so in a row; '' if all can. Texts become names that can be shown."""
    for column, kind in columns.items():
        value = row[column]
        if isinstance(value, str) and kind.startswith(_TEXT):
            row[column] = foreign.name(value)
        elif isinstance(value, int) and kind.startswith(_WHOLE):
            if value < 0 and column in _NOT_NEGATIVE:
                return f"'{column}' is {value}, it can't be negative"
        elif value is not None or not kind.endswith(_OR_NOTHING):
            return f"'{column}' is {_KINDS.get(type(value), 'a number')}, it must be {kind}"
    # A range that ends before it starts was open at no time.
    if "eventType" not in row and "end" in row and row["end"] < row["start"]:
        return f"'end' is {row['end']}, which is before its start, {row['start']}"
    return ""


def _place(row: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Start, end, process and correlation of something that ran on the device."""
    return row["start"], row["end"], _process(row["globalPid"]), row["correlationId"]


def _process(global_id: int | None) -> int:
    return (global_id or 0) >> 24


def _range_text(row: Mapping[str, Any], strings: Mapping[int, str]) -> str:
    """The text of a range. One that the program registered is a number, which StringIds explains."""
    text = row["text"]
    return text if text is not None else strings.get(row["textId"], "")
