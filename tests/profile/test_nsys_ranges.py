"""NVTX ranges of exports that are made here: what lies in what, and whose kernels are whose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.model import Attachment
from harness.profile import _nsys_ranges, _request, nsys
from harness.profile._request import ProfileRequest
from tests.profile.test_nsys_exports import BACKWARD, MAIN, NAIVE, OTHER, TUNED, Export


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "report.sqlite")


Row = tuple[str, int, float, dict[str, float]]


def rows(found: Attachment) -> list[Row]:
    """Name, depth, count and figures of each range, times in nanoseconds."""

    def figures(values: tuple[tuple[str, float], ...]) -> dict[str, float]:
        return {name: round(value * (1 if name == "kernels" else 1e9), 6) for name, value in values}

    return [(each.name, each.depth, each.count, figures(each.values)) for each in found.ranges]


def shape(found: Attachment) -> list[tuple[str, int]]:
    return [(each.name, each.depth) for each in found.ranges]


@pytest.fixture
def two_steps(export: Export) -> Path:
    """A case of two calls. Its backward pass is launched by another thread, with a range of its own."""
    export.domain("harness", 1)
    export.domain("NCCL", 2)
    export.range(f"warm: {NAIVE}", 0, 90)
    export.range("forward", 10, 20)
    export.range(NAIVE, 100, 2100)
    for step, begin in enumerate((100, 1100)):
        export.range("forward", begin, begin + 400)  # the first begins with the case
        export.range("block 0", begin + 10, begin + 200)
        export.call(begin + 20, begin + 30, 10 * step + 1)
        export.kernel("gemm", begin + 500, begin + 600, 10 * step + 1)  # runs in the backward, launched in the forward
        export.range("block 1", begin + 200, begin + 300 + 40 * step)
        export.call(begin + 210, begin + 220, 10 * step + 2)
        export.kernel("gemm", begin + 600, begin + 650, 10 * step + 2)
        export.call(begin + 390, begin + 395, 10 * step + 3)
        export.kernel("loss", begin + 650, begin + 657, 10 * step + 3)
        export.range("backward", begin + 400, begin + 900)
        export.range("block 1", begin + 420, begin + 500, thread=BACKWARD)
        export.call(begin + 430, begin + 440, 10 * step + 4, thread=BACKWARD)
        export.kernel("gemm", begin + 700, begin + 800, 10 * step + 4)
        export.call(begin + 510, begin + 520, 10 * step + 5, thread=BACKWARD)
        export.kernel("sum", begin + 800, begin + 803, 10 * step + 5)
        export.range("reduce", begin + 520, begin + 530, domain=2, thread=BACKWARD)
    export.call(2050, 2060, 99)
    export.kernel("step", 2090, 2190, 99)
    return export.done()


def test_ranges_lie_in_ranges_and_have_their_kernels(two_steps: Path) -> None:
    (found,) = nsys.recorded(two_steps, [NAIVE], calls=2)
    assert rows(found) == [
        (NAIVE, 0, 0.5, {"time": 1000, "median": 2000, "kernels": 5.5, "kernel_time": 310}),
        ("forward", 1, 1, {"time": 400, "median": 400, "kernels": 3, "kernel_time": 157}),
        ("block 0", 2, 1, {"time": 190, "median": 190, "kernels": 1, "kernel_time": 100}),
        ("block 1", 2, 1, {"time": 120, "median": 120, "kernels": 1, "kernel_time": 50}),
        ("backward", 1, 1, {"time": 500, "median": 500, "kernels": 2, "kernel_time": 103}),
        ("block 1", 2, 1, {"time": 80, "median": 80, "kernels": 1, "kernel_time": 100}),
        ("reduce (NCCL)", 2, 1, {"time": 10, "median": 10, "kernels": 0, "kernel_time": 0}),
    ]
    assert dict(found.values)["time"] == pytest.approx(310e-9)


def test_the_same_without_kernels(export: Export) -> None:
    export.domain("harness", 1)
    export.range(NAIVE, 100, 300)
    export.range("forward", 110, 200)
    (found,) = nsys.recorded(export.done(), [], calls=0)
    assert rows(found) == [
        (NAIVE, 0, 1, {"time": 200, "median": 200}),
        ("forward", 1, 1, {"time": 90, "median": 90}),
    ]
    assert found.values == ()
    assert found.notes == ("The recording has no kernels, so that only its NVTX ranges are told.",)


def test_a_case_without_ranges_has_none_where_its_kernels_are_known(export: Export) -> None:
    export.domain("harness", 1)
    export.range(NAIVE, 0, 100)
    export.call(10, 20, 1)
    export.kernel("naive", 30, 40, 1)
    (found,) = nsys.recorded(export.done(), [NAIVE], calls=1)
    assert (found.ranges, found.notes) == ((), ())


def test_ranges_of_ranks_are_of_a_rank_and_of_their_own_process(export: Export) -> None:
    for thread, length in ((MAIN, 100), (OTHER, 300)):
        export.domain("harness", 3, thread)
        export.range(TUNED, 0, 1000, domain=3, thread=thread)
        export.range("backward", 10, 10 + length, domain=3, thread=thread)
        export.call(20, 30, 1, thread)
        export.kernel("ring", 100, 100 + length, 1, thread)
    (found,) = nsys.recorded(export.done(), [TUNED], calls=1)
    assert rows(found)[1] == ("backward", 1, 1, {"time": 200, "median": 200, "kernels": 1, "kernel_time": 200})


def test_only_what_began_in_a_case_is_the_case_s(export: Export) -> None:
    export.domain("harness", 1)
    export.range("around", 100, 500)  # begins with the case, and ends after it
    export.range(NAIVE, 100, 200)
    export.range("inside", 190, 195)
    export.range("after", 200, 300)
    export.range("backwards", 150, 140)  # was open at no time
    (found,) = nsys.recorded(export.done(), [], calls=0)
    assert shape(found) == [(NAIVE, 0), ("inside", 1)]


def test_a_range_that_was_not_closed_has_no_time(export: Export) -> None:
    export.range("step", 0, None, domain=0)
    export.range("forward", 10, 20, domain=0)
    export.range("step", 5, 10, domain=0, thread=OTHER)
    (found,) = nsys.recorded(export.done(), [], calls=0)
    assert rows(found) == [
        ("step", 0, 2, {"time": 5, "median": 5}),
        ("forward", 1, 1, {"time": 10, "median": 10}),
    ]


def test_nothing_lies_in_a_range_that_was_started_and_ended(export: Export) -> None:
    export.range("step", 0, 1000, domain=0)
    export.range("copy", 100, 900, domain=0, kind=60)
    export.range("forward", 200, 300, domain=0)
    export.call(210, 220, 1)
    export.kernel("gemm", 400, 500, 1)
    (found,) = nsys.recorded(export.done(), [], calls=0)
    assert rows(found) == [
        ("step", 0, 1, {"time": 1000, "median": 1000, "kernels": 1, "kernel_time": 100}),
        ("copy", 1, 1, {"time": 800, "median": 800}),
        ("forward", 1, 1, {"time": 100, "median": 100, "kernels": 1, "kernel_time": 100}),
    ]


def test_the_longest_ranges_are_told_each_with_those_around_it(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nsys_ranges, "MOST", 3)
    export.range("short", 0, 50, domain=0)
    export.range("inside", 10, 20, domain=0)
    export.range("long", 100, 400, domain=0)
    export.range("first", 110, 150, domain=0)
    export.range("second", 150, 350, domain=0)
    (found,) = nsys.recorded(export.done(), [], calls=0)
    assert shape(found) == [("short", 0), ("long", 0), ("second", 1)]


def test_ranges_lie_only_so_deep(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nsys_ranges, "_DEEPEST", 2)
    for depth in range(5):
        export.range(f"r{depth}", depth, 100 - depth, domain=0)
    export.range("next", 100, 200, domain=0)
    (found,) = nsys.recorded(export.done(), [], calls=0)
    assert shape(found) == [("r0", 0), ("r1", 1), ("r2", 2), ("next", 0)]


@pytest.mark.parametrize(("device", "refused"), [("cuda", True), ("cpu", False)])
def test_our_own_recording_of_a_gpu_must_have_kernels(
    export: Export, tmp_path: Path, device: str, refused: bool
) -> None:
    export.domain("harness", 1)
    export.range(NAIVE, 100, 300)
    base = export.done().with_suffix("")
    _request.write(ProfileRequest(device, (), ()), tmp_path / f"report{_request.REQUEST}")
    if refused:
        with pytest.raises(UsageError, match=r"holds no kernels$"):
            nsys.read(base, [NAIVE], calls=2)
    else:
        assert [each.case for each in nsys.read(base, [NAIVE], calls=2)] == [NAIVE]


def test_a_report_without_kernels_is_exported_too(
    export: Export, tmp_path: Path, fake_nsys: Callable[[str], Path]
) -> None:
    export.range("step", 0, 10, domain=0)
    fake_nsys(f'cp {export.done()} "${{4#--output=}}"')
    report = tmp_path / "made elsewhere.nsys-rep"
    report.touch()
    (found,) = nsys.imported(report, [])
    assert shape(found) == [("step", 0)]
