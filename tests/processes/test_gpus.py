"""Ranks on GPUs of their own: rank k on device k, captured together; if one rank fails, the case fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import devices
from harness.model import Case, Job, Measurement, Timing
from harness.processes.supervisor import Workers

PLUGIN = Path(__file__).parents[1] / "plugins" / "cuda_ranks.py"
TIMING = Timing(precision=0.05, max_time=0.3, timeout=120.0)

Measure = Callable[..., Measurement]
pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.fixture(scope="module")
def measure() -> Iterator[Measure]:
    if devices.kinds()["cuda"].missing() or devices.kinds()["cuda"].count < 2:
        pytest.skip("needs 2 GPUs")
    with Workers("cuda", [PLUGIN]) as workers:
        yield lambda variant, world=2, n=2**24, timeout=120.0: workers.measure(
            Job(Case("nccl_sum", variant, "float32", (("N", n),), world=world), replace(TIMING, timeout=timeout))
        )


def test_ranks_have_a_gpu_each_and_are_captured_together(measure: Measure) -> None:
    found = measure("nccl")
    assert found.status == "ok", found.error
    assert found.timer == "graph", found.warnings
    assert found.time
    assert 1e-5 < found.time < 1e-2


def test_a_failure_of_one_gpu_ends_its_case_and_leaves_the_next_one_alone(measure: Measure) -> None:
    wrong = measure("wrong_1")
    assert wrong.status == "wrong"
    assert str(wrong.error).startswith("rank 1: y")
    stranded = measure("stranded")
    assert stranded.status == "crashed"
    assert "rank 1: ValueError: no such GPU" in str(stranded.error)
    after = measure("nccl")
    assert after.status == "ok", after.error
    assert after.time
    assert after.time < 1e-2


def test_more_ranks_than_gpus_are_unsupported(measure: Measure) -> None:
    count = devices.kinds()["cuda"].count
    found = measure("nccl", world=count + 1)
    assert (found.status, found.error) == (
        "unsupported",
        f"needs {count + 1} devices, this machine has {count}",
    )


@pytest.mark.parametrize(
    ("variant", "status", "limit"),
    [("deserted", "crashed", 120.0), ("starved", "out_of_memory", 120.0), ("stuck", "timeout", 15.0)],
)
def test_a_rank_that_another_gpu_waits_for_costs_its_case_and_leaves_nothing_on_a_gpu(
    measure: Measure, variant: str, status: str, limit: float
) -> None:
    assert measure("nccl").status == "ok"  # the team has started
    found = measure(variant, timeout=limit)
    assert found.status == status, found.error
    assert devices.kinds()["cuda"].shared() is None
    assert measure("nccl").status == "ok"
