"""What exports of Nsight Systems tell of each case.

They are made here by NVIDIA's schema, with the columns that it documents. Sums are counted by hand.
"""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from harness.errors import MachineError, UsageError
from harness.model import Attachment
from harness.profile import CALLS, nsys

NAIVE = "bias_add/naive/float32/outer131072-bias1024-inner1/p=0.1"
TUNED = "bias_add/tuned_v2/float32/outer131072-bias1024-inner1/p=0.1/world=2/hot"
MAIN, BACKWARD, OTHER = 0x0100_0007_0000_0007, 0x0100_0007_0000_0008, 0x0100_0009_0000_0009  # threads
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER,
    textId INTEGER REFERENCES StringIds(id), domainId INTEGER, uint64Value INTEGER, jsonText TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
    launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
    gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
    blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
    localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
    sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL);
CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL,
    severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER);
"""


class Export:
    """An export in the making. Times are in nanoseconds. Tables without rows are left out, as nsys does."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.database = sqlite3.connect(file)
        self.database.executescript(SCHEMA)
        self.strings: dict[str, int] = {}

    def insert(self, table: str, **columns: object) -> None:
        marks = ", ".join("?" * len(columns))
        self.database.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values()))

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.insert("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def domain(self, name: str, number: int, thread: int = MAIN) -> None:
        self.insert("NVTX_EVENTS", start=0, eventType=75, text=name, globalTid=thread, domainId=number)

    def range(
        self, text: str, start: int, end: int | None, domain: int = 1, thread: int = MAIN, kind: int = 59
    ) -> None:
        """A range whose text is registered, as package nvtx does; but in the default domain, 0, it is plain."""
        words = {"textId": self.string(text)} if domain else {"text": text}
        self.insert("NVTX_EVENTS", start=start, end=end, eventType=kind, globalTid=thread, domainId=domain, **words)

    def call(self, start: int, end: int, correlation: int, thread: int = MAIN) -> None:
        self.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            eventClass=0,
            globalTid=thread,
            correlationId=correlation,
            nameId=self.string("cudaLaunchKernel_v7000"),
            returnValue=0,
        )

    def kernel(self, name: str, start: int, end: int, correlation: int, thread: int = MAIN, **columns: int) -> None:
        sizes = {"gridX": 8, "gridY": 2, "gridZ": 1, "blockX": 32, "blockY": 4, "blockZ": 1, "gridId": 1}
        memory = {"staticSharedMemory": 1024, "dynamicSharedMemory": 512, "localMemoryPerThread": 0}
        usual = {**sizes, **memory, "localMemoryTotal": 0, "registersPerThread": 40}
        names = {"shortName": self.string(name), "demangledName": self.string(f"void {name}<float>(float *)")}
        self.work("KERNEL", start, end, correlation, thread, **names, **{**usual, **columns})

    def work(self, kind: str, start: int, end: int, correlation: int, thread: int = MAIN, **columns: int) -> None:
        place = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": thread & ~0xFFFFFF}
        table = f"CUPTI_ACTIVITY_KIND_{kind}"
        self.insert(table, start=start, end=end, correlationId=correlation, **place, **columns)

    def done(self) -> Path:
        names = [name for (name,) in self.database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            if not self.database.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone():
                self.database.execute(f"DROP TABLE {name}")
        self.database.commit()
        self.database.close()
        return self.file


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "report.sqlite")


@pytest.fixture
def two_cases(export: Export) -> Path:
    """Two cases of two calls each, with what isn't theirs before, between and after."""
    export.domain("harness", 1)
    export.domain("CCCL", 2)
    export.range(f"check: {NAIVE}", 0, 900)
    export.call(100, 110, 1)
    export.kernel("naive", 120, 800, 1)  # of the check

    export.range(NAIVE, 1000, 2000)
    export.range("DeviceReduce", 1000, 1990, domain=2)  # a library's own, which says nothing about cases
    export.call(1010, 1020, 2)
    export.kernel("harness_mark", 1025, 1030, 2)
    export.call(1100, 1140, 3)
    export.kernel("naive", 1200, 1500, 3)
    export.call(1300, 1320, 4)
    export.kernel("naive", 1600, 1800, 4, gridX=10, registersPerThread=42)
    export.call(1400, 1490, 5)
    export.work("MEMCPY", 1810, 1850, 5, bytes=4096, copyKind=8)
    export.call(1500, 1520, 6, thread=BACKWARD)  # a backward pass is launched by another thread
    export.kernel("reduce_kernel", 1700, 1900, 6)
    export.call(1990, 2010, 7)
    export.kernel("naive", 2100, 2200, 7)  # launched inside, ran after the end
    export.call(2001, 2005, 8)
    export.kernel("naive", 2300, 2400, 8)  # launched after the end

    export.range(f"warm: {TUNED}", 2900, 2950)
    export.call(2910, 2920, 9)
    export.kernel("tuned", 2930, 2940, 9)
    export.range(TUNED, 3000, 4000)
    export.call(3100, 3200, 10)  # a launch of a graph of two kernels
    export.call(3110, 3130, 11)  # calls of the driver inside it
    export.call(3150, 3170, 12)
    export.kernel("tuned", 3300, 3400, 10, graphNodeId=71)
    export.kernel("tail", 3400, 3450, 10, graphNodeId=72)
    # Another process: the same correlation, another domain by the same number, and a thread inside no range of its own.
    export.domain("elsewhere", 1, thread=OTHER)
    export.range(NAIVE, 3000, 4000, thread=OTHER)
    export.call(3300, 3310, 3, thread=OTHER)
    export.kernel("stranger", 3350, 3390, 3, thread=OTHER)
    return export.done()


def values(attachment: Attachment) -> dict[str, float]:
    return dict(attachment.values)


def test_the_sums_of_a_case_are_those_of_what_its_range_launched(two_cases: Path) -> None:
    first, second = nsys.recorded(two_cases, [NAIVE, TUNED], calls=2)
    assert (first.case, first.tool) == (NAIVE, "nsys")
    assert values(first) == pytest.approx(
        {
            "kernels": 4 / 2,
            "time": (300 + 200 + 200 + 100) * 1e-9 / 2,
            "span": (2200 - 1200) * 1e-9 / 2,
            "gap": (100 + 200) * 1e-9 / 2,  # 1500 to 1600, and 1900 to 2100
            "copies": 1 / 2,
            "copy_bytes": 4096 / 2,
            "host": (40 + 20 + 90 + 20 + 20) * 1e-9 / 2,
        },
        rel=1e-9,
    )
    assert values(second) == pytest.approx(
        {"kernels": 1, "time": 75e-9, "span": 75e-9, "gap": 0, "host": 50e-9}, rel=1e-9, abs=1e-18
    )


def test_kernels_are_told_one_by_one_in_the_order_of_their_first_launch(two_cases: Path) -> None:
    first, second = nsys.recorded(two_cases, [NAIVE, TUNED], calls=2)
    assert [(kernel.name, kernel.launches) for kernel in first.kernels] == [("naive", 1.5), ("reduce_kernel", 0.5)]
    assert [(kernel.name, kernel.launches) for kernel in second.kernels] == [("tuned", 0.5), ("tail", 0.5)]
    assert dict(first.kernels[0].values) == pytest.approx(
        {
            "time": 200e-9,  # 300, 200 and 100 ns
            "grid": (16 + 20 + 16) / 3,
            "block": 128,
            "registers": (40 + 42 + 40) / 3,
            "shared_bytes": 1536,
            "local_bytes": 0,
        },
        rel=1e-9,
    )


def test_without_a_list_all_cases_of_the_recording_count_by_range(two_cases: Path) -> None:
    found = nsys.recorded(two_cases, [], calls=0)
    assert [attachment.case for attachment in found] == [NAIVE, TUNED]
    assert [values(attachment)["kernels"] for attachment in found] == [4, 2]


def test_only_the_cases_that_were_asked_for_are_told_in_their_order(two_cases: Path) -> None:
    found = nsys.recorded(two_cases, [TUNED, "bias_add/other/float32/N1", NAIVE], calls=1)
    assert [attachment.case for attachment in found] == [TUNED, NAIVE]
    with pytest.raises(UsageError, match="holds the calls of no case that was asked for") as caught:
        nsys.recorded(two_cases, ["bias_add/other/float32/N1"], calls=1)
    assert NAIVE in caught.value.advice


def test_ranks_of_a_case_give_the_mean_of_a_rank(export: Export) -> None:
    for thread, length in ((MAIN, 100), (OTHER, 300)):
        export.domain("harness", 3, thread)
        export.range(TUNED, 0, 1000, domain=3, thread=thread)
        export.call(10, 20, 1, thread)
        export.kernel("ring", 100, 100 + length, 1, thread)
    (found,) = nsys.recorded(export.done(), [TUNED], calls=1)
    assert values(found)["kernels"] == 1
    assert values(found)["time"] == pytest.approx(200e-9)


def test_a_case_that_launched_nothing_is_told_as_that(export: Export) -> None:
    export.domain("harness", 1)
    export.range(NAIVE, 0, 100)
    export.range(TUNED, 200, None)  # the program died inside
    export.call(210, 220, 1)
    export.kernel("tuned", 300, 400, 1)
    first, second = nsys.recorded(export.done(), [], calls=0)
    assert values(first) == {"kernels": 0, "time": 0, "span": 0, "gap": 0, "host": 0}
    assert first.kernels == ()
    assert values(second)["kernels"] == 1


def test_a_run_in_which_no_case_came_to_its_calls_is_an_error(export: Export) -> None:
    export.domain("harness", 1)
    export.range(f"check: {NAIVE}", 0, 100)
    export.call(10, 20, 1)
    export.kernel("naive", 30, 40, 1)
    with pytest.raises(UsageError, match=r"holds the calls of no case$"):
        nsys.recorded(export.done(), [], calls=0)


def test_a_program_of_the_user_s_is_told_by_its_outermost_ranges(export: Export) -> None:
    export.domain("train", 4)
    for step, begin in enumerate((0, 1000)):
        export.range("step", begin, begin + 900, domain=4)
        export.range("forward", begin + 10, begin + 400, domain=0)  # inside a step
        export.call(begin + 20, begin + 30, 10 + step)
        export.kernel("gemm", begin + 100, begin + 200, 10 + step)
    export.range("save", 2000, 2500, domain=0, kind=60)
    export.call(2010, 2020, 30)
    export.work("MEMCPY", 2100, 2300, 30, bytes=100, copyKind=2)
    found = nsys.recorded(export.done(), [], calls=0)
    assert [(each.case, values(each)["kernels"]) for each in found] == [("step", 1), ("save", 0)]
    assert values(found[0])["time"] == pytest.approx(100e-9)
    assert values(found[1])["copy_bytes"] == 100


def test_a_program_without_ranges_is_told_as_a_whole(export: Export) -> None:
    export.kernel("gemm", 100, 200, 1)  # and no table of calls or ranges
    export.kernel("gemm", 300, 400, 2)
    export.kernel("harness_mark", 410, 420, 3)
    (found,) = nsys.recorded(export.done(), [], calls=0)
    assert found.case == ""
    assert values(found) == pytest.approx({"kernels": 2, "time": 200e-9, "span": 300e-9, "gap": 100e-9, "host": 0})


def test_an_export_without_calls_can_not_tell_cases(export: Export) -> None:
    export.domain("harness", 1)
    export.range(NAIVE, 0, 100)
    export.kernel("naive", 10, 20, 1)
    with pytest.raises(UsageError, match="no calls of the CUDA runtime"):
        nsys.recorded(export.done(), [NAIVE], calls=1)


def test_graphs_without_their_kernels_are_refused_where_a_case_launched_them(export: Export) -> None:
    export.domain("harness", 1)
    export.range(NAIVE, 0, 100)
    export.call(10, 20, 1)
    export.kernel("naive", 30, 40, 1)
    export.range(TUNED, 200, 300)
    export.call(210, 220, 2)
    export.work("GRAPH_TRACE", 230, 290, 2, graphId=1, graphExecId=2)
    file = export.done()
    assert [each.case for each in nsys.recorded(file, [NAIVE], calls=1)] == [NAIVE]
    with pytest.raises(UsageError, match="recorded without their kernels") as caught:
        nsys.recorded(file, [], calls=1)
    assert "--cuda-graph-trace=node" in caught.value.advice


def test_an_export_without_kernels_says_what_nsys_noted(export: Export) -> None:
    export.call(10, 20, 1)
    noted = (
        (1, "CUDA injection is fine."),
        (2, "No CUDA events collected."),
        (2, "No NVTX events."),
        (2, "Slow disk."),
    )
    for severity, text in noted:
        export.insert("DIAGNOSTIC_EVENT", timestamp=0, timestampType=1, source=1, severity=severity, text=text)
    with pytest.raises(UsageError, match=r"report\.sqlite: holds no kernels") as caught:
        nsys.recorded(export.done(), [], calls=0)
    assert caught.value.message.endswith("noted: No CUDA events collected. No NVTX events.")


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId"),
        ("NVTX_EVENTS", "domainId"),
    ],
)
def test_an_export_of_another_schema_is_refused(two_cases: Path, table: str, column: str) -> None:
    with closing(sqlite3.connect(two_cases)) as database:
        database.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    with pytest.raises(UsageError, match=rf"report\.sqlite: its table {table} has no column {column}$"):
        nsys.recorded(two_cases, [], calls=0)


def test_a_file_that_is_no_export_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "report.sqlite"
    with pytest.raises(UsageError, match=r"report\.sqlite: there is no such file"):
        nsys.recorded(file, [], calls=0)
    file.write_text("not a database" * 100)
    with pytest.raises(UsageError, match=r"report\.sqlite: isn't an SQLite export"):
        nsys.recorded(file, [], calls=0)
    file.write_bytes(b"")
    with pytest.raises(UsageError, match=r"report\.sqlite: holds no kernels"):
        nsys.recorded(file, [], calls=0)


def test_a_report_is_exported_first(two_cases: Path, tmp_path: Path, fake_nsys: Callable[[str], Path]) -> None:
    # `nsys export --type=sqlite --force-overwrite=true --output=FILE REPORT`
    fake_nsys(f'echo "$1 $2 $3 $5" > {tmp_path}/arguments\ncp {shlex.quote(str(two_cases))} "${{4#--output=}}"')
    report = tmp_path / "made elsewhere.nsys-rep"
    report.touch()
    assert nsys.recorded(report, [], calls=0) == nsys.recorded(two_cases, [], calls=0)
    assert (tmp_path / "arguments").read_text() == f"export --type=sqlite --force-overwrite=true {report}\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "arguments",
        "bin",
        "made elsewhere.nsys-rep",
        "report.sqlite",
    ]


def test_an_error_names_the_report_and_not_its_export(tmp_path: Path, fake_nsys: Callable[[str], Path]) -> None:
    fake_nsys(': > "${4#--output=}"')
    report = tmp_path / "empty.nsys-rep"
    report.touch()
    with pytest.raises(UsageError, match=r"holds no kernels") as caught:
        nsys.recorded(report, [], calls=0)
    assert caught.value.message.startswith(f"{report}: ")


def test_a_report_that_can_not_be_exported_is_refused(tmp_path: Path, fake_nsys: Callable[[str], Path]) -> None:
    report = tmp_path / "new.nsys-rep"
    with pytest.raises(UsageError, match="there is no such file"):
        nsys.recorded(report, [], calls=0)
    report.touch()
    with pytest.raises(MachineError, match="only nsys can read it") as caught:
        nsys.recorded(report, [], calls=0)
    assert f"nsys export --type=sqlite {report}" in caught.value.advice
    fake_nsys("echo 'The file was made by a newer version' >&2; exit 1")
    with pytest.raises(UsageError, match="nsys can't export it: The file was made by a newer version"):
        nsys.recorded(report, [], calls=0)


def test_our_own_recording_and_one_from_elsewhere_are_the_same(two_cases):
    base = two_cases.with_suffix("")
    assert nsys.read(base, ["", NAIVE], calls=2) == nsys.recorded(two_cases, [NAIVE], calls=2)
    assert nsys.imported(two_cases, [NAIVE]) == nsys.recorded(two_cases, [NAIVE], calls=CALLS)
    assert nsys.imported(two_cases, []) == nsys.recorded(two_cases, [], calls=0)
