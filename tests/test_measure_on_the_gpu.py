"""Times of measurements on a GPU, beside what its memory can do."""

from __future__ import annotations

import pytest
import torch

from harness.devices.cuda import Cuda
from harness.measure import measure
from harness.model import Case, Job, Timing
from harness.ops import Catalogue, Op, Tensor

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.mark.parametrize("variant", ["memcpy", "stream"])
def test_device_time_agrees_with_the_memory(variant):
    """A copy of 256 MB on a GPU takes neither less than 10 TB/s would nor more than 100 GB/s would."""
    job = Job(Case("copy", variant, "float32", (("N", 2**26),)), Timing(max_time=0.5))
    result = measure(job, Catalogue()["copy"], Cuda())
    assert result.status == "ok", result.error
    assert result.timer == ("launch" if variant == "memcpy" else "graph")
    assert 1e11 < result.work.moved / result.time < 1e13
    assert result.after.sm_clock_hz > 1e8


def test_every_timer_gives_the_time_of_a_long_copy():
    """A copy of 512 MB takes a hundred times as long as its launch, which is all that the timers differ in."""
    times = {}
    for timer in ("graph", "launch", "steady", "host"):
        sheet = Op(
            "twice",
            "y = 2 x",
            {"N": "elements"},
            inputs=(Tensor("x", ("N",)),),
            outputs=(Tensor("y", ("N",)),),
            reference=lambda _, t: {"y": t.x.double() * 2},
        )
        sheet.variant("ours", "", timer=timer)(lambda _: lambda t: torch.mul(t.x, 2, out=t.y))
        result = measure(Job(Case("twice", "ours", "float32", (("N", 2**26),)), Timing(max_time=0.5)), sheet, Cuda())
        assert (result.status, result.timer, result.error) == ("ok", timer, None)
        times[timer] = result.time
    assert list(times.values()) == pytest.approx([times["graph"]] * 4, rel=0.05)
