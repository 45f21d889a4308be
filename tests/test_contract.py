"""The contract of an op carries every kind of work that the catalogue will hold, through the same `measure`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.devices.cpu import Cpu
from harness.measure import measure
from harness.model import Case, Job, Measurement, Timing, Work
from harness.ops import Catalogue

PLUGIN = Path(__file__).parent / "plugins" / "contract.py"


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue([PLUGIN])


class SmallCpu(Cpu):
    """A processor with next to no cache, so that few sets of buffers are enough."""

    cache_bytes = 2**16


@pytest.fixture
def measured(catalogue: Catalogue, short_timing: None):
    def run(op: str, variant: str, choices: tuple[tuple[str, Any], ...] = (), **shape: int) -> Measurement:
        case = Case(op, variant, "float32", tuple(shape.items()), choices, device="cpu")
        return measure(Job(case, Timing(precision=0.5, max_time=0.02)), catalogue[op], SmallCpu())

    return run


@pytest.mark.slow  # collection/ops/test_every_op.py has lists that are updated in place
def test_a_list_of_300_tensors_updated_in_place_with_a_flag(measured, catalogue):
    result = measured("unscale_list", "loop", L=300, M=50)
    assert result.status == "ok", result.error
    elements = sum(1 + 7 * i % 50 for i in range(300))
    # Read and written once each, the scale read, the flag written.
    assert (result.work.read, result.work.written) == (4 * elements + 4, 4 * elements + 4)


def test_a_list_with_one_tensor_left_out_is_wrong(measured):
    result = measured("unscale_list", "forgetful", L=300, M=50)
    assert result.status == "wrong"
    assert "grads[299]" in result.error


def test_outputs_that_differ_by_variant(measured):
    as_bytes, as_bits = measured("mask", "bytes", N=8000), measured("mask", "bits", N=8000)
    assert (as_bytes.status, as_bits.status) == ("ok", "ok")
    assert as_bytes.traffic.written == 8000
    assert as_bits.traffic.written == 1000
    assert as_bytes.work == as_bits.work == Work(read=32000, written=8000)


@pytest.mark.parametrize("op", ["mask", "mask_grad"])
def test_a_new_leaner_variant_leaves_the_work_as_it_is(catalogue, op):
    """Otherwise a mask of bits would change the figures of every kernel that writes bytes, which nobody touched."""
    complete = catalogue[op]
    before = replace(complete, variants={"bytes": complete.variants["bytes"]})
    assert before.work_of({"N": 8000}, "float32") == complete.work_of({"N": 8000}, "float32")
    bits = complete.traffic_of(complete.variants["bits"], {"N": 8000}, "float32")
    assert bits.moved < complete.work_of({"N": 8000}, "float32").moved


def test_inputs_that_differ_by_variant(measured):
    from_bytes, from_bits = measured("mask_grad", "bytes", N=8000), measured("mask_grad", "bits", N=8000)
    assert (from_bytes.status, from_bits.status) == ("ok", "ok")
    assert (from_bytes.traffic.read, from_bits.traffic.read) == (40000, 33000)


def test_random_outputs_are_checked_by_their_statistics(measured):
    assert measured("coin", "fair", N=100_000).status == "ok"
    loaded = measured("coin", "loaded", N=100_000)
    assert loaded.status == "wrong"
    assert loaded.samples == ()
    assert "share of ones" in loaded.error


def test_work_counted_in_samples(measured):
    result = measured("step", "eager", B=8)
    assert result.status == "ok"
    assert (result.work.moved, result.work.items, result.work.item) == (0, 8, "samples")


@pytest.mark.parametrize("kind", ["number", "text"])
def test_a_pipeline_that_has_to_be_closed_and_tells_of_itself(measured, catalogue, kind):
    closed = sys.modules[catalogue["feed"].variants["thread"].prepare.__module__].CLOSED
    closed.clear()
    result = measured("feed", "thread", (("kind", kind),), D=8)
    assert result.status == "ok", result.error
    assert result.case.id == f"feed/thread/float32/D8/kind={kind}"
    assert (result.timer, result.work.items) == ("steady", 1)
    assert 0 <= dict(result.facts)["queue_filled"] <= 1
    assert closed == [kind]
