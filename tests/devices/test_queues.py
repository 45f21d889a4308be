"""The first case of a process is timed as all others are."""

from __future__ import annotations

import statistics
import subprocess
import sys

import pytest

CODE = """
import statistics, torch
from harness.devices.cuda import Cuda
{before}
cuda, x = Cuda(), torch.zeros(4096, device="cuda")
for _ in range(8):
    batch = cuda.batch([lambda: x.add_(1)] * 1024, timer="graph", keep=1, seconds=5e-3)
    print(statistics.median(batch.run(20)))
"""


def first_and_last(before):
    """The first of eight times of the same graph in a fresh process, and the median of the last three."""
    code = CODE.format(before=before)
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    times = [float(line) for line in made.stdout.split()]
    return times[0], statistics.median(times[-3:])


@pytest.mark.gpu
def test_the_first_graph_of_a_process_takes_as_long_as_later_ones():
    first, last = first_and_last("")
    assert first == pytest.approx(last, rel=0.05)


@pytest.mark.gpu
def test_without_filled_queues_no_later_graph_is_faster():
    """What `fill` is for: where this GPU and driver have only one state, both times are the same."""
    first, last = first_and_last("Cuda._fill_queues = lambda _: None")
    assert last > 0.95 * first
