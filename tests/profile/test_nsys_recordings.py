"""Real exports of Nsight Systems, which `recordings/README.md` describes: what they hold, and what they lack."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import UsageError
from harness.model import Attachment
from harness.profile import CALLS, nsys

RECORDINGS = Path(__file__).with_name("recordings")
CASE = "block_step/eager/float32/N4194304"
STEP = [("forward", 1), ("block 0", 2), ("block 1", 2), ("backward", 1), ("optimizer", 1)]
"""The ranges of a step of block_step, with their depth below the case."""


def shape(found: Attachment) -> list[tuple[str, int, float]]:
    return [(each.name, each.depth, each.count) for each in found.ranges]


def times(found: Attachment) -> dict[str, float]:
    return {each.name: dict(each.values)["time"] for each in found.ranges}


def test_a_case_is_told_by_the_ranges_of_its_calls() -> None:
    (found,) = nsys.imported(RECORDINGS / "block_step.sqlite", [CASE])
    assert shape(found) == [(CASE, 0, 1 / CALLS), *((name, depth, 1) for name, depth in STEP)]
    own = times(found)
    assert 0 < own["block 0"] + own["block 1"] <= own["forward"]
    assert own["forward"] + own["backward"] + own["optimizer"] <= own[CASE] < 1
    assert (found.values, found.kernels) == ((), ())


def test_without_a_request_figures_are_of_the_recording() -> None:
    (called,) = nsys.imported(RECORDINGS / "block_step.sqlite", [CASE])
    (every,) = nsys.imported(RECORDINGS / "block_step.sqlite", [])
    assert shape(every) == [(name, depth, CALLS * count) for name, depth, count in shape(called)]
    assert times(every) == pytest.approx({name: CALLS * time for name, time in times(called).items()})


def test_what_nsys_noted_about_cuda_is_told() -> None:
    (found,) = nsys.imported(RECORDINGS / "block_step.sqlite", [])
    assert "no kernels" in found.notes[0]
    assert found.notes[1:] == (
        "CUDA profiling might have not been started correctly.",
        "No CUDA events collected. Does the process use CUDA?",
    )


def test_a_program_is_told_by_all_of_its_ranges() -> None:
    """A range that is started and ended has a place, but nothing lies in it: it ends in the middle of the step."""
    (found,) = nsys.imported(RECORDINGS / "program.sqlite", [])
    assert found.case == ""
    assert shape(found) == [
        ("batch", 0, 3),
        ("step", 0, 3),
        ("forward", 1, 3),
        ("block 0 (model)", 2, 3),
        ("block 1 (model)", 2, 3),
        ("backward", 1, 3),
    ]
    own = times(found)
    assert 0.003 <= own["block 0 (model)"] <= own["forward"] <= own["step"] < 1
    assert own["forward"] < own["batch"] < own["step"]
    medians = {each.name: dict(each.values)["median"] for each in found.ranges}
    assert 0.002 <= medians["backward"] < own["backward"]


def test_ranges_that_nsys_can_not_see_are_explained() -> None:
    with pytest.raises(UsageError, match="holds no kernels and no NVTX ranges") as caught:
        nsys.imported(RECORDINGS / "unseen.sqlite", [])
    assert "Provided compatibility ID 260 != 259" in caught.value.message
    assert "take nvtx 0.2.11" in caught.value.advice


def test_the_command_shows_ranges() -> None:
    done = CliRunner().invoke(app, ["profile", "nsys", "--import", str(RECORDINGS / "block_step.sqlite")])
    assert done.exit_code == 0
    rows = [line.split() for line in done.output.splitlines() if line.startswith(("(the whole)", "· "))]
    assert [row[0] for row in rows] == ["(the", *("·" for _ in STEP)]
    assert rows[1][:3] == ["·", "forward", "4"]
    assert rows[2][:5] == ["·", "·", "block", "0", "4"]
    assert done.output.count("only its NVTX ranges are told") == 1
