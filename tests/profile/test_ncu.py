"""Nsight Compute: its command lines, its raw page as CSV, and what its figures become."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from harness.errors import MachineError, UsageError
from harness.model import COUNTERS, Case, Job
from harness.profile import CALLS, _request, ncu
from harness.profile._ncu_metrics import _NAMES, BYTES, DETAILS, translated
from harness.profile._request import ProfileRequest
from tests.one_test import one_test

CASES = ["copy/a/float32/N8", "copy/b/float32/N8", "copy/c/float32/N8"]
METRICS = ("gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum", "launch__registers_per_thread")
Kernel = tuple[str, int, Sequence[float]]  # name, blocks, what METRICS are


def page(kernels: Sequence[Kernel]) -> str:
    """The raw page as ncu prints it: a line of its own, the head, the units, and a row for each launch."""
    head = ["ID", "Kernel Name", "Block Size", "Grid Size", *METRICS]
    rows = [head, ["", "", "", "", "ns", "byte", "byte", "register/thread"]]
    for number, (name, blocks, values) in enumerate(kernels):
        threads = CALLS if name == "harness_mark" else 256
        rows.append([str(number), name, f"({threads}, 1, 1)", f"({blocks}, 1, 1)", *(f"{value:,}" for value in values)])
    return "==PROF== Disconnected\n" + "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)


def mark(number: int) -> Kernel:
    return "harness_mark", number, [1_000, 0, 0, 8]


def written(file: Path, kernels: Sequence[Kernel]) -> Path:
    file.write_text(page(kernels))
    return file


def ours(base: Path, kernels: Sequence[Kernel]) -> Path:
    """A report of our command: beside its request, of which only the ids count here."""
    jobs = tuple(Job(Case("copy", name, "float32", (("N", 8),))) for name in "abc")
    _request.write(ProfileRequest("cuda", (), jobs), base.with_name(f"{base.name}{_request.REQUEST}"))
    return written(base.with_name(f"{base.name}.details.ncu-rep"), kernels)


@pytest.fixture
def reads(on_the_path: Callable[[str, str], Path]) -> None:
    on_the_path("ncu", 'case "$1" in --version) echo "Version 2025.3";; --import) exec cat "$2";; esac')


@pytest.mark.usefixtures("reads")
def test_kernels_belong_to_the_case_whose_mark_is_ahead_of_them(tmp_path: Path) -> None:
    two: list[Kernel] = [("sum", 4, [2_000, 1_024, 0, 16]), ("divide", 8, [6_000.5, 2_048, 4_096, 32])]
    one: list[Kernel] = [("sum", 4, [1_000, 512, 0, 16])]
    ours(tmp_path / "ncu-1", [mark(1), *two * CALLS, mark(3), *one * 2 * CALLS])
    a, c = ncu.read(tmp_path / "ncu-1", CASES, CALLS)
    assert (a.case, c.case, a.tool) == (CASES[0], CASES[2], "ncu")
    assert dict(a.values) == pytest.approx({"kernels": 2, "time": 8.0005e-6, "read_bytes": 3072, "written_bytes": 4096})
    assert [(kernel.name, kernel.launches) for kernel in a.kernels] == [("sum", 1), ("divide", 1)]
    assert dict(a.kernels[1].values) == pytest.approx(
        {"time": 6.0005e-6, "read_bytes": 2048, "written_bytes": 4096, "registers": 32}
    )
    assert dict(c.values) == pytest.approx({"kernels": 2, "time": 2e-6, "read_bytes": 1024, "written_bytes": 0})
    assert [(kernel.name, kernel.launches) for kernel in c.kernels] == [("sum", 2)]


def test_a_process_that_counts_details_calls_each_case_once() -> None:
    assert ProfileRequest("cuda", (), ()).repeats == CALLS
    assert ProfileRequest("cuda", (), (), checked=True).repeats == 1


@pytest.mark.usefixtures("reads")
def test_a_mark_tells_how_often_a_case_was_called(tmp_path: Path) -> None:
    ours(tmp_path / "ncu-1", [mark(1), *[("sum", 4, [1_000, 512, 0, 16])] * 3])
    report = tmp_path / "ncu-1.details.ncu-rep"
    report.write_text(report.read_text().replace(f'"({CALLS}, 1, 1)"', '"(3, 1, 1)"'))
    (found,) = ncu.read(tmp_path / "ncu-1", CASES[:1], CALLS)
    assert found.kernels[0].launches == 1


@pytest.mark.usefixtures("reads")
def test_figures_of_a_kernel_are_means_of_its_launches(tmp_path: Path) -> None:
    launches: list[Kernel] = [("sum", 4, [1_000 * (i + 1), 0, 0, 16]) for i in range(CALLS)]
    ours(tmp_path / "ncu-1", [mark(1), *launches])
    (found,) = ncu.read(tmp_path / "ncu-1", CASES[:1], CALLS)
    assert dict(found.kernels[0].values)["time"] == pytest.approx(1e-6 * (CALLS + 1) / 2)


@pytest.mark.usefixtures("reads")
def test_another_kernel_in_the_second_run_is_no_second_kernel_of_a_call(tmp_path: Path) -> None:
    """A library that tries out its kernels may choose another one in each process."""
    ours(tmp_path / "ncu-1", [mark(1), *[("slow", 4, [2_000, 1_024, 0, 16])] * CALLS])
    written(tmp_path / "ncu-1.bytes.ncu-rep", [mark(1), *[("fast", 4, [1_000, 512, 0, 16])] * CALLS])
    (found,) = ncu.read(tmp_path / "ncu-1", CASES, CALLS)
    assert [kernel.name for kernel in found.kernels] == ["slow"]
    assert dict(found.values)["read_bytes"] == 1_024


@pytest.mark.usefixtures("reads")
def test_an_imported_report_of_ours_goes_by_its_request_and_not_by_what_is_asked_for(tmp_path: Path) -> None:
    report = ours(tmp_path / "ncu-1", [mark(3), *[("sum", 4, [1_000, 512, 0, 16])] * CALLS])
    (found,) = ncu.imported(report, [CASES[2], "another/case/float32/N1"])
    assert found.case == CASES[2]
    assert ncu.imported(report, [CASES[0]]) == []
    marked = written(tmp_path / "mine.csv", [mark(1), ("sum", 4, [1, 1, 1, 1])])
    with pytest.raises(UsageError, match="is of several cases"):
        ncu.imported(marked, CASES[:1])


def test_other_units_become_base_units(tmp_path: Path) -> None:
    text = page([("mine", 4, [20.5, 100.25, 50, 16])]).replace('"ns","byte","byte"', '"usecond","Mbyte","Gbyte"')
    (tmp_path / "a.csv").write_text(text)
    (found,) = ncu.imported(tmp_path / "a.csv", [])
    assert dict(found.kernels[0].values) == pytest.approx(
        {"time": 20.5e-6, "read_bytes": 100.25e6, "written_bytes": 50e9, "registers": 16}
    )


def test_a_clock_is_written_in_cycles(tmp_path: Path) -> None:
    head = '"ID","Kernel Name","Block Size","Grid Size","smsp__cycles_elapsed.avg.per_second"'
    for unit, value in (("cycle/nsecond", "1.755"), ("cycle/usecond", "1,755"), ("Ghz", "1.755"), ("hz", "1755000000")):
        rows = f'"","","","","{unit}"\n"0","mine","(64, 1, 1)","(4, 1, 1)","{value}"\n'
        (tmp_path / "a.csv").write_text(f"{head}\n{rows}")
        (found,) = ncu.imported(tmp_path / "a.csv", [])
        assert dict(found.kernels[0].values) == pytest.approx({"clock": 1.755e9}), unit


def test_what_was_not_counted_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(page([("mine", 4, [20, 1, 2, 16])]).replace('"1"', '"nan"').replace('"2"', '"n/a"'))
    (found,) = ncu.imported(tmp_path / "a.csv", [])
    assert dict(found.kernels[0].values) == pytest.approx({"time": 20e-9, "registers": 16})
    assert dict(found.values) == pytest.approx({"kernels": 1, "time": 20e-9})


def test_a_report_without_marks_is_about_the_only_case(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", [("mine", 4, [5_000, 1, 2, 3])])
    (found,) = ncu.imported(file, CASES[:1])
    assert (found.case, found.kernels[0].launches) == (CASES[0], 1)
    with pytest.raises(UsageError, match="doesn't tell which of 3 cases"):
        ncu.imported(file, CASES)


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "a.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match=r"a\.csv: isn't the raw page"):
        ncu.imported(other, CASES)
    for missing in (tmp_path / "b.csv", tmp_path):
        with pytest.raises(UsageError, match="no such file"):
            ncu.imported(missing, CASES)
    other.write_text(
        '"ID","Kernel Name","Grid Size","Metric Name","Metric Value"\n"0","k","(1, 1, 1)","Duration","3"\n'
    )
    with pytest.raises(UsageError, match="isn't the raw page"):
        ncu.imported(other, CASES)


def test_a_report_that_ncu_can_not_read_is_refused(tmp_path: Path, on_the_path: Callable[[str, str], Path]) -> None:
    on_the_path("ncu", 'case "$1" in --version) echo "Version 2025.3.1";; *) echo "made by 2026.1" >&2; exit 1;; esac')
    report = tmp_path / "a.ncu-rep"
    report.write_bytes(b"NVR\0")
    with pytest.raises(UsageError, match=r"ncu can't read it: made by 2026\.1"):
        ncu.imported(report, CASES)


def test_the_first_run_counts_bytes_in_one_pass_and_the_second_everything(tmp_path: Path) -> None:
    first, second = ncu.commands(["python", "target.py"], tmp_path / "ncu-1")
    for command in (first, second):
        assert command[0] == "ncu"
        assert command[-2:] == ["python", "target.py"]
        assert command[command.index("--cache-control") + 1] == "none"
        assert command[command.index("--clock-control") + 1] == "none"
        assert command[command.index("--profile-from-start") + 1] == "off"
    assert first[first.index("--metrics") + 1].split(",") == list(BYTES)
    assert "--section" not in first
    assert set(second[second.index("--metrics") + 1].split(",")) == {*BYTES, *DETAILS}
    assert "WarpStateStats" in second


def test_every_counter_has_a_name_of_ncu_but_local_bytes_which_the_compiler_tells() -> None:
    assert COUNTERS.keys() - _NAMES.keys() == {"local_bytes"}
    assert _NAMES.keys() <= COUNTERS.keys()


@one_test(
    ("found", "wanted"),
    [
        ({"lts__t_sector_hit_rate.pct": 25.0}, {"l2_hit": 0.25}),
        ({"lts__t_sector_hit_rate.pct": 460.0}, {}),
        (
            {"launch__shared_mem_per_block_static": 16.0, "launch__shared_mem_per_block_dynamic": 1024.0},
            {"shared_bytes": 1040.0},
        ),
        ({"launch__shared_mem_per_block_static": 16.0}, {}),
        (
            {
                "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 6.0,
                "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": 2.0,
            },
            {"stall_long_scoreboard": 0.75, "stall_wait": 0.25},
        ),
        ({"sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active": 40.0}, {"pipe_alu": 0.4}),
        ({"smsp__cycles_elapsed.avg.per_second": 1.98e9}, {"clock": 1.98e9}),
        ({"a__metric.of_no_interest": 1.0}, {}),
    ],
)
def test_translations(found: Mapping[str, float], wanted: Mapping[str, float]) -> None:
    assert translated(found) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("output", "meaning", "advice"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "doesn't let this user", "as root"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "can't reach the driver's", "container"),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute.", "don't fit", "update the driver"),
    ],
)
def test_known_failures_say_what_to_do(output: str, meaning: str, advice: str) -> None:
    failure = ncu.failure(f"a line\n{output}\n")
    assert failure
    assert meaning in failure.message
    assert advice in failure.advice
    assert ncu.failure("Segmentation fault") is None


def test_a_missing_and_an_old_tool_are_refused(
    on_the_path: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(MachineError, match="isn't on the PATH"):
            ncu.refuse()
    on_the_path("ncu", "echo 'Version 2021.3.1.0 (build 5)'")
    with pytest.raises(MachineError, match=r"ncu 2021\.3 is too old: 2022\.3 or later"):
        ncu.refuse()
    on_the_path("ncu", "echo 'Version 2025.3.1.0 (build 5)'")
    ncu.refuse()
