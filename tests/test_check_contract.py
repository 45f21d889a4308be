"""What the check sees besides values: the form of outputs, whose memory they are, and inputs that must stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.devices.cpu import Cpu
from harness.measure import measure
from harness.model import Case, Job, Measurement, Timing
from harness.ops import Catalogue
from tests.one_test import one_test

PLUGIN = Path(__file__).parent / "plugins" / "dishonest.py"
N = 64


class SmallCpu(Cpu):
    """A processor with next to no cache, so that few sets of buffers are enough."""

    cache_bytes = 2**10


pytestmark = pytest.mark.usefixtures("short_timing")


@pytest.fixture(scope="module")
def measured() -> Any:
    ops = Catalogue([PLUGIN])

    def run(variant: str, op: str = "dishonest", dtype: str = "float16") -> Measurement:
        case = Case(op, variant, dtype, (("N", N),), device="cpu")
        return measure(Job(case, Timing(precision=0.9, max_time=0.001)), ops[op], SmallCpu())

    return run


@one_test(
    ("op", "variant"),
    [
        ("dishonest", "tuple"),
        ("dishonest", "bare"),
        ("dishonest", "gaps"),
        ("special", "kept"),
        ("update", "declared"),
        ("negated", "own_declared"),
        ("pair", "interleaved"),
        ("pair", "listed"),
        ("several", "list"),
        ("several", "tuple"),
        ("several", "wrapped"),
        ("several", "writes"),
        ("sparse", "dense"),
    ],
)
def test_what_keeps_the_contract_is_timed(measured, op, variant):
    found = measured(variant, op)
    assert found.status == "ok", found.error
    assert found.time


@one_test(
    ("op", "variant", "said"),
    [
        ("dishonest", "float32", "y has the dtype float32, declared is float16"),
        ("dishonest", "float64", "y has the dtype float64, declared is float16"),
        ("dishonest", "complex64", "y has the dtype complex64, declared is float16"),
        ("dishonest", "numbers", "y is a list, not a tensor"),
        ("dishonest", "none", "y is a NoneType, not a tensor"),
        ("dishonest", "too_many", "2 outputs were returned, declared is 1: y"),
        ("dishonest", "too_few", "0 outputs were returned, declared is 1: y"),
        ("dishonest", "column", "y has the shape (64, 1), declared is (64,)"),
        ("dishonest", "sparse", "y has the layout sparse_coo; an output must have all its elements in memory"),
        ("dishonest", "elsewhere", "y is on the device meta, the case runs on cpu"),
        ("dishonest", "onto_x", "the input x was changed"),
        ("dishonest", "replaces", "y isn't the tensor that the variant was given"),
        ("dishonest", "swaps", "the input x was changed"),
        ("dishonest", "spoils", "the input x was changed"),
        ("dishonest", "moves_x", "the input x was changed"),
        ("dishonest", "late", "the input x was changed"),
        ("special", "signless", "the input x was changed"),
        ("negated", "own", "the input minus was changed"),
        ("pair", "same", "b shares memory with the output a"),
        ("pair", "input", "b shares memory with the input x"),
        ("pair", "view", "b shares memory with the input x"),
        ("constant", "overlapping", "b shares memory with the output a"),
        ("constant", "expanded", "b has several elements in one place of memory"),
        ("several", "replaces", "y isn't the tensor that the variant was given"),
        ("several", "one_of_two", "y has 1 tensors, declared are 2"),
        ("several", "second_wide", "y[1] has the dtype float64, declared is float16"),
        ("several", "second_is_x", "y[1] shares memory with the input x[1]"),
    ],
)
def test_what_breaks_the_contract_has_no_time(measured, op, variant, said):
    found = measured(variant, op)
    assert found.status == "wrong"
    assert found.error.startswith(said)
    assert found.samples == ()


def test_a_view_that_is_yet_to_be_computed_is_no_output(measured):
    found = measured("lazy", dtype="float32")
    assert found.status == "wrong"
    assert found.error.startswith("y is a view that torch hasn't computed yet")


@pytest.mark.parametrize("role", ["baseline", "peer"])
def test_a_library_s_result_that_is_a_little_off_is_timed_and_the_distance_told(measured, role):
    found = measured(f"{role}_4")
    assert found.status == "ok"
    assert found.time
    [warning] = [warning for warning in found.warnings if warning.code == "inexact"]
    assert "y: 1 of 64 elements are further off than allowed, by up to " in warning.message
    assert "units in the last place of float16" in warning.message
    assert "times the tolerance); element 5 is " in warning.message
    assert warning.advice


def test_one_unit_is_inexact_for_a_library_and_wrong_for_ours_where_the_result_is_exact(measured):
    found = measured("baseline_1", "exact")
    assert found.status == "ok"
    assert "units in the last place of float16 at the size of a typical element (none is allowed)" in str(
        found.warnings
    )
    assert measured("ours_1", "exact").status == "wrong"


@one_test("variant", ["published_4", "ours_4", "control_4", "baseline_400"])
def test_no_other_result_that_is_off_has_a_time(measured, variant):
    found = measured(variant)
    assert found.status == "wrong"
    assert found.error.startswith("y: 1 of 64 elements are wrong by up to ")
    assert not [warning for warning in found.warnings if warning.code == "inexact"]


def test_reports_show_that_a_result_is_inexact(measured, header):
    from harness.model import Run
    from harness.report import build
    from harness.report.formats import markdown

    run = Run(header, (measured("baseline_4"),))
    page = markdown.render(build.page(run))
    assert "inexact" in page
    assert "units in the last place of float16" in page
