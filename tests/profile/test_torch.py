"""Sums of a trace, against traces counted by hand and against torch's own sums."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from harness.devices import MARK
from harness.errors import UsageError
from harness.intervals import between, common, merged, own, parts
from harness.profile import tools
from harness.profile import torch as tool
from harness.profile._record import recording

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
GEMM = "ampere_sgemm_128x64_tn"
ORIGIN = 4_476_809_487_000.0
"""Microseconds: as large as the times of real traces are."""


def event(cat: str, name: str, start: float, length: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ORIGIN + start, "dur": length, **more}


def kernel(name: str, start: float, length: float, device: int = 0, stream: int = 7, **args: Any) -> dict[str, Any]:
    return event("kernel", name, start, length, args={"device": device, "stream": stream, **args})


def host(name: str, start: float, length: float, cat: str = "cpu_op") -> dict[str, Any]:
    return event(cat, name, start, length, pid=99, tid=99, args={"External id": 1})


def trace(folder: Path, *events: Any, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    return path


# ---- Intervals.


def test_intervals_that_overlap_or_touch_are_merged_and_empty_ones_are_dropped() -> None:
    assert merged([(5, 6), (1, 3), (2, 4), (4, 4.5), (7, 7)]) == [(1, 4.5), (5, 6)]


def test_gaps_also_at_the_ends_of_the_window() -> None:
    assert between([(2, 3), (5, 8)], (0, 8)) == [(0, 2), (3, 5)]


def test_what_two_lists_have_in_common() -> None:
    assert common([(0, 4), (6, 9)], [(1, 2), (3, 7), (8, 20)]) == 1 + 1 + 1 + 1


def test_intervals_share_the_time_that_they_have_in_common() -> None:
    # From 0 to 2 the first runs alone, from 2 to 4 both, from 4 to 5 all three, from 5 to 6 two of them.
    found = parts([(0, 5), (2, 6), (4, 6), (3, 3)])
    assert found == pytest.approx([2 + 1 + 1 / 3, 1 + 1 / 3 + 1 / 2, 1 / 3 + 1 / 2, 0])
    assert sum(found) == pytest.approx(6)


def test_calls_inside_a_call_take_its_time() -> None:
    calls = [(0.0, 10.0), (2.0, 5.0), (3.0, 4.0), (7.0, 10.5), (12.0, 13.0)]
    assert list(own(calls)) == [
        (0, 0, 2), (1, 2, 3), (2, 3, 4), (1, 4, 5), (0, 5, 7), (3, 7, 10), (4, 12, 13),
    ]  # fmt: skip


# ---- Traces of a GPU.


def test_kernels_of_two_streams_are_busy_once(tmp_path: Path) -> None:
    found = tool.timeline(
        trace(
            tmp_path,
            kernel(GEMM, 0, 100, stream=7),
            kernel(ADD, 60, 80, stream=20),
            kernel(ADD, 144, 6),  # after a gap of 4
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 200, 50, args={"device": 0, "stream": 7}),  # 50
        )
    )
    assert found.on_gpu
    assert found.window == pytest.approx(250e-6)
    assert found.busy == pytest.approx((140 + 6 + 50) * 1e-6)
    assert found.idle == pytest.approx(54e-6)
    assert (found.short.count, found.long.count) == (1, 1)
    assert found.short.seconds == pytest.approx(4e-6)
    assert found.long.seconds == pytest.approx(50e-6)
    assert found.gap == pytest.approx(27e-6)
    assert [(k.name, k.family, k.count) for k in found.kernels] == [
        (GEMM, "gemm", 1), (ADD, "elementwise_vectorised", 2), ("Memcpy DtoH (Device -> Pinned)", "copy", 1),
    ]  # fmt: skip
    assert [k.seconds for k in found.kernels] == pytest.approx([100e-6, 86e-6, 50e-6])
    # The GEMM and the addition share the 40 us in which both ran.
    assert {f.name: f.share for f in found.families} == pytest.approx(
        {"gemm": 80 / 250, "elementwise_vectorised": 66 / 250, "copy": 50 / 250}
    )
    assert sum(f.share for f in found.families) + found.idle_share == pytest.approx(1)


def test_each_device_has_the_whole_window(tmp_path: Path) -> None:
    found = tool.timeline(trace(tmp_path, kernel(GEMM, 0, 40, device=0), kernel(GEMM, 20, 80, device=1)))
    assert found.devices == 2
    assert found.window == pytest.approx(100e-6)
    assert found.busy == pytest.approx(120e-6)
    assert found.idle == pytest.approx(80e-6)
    assert found.idle_share == pytest.approx(0.4)
    assert found.kernels[0].share == pytest.approx(0.6)
    assert found.long.count == 2


def test_the_host_counts_only_while_the_device_is_idle(tmp_path: Path) -> None:
    found = tool.timeline(
        trace(
            tmp_path,
            kernel(ADD, 100, 50),
            kernel(ADD, 250, 50),
            host("aten::add", 80, 30),  # from 100 on the device is busy
            host("aten::mul", 140, 60),  # idle from 150 to 200, and in it
            host("cudaLaunchKernel", 190, 20, cat="cuda_runtime"),  # 10 more
            host("my range", 100, 200, cat="user_annotation"),  # Python inside it may do nothing
        )
    )
    assert found.idle == pytest.approx(100e-6)
    assert found.host == pytest.approx(60e-6)
    assert found.host_share == pytest.approx(0.3)


def test_annotations_marks_and_events_without_times_are_no_work(tmp_path: Path) -> None:
    found = tool.timeline(
        trace(
            tmp_path,
            {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
            {"ph": "s", "id": 1, "pid": 0, "tid": 7, "ts": ORIGIN, "cat": "ac2g", "name": "ac2g"},
            {"ph": "X", "cat": "kernel", "name": GEMM},
            {"ph": "X", "cat": "kernel", "name": GEMM, "ts": None, "dur": 4},
            event("kernel", GEMM, 5000, -3),
            event("gpu_user_annotation", "step", 0, 900, args={"stream": 7}),
            event("gpu_user_annotation", "layer", 5, 50, args={"stream": 7}),
            kernel(MARK, -200, 2),
            kernel(GEMM, 10, 30),
            event("kernel", ADD, 40, 0),  # without args
            event("gpu_memset", "Memset (Device)", 50, 10, args=None),
        )
    )
    assert found.window == pytest.approx(50e-6)
    assert found.busy == pytest.approx(40e-6)
    assert {k.name: k.count for k in found.kernels} == {GEMM: 1, ADD: 1, "Memset (Device)": 1}


def test_kernels_without_any_length_have_no_shares(tmp_path: Path) -> None:
    found = tool.timeline(trace(tmp_path, kernel(GEMM, 0, 0)))
    assert (found.window, found.idle_share, found.kernels[0].share) == (0, 0, 0)


def test_what_is_no_trace_is_told(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [{"ph": "X", "na')
    packed = tmp_path / "cut.json.gz"
    packed.write_bytes(gzip.compress(b'{"traceEvents": []}')[:-6])
    other = tmp_path / "other.json"
    other.write_text('{"events": []}')
    wrong = trace(tmp_path, 3, name="wrong.json")
    empty = trace(tmp_path, {"ph": "M", "name": "process_name"}, name="empty.json")
    for file, said in [
        (missing, "No such file"),
        (broken, "can't be read as a trace"),
        (packed, "can't be read as a trace"),
        (other, "without 'traceEvents'"),
        (wrong, "is no event"),
        (empty, "neither a kernel nor an operator"),
    ]:
        with pytest.raises(UsageError, match=said) as raised:
            tool.timeline(file)
        assert str(file) in raised.value.message
        assert "torch.profiler" in raised.value.advice


def test_launches_without_kernels_are_no_timeline_of_the_cpu(tmp_path: Path) -> None:
    lost = trace(tmp_path, host("aten::add", 0, 10), host("cudaLaunchKernel", 2, 4, cat="cuda_runtime"))
    with pytest.raises(UsageError, match="none of the GPU's times"):
        tool.timeline(lost)


# ---- The tool.


def test_it_is_found_as_a_tool() -> None:
    assert tools()["torch"].SUMMARY == tool.SUMMARY


def test_the_target_runs_as_it_is() -> None:
    assert tool.commands(["python", "target.py", "request"], Path("out/run")) == [["python", "target.py", "request"]]


def test_what_the_profiler_complains_about_is_explained() -> None:
    assert "NVreg" in tool.failure("... CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)").advice
    assert "another profiler" in tool.failure("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED").message
    assert tool.failure("out of memory") is None


def test_an_attachment_is_of_one_call_of_its_case(tmp_path: Path) -> None:
    launch = {"grid": [4, 2, 1], "block": [128, 2, 1], "registers per thread": 40, "shared memory": 1024}
    for number, length in enumerate((10, 20), 1):
        events = [kernel(ADD, 100 * call, length, **launch) for call in range(4)]
        events += [kernel(GEMM, 100 * call + 50, length) for call in range(2)]
        with gzip.open(tool.trace_of(tmp_path / "run", number), "wt") as file:
            json.dump({"traceEvents": events}, file)
    one, two = tool.read(tmp_path / "run", ["copy/a", "copy/b", ""], calls=2)
    assert (one.case, one.tool, one.files) == ("copy/a", "torch", (str(tmp_path / "run-1.json.gz"),))
    assert (two.case, two.files) == ("copy/b", (str(tmp_path / "run-2.json.gz"),))
    values = dict(two.values)
    assert values["kernels"] == 3
    assert values["time"] == pytest.approx(60e-6)
    assert values["idle"] == pytest.approx(200 / 320)
    assert values["gap"] == pytest.approx(30e-6)  # 30, 30, 30, 30, 80
    assert values["family_elementwise_vectorised"] == pytest.approx(80 / 320)
    assert values["family_gemm"] == pytest.approx(40 / 320)
    addition = two.kernels[0]
    assert (addition.name, addition.launches) == (ADD, 2)
    assert dict(addition.values) == pytest.approx(
        {"time": 20e-6, "grid": 8, "block": 256, "registers": 40, "shared_bytes": 1024}
    )


def call_of(start: float, length: float) -> list[Any]:
    """A product of a batch, an addition, and 10 us in which nothing runs."""
    product = kernel(GEMM, start, length, **{"External id": 3})
    return [product, kernel(ADD, start + length, 20, **{"External id": 4})]


def test_figures_of_each_call_are_kept_where_all_calls_launch_the_same(tmp_path: Path) -> None:
    operators = [event("cpu_op", name, 0, 1, args={"External id": number}) for name, number in
                 (("aten::bmm", 3), ("aten::add", 4))]  # fmt: skip
    calls = [*call_of(0, 20), *call_of(50, 20), *call_of(100, 60)]
    with gzip.open(tool.trace_of(tmp_path / "run", 1), "wt") as file:
        json.dump({"traceEvents": [*operators, *calls]}, file)
    (found,) = tool.read(tmp_path / "run", ["copy/a"], calls=3)
    values, series = dict(found.values), dict(found.series)
    assert values["batched"] == pytest.approx(values["family_gemm"]) == pytest.approx(100 / 180)
    assert series["time"] == pytest.approx((40e-6, 40e-6, 80e-6))
    assert series["family_gemm"] == series["batched"] == pytest.approx((0.5, 0.5, 0.75))
    assert series[f"kernel.{GEMM}"] == pytest.approx((20e-6, 20e-6, 60e-6))
    assert tool.imported(tool.trace_of(tmp_path / "run", 1), ["copy/a"])[0].series == (), "it is one call"


def test_a_memset_that_was_not_recorded_does_not_hide_the_calls(tmp_path: Path) -> None:
    memsets = [kernel("Memset (Device)", 45, 4), kernel("Memset (Device)", 145, 1)]
    calls = [*call_of(0, 20), *call_of(50, 20), *call_of(100, 20)]
    with gzip.open(tool.trace_of(tmp_path / "run", 1), "wt") as file:
        json.dump({"traceEvents": [*memsets, *calls]}, file)
    series = dict(tool.read(tmp_path / "run", ["copy/a"], calls=3)[0].series)
    assert series["time"] == pytest.approx((40e-6, 44e-6, 41e-6)), "the second call begins with one, the third has one"
    assert series["family_gemm"] == pytest.approx((0.5, 20 / 45, 20 / 46))
    assert series["kernel.Memset (Device)"] == pytest.approx((0.0, 4e-6, 1e-6))


def test_calls_of_copies_alone_are_told_apart(tmp_path: Path) -> None:
    with gzip.open(tool.trace_of(tmp_path / "run", 1), "wt") as file:
        json.dump({"traceEvents": [kernel("Memcpy DtoD", 0, 20), kernel("Memcpy DtoD", 50, 30)]}, file)
    assert dict(tool.read(tmp_path / "run", ["copy/a"], calls=2)[0].series)["time"] == pytest.approx((20e-6, 30e-6))


@pytest.mark.parametrize(
    ("more", "calls"),
    [
        pytest.param([kernel(GEMM, 170, 5)], 2, id="a call has another number of kernels"),
        pytest.param([kernel("other", 170, 5), kernel("another", 180, 5)], 3, id="a call has other kernels"),
        pytest.param([kernel(GEMM, 0, 5, device=1), kernel(ADD, 9, 5, device=1)], 3, id="two devices"),
    ],
)
def test_calls_that_cannot_be_told_apart_have_no_figures(tmp_path: Path, more: list[Any], calls: int) -> None:
    events = [*call_of(0, 20), *call_of(50, 20)]
    for number, every in enumerate((events, [*events, *more]), 1):
        with gzip.open(tool.trace_of(tmp_path / "run", number), "wt") as file:
            json.dump({"traceEvents": every}, file)
    assert tool.read(tmp_path / "run", ["copy/a"], calls=2)[0].series
    assert tool.read(tmp_path / "run", ["", "copy/b"], calls=calls)[0].series == ()


def test_without_operators_nothing_is_said_of_batches(tmp_path: Path) -> None:
    (found,) = tool.imported(trace(tmp_path, kernel(GEMM, 0, 10, **{"External id": [3]})), ["a"])
    assert "batched" not in dict(found.values)


def test_a_trace_made_elsewhere_is_about_one_case_or_none(tmp_path: Path) -> None:
    file = trace(tmp_path, kernel(GEMM, 0, 10))
    (found,) = tool.imported(file, [])
    assert (found.case, found.files, dict(found.values)["kernels"]) == ("", (), 1)
    assert tool.imported(file, ["copy/a"])[0].case == "copy/a"
    with pytest.raises(UsageError, match="doesn't tell which of 2 cases"):
        tool.imported(file, ["copy/a", "copy/b"])


# ---- What torch itself writes and sums, on the CPU.


def test_own_times_of_operators_are_those_that_torch_sums(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Softmax(-1))
    x = torch.randn(32, 64)
    model(x).square().sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        for _ in range(3):
            model(x).square().sum().backward()  # the backward runs on a thread of its own
    path = tmp_path / "trace.json.gz"
    watched.export_chrome_trace(str(path))
    found = tool.timeline(path)
    wanted = {entry.key: entry.self_cpu_time_total * 1e-6 for entry in watched.key_averages()}
    calls = {entry.key: entry.count for entry in watched.key_averages()}
    own_times = {entry.name: entry.seconds for entry in found.kernels}
    assert not found.on_gpu
    assert found.host == 0
    # Each start and end may be rounded to another nanosecond in the trace.
    assert own_times == pytest.approx({name: wanted[name] for name in own_times}, abs=100e-9)
    assert sum(own_times.values()) == pytest.approx(sum(wanted.values()), rel=0.01)
    assert {entry.name: entry.count for entry in found.kernels}["aten::addmm"] == calls["aten::addmm"]
    families = {entry.name: entry.share for entry in found.families}
    assert {"gemm", "normalisation", "softmax"} <= set(families)
    assert sum(families.values()) + found.idle_share == pytest.approx(1)


def test_a_recording_is_written_after_an_error_too(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "run-1.json.gz"

    def fail() -> None:
        with recording(path):
            torch.ones(8).add_(1)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert "aten::add_" in {kernel.name for kernel in tool.timeline(path).kernels}


def test_of_many_kernels_those_that_take_longest_are_kept(tmp_path: Path) -> None:
    events = [kernel(f"k{number}", 100 * number, 1 + number % 60) for number in range(60)]
    (found,) = tool.imported(trace(tmp_path, *events), ["a"])
    assert [each.name for each in found.kernels] == [f"k{number}" for number in range(59, 19, -1)]
    assert dict(found.values)["kernels"] == 60
