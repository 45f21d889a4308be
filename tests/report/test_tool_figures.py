"""Figures of tools by name: of a call, of all of its kernels, of one kernel; and the metrics of counters from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.metrics import METRICS, told
from harness.model import Attachment, Claim, KernelProfile, Measurement, Run
from harness.report.claim_tables import how, measured
from harness.report.claims import Comparison, comparisons
from harness.report.text import cell
from harness.report.tool_figures import every, of_call

SHAPE = (("N", 2**20),)


def kernel(name: str, launches: float, seconds: float, **values: float) -> KernelProfile:
    return KernelProfile(name, launches, (("time", seconds), *values.items()))


def found(*kernels: KernelProfile, tool: str = "ncu", case: str = "a", **values: float) -> Attachment:
    return Attachment(case, tool, tuple(values.items()), kernels=kernels)


def test_counts_are_summed_and_shares_weighted_by_time() -> None:
    one = kernel("one", 2, 1e-6, instructions=100, issue_active=0.5, pipe_alu=0.25)
    two = kernel("two", 1, 2e-6, instructions=50, issue_active=0.25, pipe_alu=0.75)
    figures = every([found(one, two, kernels=3)])
    assert figures == pytest.approx(
        {
            "ncu.kernels": 3,
            "ncu.time": 4e-6,
            "ncu.instructions": 250,
            "ncu.issue_active": 0.375,
            "ncu.pipe_alu": 0.5,
            "ncu.kernel.one": 2e-6,
            "ncu.kernel.two": 2e-6,
        }
    )


def test_a_counter_that_a_kernel_lacks_has_no_sum_and_neither_have_kernels_that_are_left_out() -> None:
    one, two = kernel("one", 1, 1e-6, instructions=100), kernel("two", 1, 2e-6)
    assert "ncu.instructions" not in every([found(one, two)])
    assert "ncu.instructions" not in every([found(one, kernels=2)])
    assert every([found(one, kernels=2)])["ncu.kernel.one"] == 1e-6


def test_of_several_attachments_of_a_tool_the_last_counts() -> None:
    first, last = found(kernel("one", 1, 1e-6), kernels=1), found(kernel("one", 1, 3e-6), kernels=1, gap=2)
    assert of_call([first, last]) == {"ncu.kernels": 1, "ncu.gap": 2}
    assert every([found(kernel("one", 1, 1e-6), time=2e-6)])["ncu.time"] == 2e-6, "what the tool gives of a call counts"
    assert every([first, last])["ncu.kernel.one"] == 3e-6


def test_counters_are_metrics() -> None:
    counted = kernel("one", 2, 1e-6, instructions=100, load_requests=8, store_requests=4, issue_active=0.3, pipe_xu=0.4)
    values = told(every([found(counted)]), 1e-6)
    assert {name: values[name] for name in ("compute_busy", "warp_instructions", "warp_accesses")} == pytest.approx(
        {"compute_busy": 0.4, "warp_instructions": 200, "warp_accesses": 24}
    )
    assert "warp_accesses" not in told(every([found(kernel("one", 1, 1e-6, load_requests=8))]), 1e-6)
    assert "compute_busy" not in told(every([found(kernel("one", 1, 1e-6, pipe_xu=0.4))]), 1e-6)


def test_a_ratio_of_counters_is_judged_without_an_interval(
    measured_case: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    cases = [measured_case(name, "float32", SHAPE) for name in ("half1", "half2")]
    seen = [
        found(kernel("k", 1, 1e-6, load_requests=loads, store_requests=1.0), case=case.case.id)
        for case, loads in zip(cases, (3.0, 1.0), strict=True)
    ]
    claim = Claim("S12", "half2", "accesses", 0.5, "any", "half1")
    (both,) = _of(make_run(cases, claims=(claim,), attachments=tuple(seen)))
    assert (cell(measured(both)), how(both), both.verdict) == ("0.50x", "by counters", "agrees")
    (one,) = _of(make_run(cases, claims=(claim,), attachments=tuple(seen[:1])))
    assert cell(measured(one)) == "not measured: counters of both are needed, which 'harness profile ncu' finds"
    assert METRICS["accesses"].head == "", "tables have no column for it"


def _of(run: Run) -> list[Comparison]:
    return comparisons(run.header.scenarios[0], run)


@pytest.fixture
def measured_case(measured: Callable[..., Measurement]) -> Callable[..., Measurement]:
    """The fixture `measured`, whose name a function has here."""
    return measured
