"""The bundled scenario `ci`, which stands for the kernels in the gate."""

from __future__ import annotations

import pytest

from harness.ops import Catalogue
from harness.scenario import Plan, Selection, find, load, overview, plan


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue()


@pytest.fixture(scope="module")
def ci(catalogue: Catalogue) -> Plan:
    return plan(load(find(["ci"]), catalogue), catalogue, Selection("cuda"))


def test_its_cases_are_few_tuned_and_of_a_size_that_memory_sets_the_pace_of(ci: Plan, catalogue: Catalogue) -> None:
    assert 12 <= len(ci.jobs) <= 16
    for case in (job.case for job in ci.jobs):
        assert case.variant == "tuned" or case.op == "copy", case.id
        assert 200e6 <= catalogue[case.op].work_of(case.values, case.dtype).moved <= 320e6, case.id


def test_the_library_s_copy_is_its_control(ci: Plan) -> None:
    assert {job.case.variant for job in ci.jobs if job.case.op == "copy"} == {"eager", "memcpy"}


def test_a_file_of_several_scenarios_is_one_line_of_the_listing() -> None:
    [line] = [line for line in overview() if line.name == "ci"]
    assert line.op == "several"
    assert line.tags == ("ci",)
    assert line.title.startswith("13 scenarios: copy, prelu, prelu_grad, relu_mask, ")
