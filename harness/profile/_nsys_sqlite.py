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

import math
import operator
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
"""The tables, the columns of them that are read, in the order in which _Export gets them, and what a cell holds."""
_NOT_NEGATIVE = {
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "bytes"),
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
}
_TYPES: dict[str, set[type]] = {
    _WHOLE: {int},
    _WHOLE + _OR_NOTHING: {int, type(None)},
    _TEXT: {str},
    _TEXT + _OR_NOTHING: {str, type(None)},
}
_KINDS = {type(None): "nothing", str: "text", bytes: "bytes", float: "a fraction"}
# Numbers of NVTX events: ranges that are pushed and popped, ranges that are started and ended (each also as imported
# from a text file), and the creation of a domain, which tells its name.
_PUSHED = (59, 70)
_RANGES = (*_PUSHED, 60, 71)
_DOMAIN = 75
_WORSE_THAN_INFO = 1  # severity of diagnostics
NEVER = sys.maxsize
"""The end of a range that wasn't closed."""
_START = operator.attrgetter("start")

_MOST_ROWS = 2_000_000
"""The most rows of a table that are read. A row takes about 1 KiB of memory."""
_ROWS_AT_ONCE = 256
"""Rows that are looked at together. They take 256 MiB of memory where each row is as long as it can be."""
_LONGEST_CELL = 1 << 20
"""The most bytes of a text."""
_STEPS = 1_000
"""Steps of SQLite's machine between two looks at how many there were."""
_FEWEST_STEPS = 10_000_000
_STEPS_A_BYTE = 4
"""To read a row takes about as many steps as the row has bytes. A file that refers to itself in a circle takes more."""


class TraceRange(NamedTuple):
    """A range of a thread. text and domain are '' where there is none. A range that wasn't closed ends at NEVER.

    pushed: whether it was pushed and popped, so that ranges of its thread lie in it. Otherwise it was started and
    ended, perhaps by another thread.
    """

    text: str
    domain: str
    start: int
    end: int
    process: int
    thread: int
    pushed: bool


class HostCall(NamedTuple):
    """A call of the CUDA runtime or driver. correlation: what the work that it caused on the device has as well."""

    start: int
    end: int
    process: int
    thread: int
    correlation: int | None


class GpuWork(NamedTuple):
    """Something that ran on the device. name: of a kernel. figures: by name, in SI units.

    A 'graph' is a CUDA graph that was recorded as a whole, so that its kernels are missing.
    """

    start: int
    end: int
    process: int
    correlation: int
    kind: Literal["kernel", "copy", "graph"]
    name: str = ""
    figures: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class NsysTrace:
    """What an export holds. Ranges, calls and the work of each kind are in the order in which they began.

    file: its name in messages. notes: what Nsight Systems itself noted, such as that it couldn't record kernels.
    """

    file: Path
    ranges: tuple[TraceRange, ...]
    calls: tuple[HostCall, ...]
    work: tuple[GpuWork, ...]
    notes: tuple[str, ...] = ()

    @property
    def has_kernels(self) -> bool:
        """Whether kernels were recorded, one by one or as graphs."""
        return any(each.kind != "copy" for each in self.work)


def load(file: Path, source: Path) -> NsysTrace:
    """What an export holds. source: the file that errors name, which the export was made of, or the export itself.

    Raises UsageError for a file that isn't an export, lacks a column, holds in a cell what can't stand there, or has
    more rows than the limit.
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
        strings = {key: value for cells in self._cells("StringIds") for key, value in zip(*cells, strict=True)}
        work = (*self._kernels(strings), *self._graphs(), *self._copies())
        return NsysTrace(self._file, self._ranges(strings), self._calls(), work, self._notes())

    def _cells(self, table: str) -> Iterator[list[Sequence[Any]]]:
        """The columns of a table that are read, in pieces of some rows, each cell of its kind; none without the table.

        Whole columns are looked at, which takes half the time that a look at each row takes.
        """
        if table not in self._tables:
            return
        columns = _COLUMNS[table]
        names = ", ".join(f'"{name}"' for name in columns)
        cursor = self._database.execute(f'SELECT {names} FROM "{table}"')
        done = 0
        while rows := cursor.fetchmany(min(_ROWS_AT_ONCE, _MOST_ROWS + 1 - done)):
            cells: list[Sequence[Any]] = list(zip(*rows, strict=True))
            if not all(map(_fits, columns.items(), cells)) or not _in_order(columns, cells):
                self._refuse_first(table, rows, done)
            done += len(rows)
            if done > _MOST_ROWS:
                raise UsageError(
                    f"{self._file}: its table {table} has more than {_MOST_ROWS:,} rows, the limit", _FEWER
                )
            yield [
                _shown(own) if kind.startswith(_TEXT) else own
                for kind, own in zip(columns.values(), cells, strict=True)
            ]

    def _refuse_first(self, table: str, rows: Sequence[Sequence[Any]], before: int) -> None:
        """Raise UsageError for the first of the rows that can't be so. before: rows of the table ahead of them."""
        for number, row in enumerate(rows, before + 1):
            if problem := _problem(dict(zip(_COLUMNS[table], row, strict=True)), _COLUMNS[table]):
                raise UsageError(f"{self._file}: its table {table}, row {number}: {problem}", _AGAIN)

    def _ranges(self, strings: Mapping[int, str]) -> tuple[TraceRange, ...]:
        domains: dict[tuple[int, int | None], str] = {}
        found: list[tuple[Any, ...]] = []
        for cells in self._cells("NVTX_EVENTS"):
            for start, end, kind, text, text_id, domain, thread in zip(*cells, strict=True):
                if kind == _DOMAIN or kind in _RANGES:
                    said = text if text is not None else strings.get(text_id, "")
                    if kind == _DOMAIN:
                        domains[_process(thread), domain] = said
                    else:
                        found.append((said, domain, start, NEVER if end is None else end, thread, kind in _PUSHED))
        made = (
            TraceRange(
                text, domains.get((_process(thread), domain), ""), start, end, _process(thread), thread or 0, pushed
            )
            for text, domain, start, end, thread, pushed in found
        )
        return tuple(sorted(made, key=_START))

    def _calls(self) -> tuple[HostCall, ...]:
        made: list[HostCall] = []
        for starts, ends, threads, correlations in self._cells("CUPTI_ACTIVITY_KIND_RUNTIME"):
            known = [thread or 0 for thread in threads]
            made += map(HostCall, starts, ends, map(_process, known), known, correlations)
        return tuple(sorted(made, key=_START))

    def _work(self, kind: str) -> Iterator[tuple[tuple[int, int, int, int], tuple[int, ...]]]:
        """What ran on the device: start, end, process and correlation of each, and the other cells of its row.

        Work without a correlation is left out, since no call launched it.
        """
        for starts, ends, processes, correlations, *others in self._cells(f"CUPTI_ACTIVITY_KIND_{kind}"):
            places = zip(starts, ends, map(_process, processes), correlations, strict=True)
            rest = zip(*others, strict=True) if others else repeat(())
            yield from (pair for pair in zip(places, rest, strict=False) if pair[0][3] is not None)

    def _graphs(self) -> list[GpuWork]:
        return sorted((GpuWork(*place, "graph") for place, _ in self._work("GRAPH_TRACE")), key=_START)

    def _copies(self) -> list[GpuWork]:
        made = (GpuWork(*place, "copy", "", (("bytes", float(size)),)) for place, (size,) in self._work("MEMCPY"))
        return sorted(made, key=_START)

    def _kernels(self, strings: Mapping[int, str]) -> list[GpuWork]:
        # Launches of a kernel mostly have the same figures, so each set of figures is made once.
        figures = _Figures()
        made = (
            GpuWork(*place, "kernel", strings.get(cells[0]) or "?", figures[cells[1:]])
            for place, cells in self._work("KERNEL")
        )
        return sorted(made, key=_START)

    def _notes(self) -> tuple[str, ...]:
        """What Nsight Systems itself noted, beyond information."""
        noted: dict[str, None] = {}
        for severities, texts in self._cells("DIAGNOSTIC_EVENT"):
            worse = zip(severities, texts, strict=True)
            noted |= dict.fromkeys(text for severity, text in worse if text and (severity or 0) > _WORSE_THAN_INFO)
        return tuple(noted)


class _Figures(dict[tuple[int, ...], tuple[tuple[str, float], ...]]):
    """The figures of a launch, by the cells of its row from registersPerThread on."""

    def __missing__(self, cells: tuple[int, ...]) -> tuple[tuple[str, float], ...]:
        registers, *sizes, static, dynamic, local = cells
        figures = {
            "grid": math.prod(sizes[:3]),
            "block": math.prod(sizes[3:]),
            "registers": registers,
            "shared_bytes": static + dynamic,
            "local_bytes": local,
        }
        made = self[cells] = tuple((key, float(value)) for key, value in figures.items())
        return made


def _fits(column: tuple[str, str], cells: Sequence[Any]) -> bool:
    """Whether all cells of a column, given as its name and its kind, are of the kind."""
    name, kind = column
    return {*map(type, cells)} <= _TYPES[kind] and (name not in _NOT_NEGATIVE or min(cells) >= 0)


def _in_order(columns: Mapping[str, str], cells: Sequence[Sequence[Any]]) -> bool:
    """Whether nothing ends before it starts. A range that does was open at no time, which is allowed."""
    if "end" not in columns or "eventType" in columns:
        return True
    names = [*columns]
    return all(map(operator.le, cells[names.index("start")], cells[names.index("end")]))


def _shown(cells: Sequence[str | None]) -> list[str | None]:
    """The texts of a column as names that can be shown."""
    names = {text: foreign.name(text) for text in {*cells} if text is not None}
    return [None if text is None else names[text] for text in cells]


def _problem(row: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    """What can't be so in a row; '' if all can."""
    for column, kind in columns.items():
        value = row[column]
        if type(value) not in _TYPES[kind]:
            return f"'{column}' is {_KINDS.get(type(value), 'a number')}, it must be {kind}"
        if column in _NOT_NEGATIVE and value < 0:
            return f"'{column}' is {value}, it can't be negative"
    if "eventType" not in row and "end" in row and row["end"] < row["start"]:
        return f"'end' is {row['end']}, which is before its start, {row['start']}"
    return ""


def _process(global_id: int | None) -> int:
    return (global_id or 0) >> 24
