"""Recordings of anybody: what a file can't hold ends with its name and the place, and no file takes long."""

from __future__ import annotations

import gzip
import json
import math
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import store
from harness.errors import UsageError
from harness.model import Attachment, KernelProfile, RangeProfile
from harness.profile import _nsys_sqlite, _request, _trace, ncu, nsys
from harness.profile import torch as traces
from harness.store import soundness
from tests.profile.test_nsys_exports import Export
from tests.properties import bounded

KERNEL = {"ph": "X", "cat": "kernel", "name": "sum", "pid": 0, "tid": 7, "ts": 10, "dur": 5}
HEAD = '"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","dram__bytes_read.sum"\n'
LAUNCH = '"0","sum","(64, 1, 1)","(4, 1, 1)","1,000","512"\n'


def refused(imported: Callable[..., list[Attachment]], file: Path, *said: str) -> None:
    """The file is refused, by its name and these words."""
    with pytest.raises(UsageError) as caught:
        imported(file, [])
    assert caught.value.message.startswith(str(file))
    assert [word for word in said if word not in caught.value.message] == []
    assert len(caught.value.message) < 1_000
    assert caught.value.advice


def usable(found: list[Attachment]) -> None:
    """What was found can be stored, shown and computed with."""
    for each in found:
        assert store.parse(Attachment, store.dump(each)) == each
        named: tuple[KernelProfile | RangeProfile, ...] = (*each.kernels, *each.ranges)
        figures = [*each.values, *(figure for one in named for figure in one.values)]
        assert all(math.isfinite(value) for _, value in figures)
        assert soundness.of_attachment(each) == ""
        assert all(ord(sign) >= 32 for one in named for sign in one.name)


def read_or_refused(imported: Callable[..., list[Attachment]], file: Path) -> None:
    """What was found is usable, or the error begins with the file's name."""
    said = str(file)
    try:
        usable(imported(file, []))
    except UsageError as error:
        said = error.message
    assert said.startswith(str(file))


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    made = Export(tmp_path / "r.sqlite")
    made.range("step", 0, 100, domain=0)
    made.range("forward", 2, 40, domain=0)
    made.call(1, 5, 1)
    made.kernel("sum", 6, 50, 1)
    made.work("MEMCPY", 60, 70, 1, bytes=64, copyKind=1)
    return made.done()


def changed(file: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(file)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return file


# Columns without the conditions of NVIDIA's schema, which a foreign file needn't have.
LOOSE = (
    "CREATE TABLE loose AS SELECT * FROM {table}",
    "DROP TABLE {table}",
    "ALTER TABLE loose RENAME TO {table}",
)


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "start", "NULL", "'start' is nothing, it must be a whole number"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "end", "'soon'", "'end' is text, it must be a whole number"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "gridX", "x'00ff'", "'gridX' is bytes, it must be a whole number"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "blockX", "1e300", "'blockX' is a fraction, it must be a whole number"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "blockX", "9e999", "'blockX' is a fraction, it must be a whole number"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "registersPerThread", "-1", "it can't be negative"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "end", "5", "'end' is 5, which is before its start, 6"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid", "'x'", "must be a whole number or nothing"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid", "'x'", "must be a whole number or nothing"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "bytes", "NULL", "'bytes' is nothing"),
        ("NVTX_EVENTS", "text", "x'00'", "'text' is bytes, it must be text or nothing"),
        ("NVTX_EVENTS", "start", "'0x'", "'start' is text"),
        ("StringIds", "value", "x'00'", "'value' is bytes, it must be text"),
    ],
)
def test_a_cell_that_can_not_be_is_told_with_its_row(
    recording: Path, table: str, column: str, value: str, said: str
) -> None:
    changed(recording, *(line.format(table=table) for line in LOOSE), f'UPDATE {table} SET "{column}" = {value}')
    refused(nsys.imported, recording, f"its table {table}, row 1: ", said)


def test_a_row_is_counted_from_the_table_s_first_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nsys_sqlite, "_ROWS_AT_ONCE", 2)
    made = Export(tmp_path / "r.sqlite")
    for place in range(6):
        made.kernel("sum", place, place + (-1 if place >= 4 else 1), place)
    refused(nsys.imported, made.done(), "row 5: 'end' is 3, which is before its start, 4")


ENDLESS = "AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n)"


def test_a_view_is_not_read(recording: Path) -> None:
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    columns = ", ".join(f'i AS "{column}"' for column in _nsys_sqlite._COLUMNS[table])
    changed(recording, f"DROP TABLE {table}", f"CREATE VIEW {table} {ENDLESS} SELECT {columns} FROM n")
    refused(nsys.imported, recording, f"its table {table} is a view")


def test_a_computed_column_is_not_read(recording: Path) -> None:
    changed(
        recording,
        "ALTER TABLE StringIds RENAME TO s",
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT AS (hex(id)))",
        "INSERT INTO StringIds (id) SELECT id FROM s",
    )
    refused(nsys.imported, recording, "its table StringIds has no column value")


def test_a_table_in_a_circle_ends(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite stops after more steps than the file has bytes for; this file's are made few."""
    monkeypatch.setattr(_nsys_sqlite, "_FEWEST_STEPS", 0)
    monkeypatch.setattr(_nsys_sqlite, "_STEPS_A_BYTE", 0)
    monkeypatch.setattr(_nsys_sqlite, "_STEPS", 10)
    refused(nsys.imported, recording, "more rows or text than a file of its size can have")


def test_a_text_that_is_many_rows_s_has_an_end(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite gives no more text than the file has bytes for; the file counts as an empty one here."""
    changed(recording, "UPDATE StringIds SET value = printf('%.*c', 200000, 'x')")
    monkeypatch.setattr(_nsys_sqlite, "_LONGEST_CELL", 210_000)
    guard = _nsys_sqlite._guard
    monkeypatch.setattr(_nsys_sqlite, "_guard", lambda database, _: guard(database, 0))
    refused(nsys.imported, recording, "more rows or text than a file of its size can have")


def test_rows_and_cells_have_limits(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nsys_sqlite, "_MOST_ROWS", 0)
    refused(nsys.imported, recording, "its table StringIds has more than 0 rows, the limit")
    monkeypatch.undo()
    changed(recording, "UPDATE StringIds SET value = printf('%.*c', 2000000, 'x')")
    refused(nsys.imported, recording, "a cell has more than 1 MiB")


def test_names_are_text_that_can_be_shown(recording: Path) -> None:
    changed(recording, "UPDATE StringIds SET value = CAST(x'1b5b333120ff' AS TEXT)")
    (found,) = nsys.imported(recording, [])
    assert found.kernels[0].name == "\ufffd[31 \ufffd"


def test_a_journal_beside_an_export_does_not_count(recording: Path) -> None:
    expected = nsys.imported(recording, [])
    recording.with_name(f"{recording.name}-journal").write_bytes(os.urandom(4096))
    recording.with_name(f"{recording.name}-wal").write_bytes(os.urandom(4096))
    assert nsys.imported(recording, []) == expected


@pytest.mark.slow  # the tests above have cells that can't be
@bounded
@given(
    st.sampled_from([(table, column) for table, columns in _nsys_sqlite._COLUMNS.items() for column in columns]),
    st.one_of(
        st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(st.characters(codec="utf-8")), st.binary()
    ),
)
def test_an_export_with_any_cell_is_read_or_refused(
    recording: Path, tmp_path: Path, place: tuple[str, str], value: Any
) -> None:
    table, column = place
    file = tmp_path / "any.sqlite"
    file.write_bytes(recording.read_bytes())
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA synchronous = OFF")
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            return
        for line in LOOSE:
            database.execute(line.format(table=table))
        database.execute(f'UPDATE {table} SET "{column}" = ?', (value,))
        database.commit()
    read_or_refused(nsys.imported, file)


# ---- Traces of torch.


def trace(folder: Path, *events: Any) -> Path:
    file = folder / "t.json"
    file.write_text(json.dumps(events))
    return file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000 + "]" * 100_000, "it is nested too deeply"),
        ('{"traceEvents": ' * 50_000, "it is nested too deeply"),
        ('{"traceEvents": 7}', "without 'traceEvents'"),
        ('[{"ts": ' + "9" * 5_000 + "}]", "can't be read as a trace"),
        ("\ud800".encode("utf-8", "surrogatepass"), "can't be read as a trace"),
        ("[null]", "event 1, is no event"),
    ],
    ids=lambda _: "",
)
def test_json_that_is_no_trace_is_told(tmp_path: Path, text: str | bytes, said: str) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(traces.imported, file, said)


@pytest.mark.parametrize("time", [int("9" * 400), -(10**400), math.nan, math.inf, 1e300], ids=lambda _: "")
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_a_time_that_can_not_be_is_told_with_its_event(tmp_path: Path, key: str, time: float) -> None:
    refused(traces.imported, trace(tmp_path, KERNEL, {**KERNEL, key: time}), "event 2 has times that can't be")


def test_what_is_no_size_or_place_is_left_out(tmp_path: Path) -> None:
    huge = int("9" * 400)
    figures = {"grid": [huge, 1, 1], "block": [4, 1, -1], "registers per thread": huge, "device": [[[]]]}
    (found,) = traces.imported(trace(tmp_path, {**KERNEL, "name": "a\x1bb\ud800", "args": figures}), [])
    assert [(kernel.name, [name for name, _ in kernel.values]) for kernel in found.kernels] == [
        ("a\ufffdb\ufffd", ["time"])
    ]


def test_a_trace_has_a_limit_of_bytes_unpacked_of_values_and_of_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = tmp_path / "b.json.gz"
    bomb.write_bytes(gzip.compress(b" " * (2 << 20)))
    monkeypatch.setattr(_trace, "_MOST_BYTES", 1 << 20)
    refused(traces.imported, bomb, "unpacked it has more than 1 MiB, the limit")
    plain = tmp_path / "b.json"
    plain.write_bytes(b" " * (2 << 20))
    refused(traces.imported, plain, "it has more than 1 MiB, which is the limit")
    monkeypatch.undo()
    monkeypatch.setattr(_trace, "_MOST_VALUES", 40)
    refused(traces.imported, trace(tmp_path, [[]] * 40), "has more than 40 values, the limit")
    monkeypatch.undo()
    monkeypatch.setattr(_trace, "_MOST_DEVICES", 2)
    events = [{**KERNEL, "args": {"device": number}} for number in range(3)]
    refused(traces.imported, trace(tmp_path, *events), "is of more than 2 devices, the limit")


ANY_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow  # the tests above have times and sizes that can't be
@bounded
@given(st.sampled_from([*KERNEL, "args"]), ANY_JSON, st.sampled_from(["kernel", "cpu_op", "cuda_runtime"]))
def test_a_trace_with_any_value_is_read_or_refused(tmp_path: Path, key: str, value: Any, kind: str) -> None:
    file = trace(tmp_path, KERNEL, {**KERNEL, "cat": kind, key: value})
    read_or_refused(traces.imported, file)


# ---- Pages of ncu.


def page(folder: Path, text: str) -> Path:
    file = folder / "p.csv"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (LAUNCH.replace('"512"', '"512","1"'), "p.csv:2: has 7 cells, its head has 6"),
        (LAUNCH.replace(',"512"', ""), "p.csv:2: has 5 cells, its head has 6"),
        (LAUNCH.replace("512", "-512"), "p.csv:2: dram__bytes_read.sum is -512; it can be from 0"),
        (LAUNCH.replace("512", "9" * 400), "p.csv:2: dram__bytes_read.sum is 999"),
        (LAUNCH.replace("sum", "x" * 200_000), "p.csv:2: isn't CSV: field larger than field limit"),
    ],
    ids=lambda _: "",
)
def test_a_line_that_can_not_be_is_told_by_its_number(tmp_path: Path, line: str, said: str) -> None:
    refused(ncu.imported, page(tmp_path, HEAD + line), said)


def test_a_text_under_a_unit_is_what_was_not_counted(tmp_path: Path) -> None:
    units = '"","","","","us","Mbyte"\n'
    launch = LAUNCH.replace("512", "n/a").replace('"sum"', '"a\x1bb"')
    (found,) = ncu.imported(page(tmp_path, HEAD + units + launch), [])
    assert [(kernel.name, dict(kernel.values)) for kernel in found.kernels] == [("a\ufffdb", {"time": 1e-3})]


@pytest.mark.parametrize("size", ["(0, 1, 1)", "()", "", "-", "9" * 5_000], ids=lambda _: "")
@pytest.mark.parametrize("column", ["(64, 1, 1)", "(4, 1, 1)"])
def test_a_mark_without_a_number_is_told(tmp_path: Path, size: str, column: str) -> None:
    file = page(tmp_path, HEAD + LAUNCH.replace('"sum"', '"harness_mark"').replace(column, size))
    with pytest.raises(UsageError, match=r"p\.csv:2: '.*' isn't a (block|grid) size from \(1, 1, 1\) on"):
        ncu._by_case(ncu._rows(file), ["a/b/c/d"])


def test_a_page_has_a_limit_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "_MOST_BYTES", 1 << 20)
    refused(ncu.imported, page(tmp_path, HEAD + LAUNCH * 30_000), "it has more than 1 MiB, which is the limit")


CELLS = st.one_of(st.text(max_size=12), st.sampled_from(['"', "n/a", "1e999", "-1", "1,0", "\r", "\0", '","']))


@pytest.mark.slow  # the tests above have lines and marks that can't be
@bounded
@given(st.lists(st.lists(CELLS, max_size=8), max_size=4), st.booleans())
def test_a_page_with_any_cells_is_read_or_refused(tmp_path: Path, rows: list[list[str]], quoted: bool) -> None:
    sign = '"' if quoted else ""
    lines = "".join(",".join(f"{sign}{cell}{sign}" for cell in row) + "\n" for row in rows)
    file = tmp_path / "p.csv"
    file.write_bytes((HEAD + LAUNCH + lines).encode("utf-8", "surrogatepass"))
    read_or_refused(ncu.imported, file)


# ---- What lies beside, and what isn't a file.


def test_a_request_that_can_not_be_carried_out_is_told(tmp_path: Path) -> None:
    file = trace(tmp_path, KERNEL).rename(tmp_path / "torch-1-9.json")
    beside = tmp_path / f"torch-1{_request.REQUEST}"
    for text, said in [
        ("[" * 100_000, "isn't a request of a profile"),
        ("{}", "isn't a request of a profile"),
        ('{"device": "cpu", "plugins": [], "jobs": [], "calls": 0}', "its cases are called 0 times"),
    ]:
        beside.write_text(text)
        with pytest.raises(UsageError, match=said):
            traces.imported(file, [])
    beside.write_text('{"device": "cpu", "plugins": [], "jobs": []}')
    refused(traces.imported, file, "is of case 9, the request beside it has 0 cases")
    beside.unlink()
    (tmp_path / _request.REQUEST).write_text("not about any file")
    usable(traces.imported(file, []))


@pytest.mark.parametrize(
    ("imported", "name"),
    [(nsys.imported, "p.sqlite"), (ncu.imported, "p.csv"), (ncu.imported, "p.ncu-rep"), (traces.imported, "p.json.gz")],
)
def test_a_pipe_is_not_opened(tmp_path: Path, imported: Callable[..., list[Attachment]], name: str) -> None:
    os.mkfifo(tmp_path / name)
    refused(imported, tmp_path / name, "it is a pipe, a socket or a device, not a file")
