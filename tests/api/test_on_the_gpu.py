"""`time` on a GPU, beside other ways of timing a call. They count other things, so bounds are wide."""

from __future__ import annotations

import pytest
import torch

import harness as hb
from harness.api import timing

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.fixture(autouse=True)
def slow_machine() -> None:
    """The machine that is here, not the one that other tests have."""


def test_a_time_lies_beside_do_bench_and_torchs_benchmark() -> None:
    from torch.utils.benchmark import Timer
    from triton.testing import do_bench

    x = torch.randn(2**14, 4096, device="cuda")
    time = hb.time(torch.softmax, x, -1, check=lambda x, d: torch.softmax(x.double(), d))
    assert (time.timer, time.cache) == ("graph", "cold")
    bench = 1e3 * do_bench(lambda: torch.softmax(x, -1), return_mode="median")
    assert time.us == pytest.approx(bench, rel=0.1)
    torchs = 1e6 * Timer("torch.softmax(x, -1)", globals={"torch": torch, "x": x}).blocked_autorange().median
    assert time.us == pytest.approx(torchs, rel=0.2)
    assert 0.3 < time.of_ceiling < 1.1
    assert timing.machine_limits("cuda").points


def test_a_closure_flushes_the_cache() -> None:
    x = torch.randn(2**20, device="cuda")
    closed = hb.time(lambda: torch.exp(x))
    assert (closed.timer, closed.cache) == ("launch", "L2 flushed")
    assert {"closure", "launch-timed"} <= {warning.code for warning in closed.warnings}
    assert closed.us > hb.time(torch.exp, x).us


def test_calls_that_cannot_be_captured_are_timed_alone() -> None:
    def waiting(x: torch.Tensor) -> torch.Tensor:
        return x * float(x.sum())

    time = hb.time(waiting, torch.randn(2**16, device="cuda"))
    assert time.timer == "launch"
    assert "not-captured" in {warning.code for warning in time.warnings}


def test_a_race_of_a_function_with_itself_is_a_tie() -> None:
    x = torch.randn(2**24, device="cuda")
    ratio = hb.race({"one": torch.exp, "same": torch.exp}, x)["same"].over()
    assert ratio.value == pytest.approx(1.0, abs=0.01)


def test_wrong_results_of_a_graph_are_found() -> None:
    x = torch.randn(2**16, device="cuda")
    with pytest.raises(hb.api.WrongResultError, match="elements are wrong"):
        hb.time(lambda x: torch.exp(x) * 1.01, x, check=torch.exp)
