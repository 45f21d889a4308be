"""Copies between any two addresses: each element arrives, and nothing around is touched."""

from __future__ import annotations

import pytest

from harness import check
from harness.collection.ops.access.misaligned_copy import OP
from harness.model import Work
from tests.one_test import one_test

COMPILED = [{"N": 1000, "F": 0, "G": 0}]
OURS = ["scalar", "packed", "tuned"]
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 255, 256, 257, 1023, 1025, 100_003]


def run_and_check(launch, placed, any_bits, variant, dtype, n, first_read, first_written, x_offset=0, y_offset=0):
    """x ends where its buffer does, so that a read past it would be one out of it."""
    import torch

    x = any_bits(n + first_read, dtype, x_offset)
    y = placed(n + first_written, dtype, y_offset)
    wanted = y.tensor.view(x.dtype).clone()
    wanted[first_written:] = x[first_read:]
    shape = {"N": n, "F": first_read, "G": first_written}
    launch("misaligned_copy", variant, dtype, shape, x=x.view(getattr(torch, dtype)), y=y)
    assert torch.equal(y.tensor.view(x.dtype), wanted), shape


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_sizes(launch, placed, any_bits, variant, dtype):
    for n in SIZES:
        for first_read, first_written in ((0, 0), (1, 0), (0, 1), (3, 3), (5, 2)):
            run_and_check(launch, placed, any_bits, variant, dtype, n, first_read, first_written)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_offsets(launch, placed, any_bits, variant, dtype):
    for first_read in range(18):
        for first_written in (0, 1, 2, 3, 6, 7, 8, 15):
            run_and_check(launch, placed, any_bits, variant, dtype, 1001, first_read, first_written)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_tensors(launch, placed, any_bits, variant, dtype):
    """The address counts, not the offset: both may cancel out."""
    for x_offset, y_offset in ((1, 0), (0, 1), (7, 7), (3, 5)):
        for first_read, first_written in ((0, 0), (1, 1), (5, 3), (7, 0)):
            run_and_check(launch, placed, any_bits, variant, dtype, 1001, first_read, first_written, x_offset, y_offset)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(("first_read", "first_written"), [(0, 0), (1, 0), (2, 5)])
def test_more_than_2_to_31_elements(launch, placed, variant, first_read, first_written):
    import torch

    n = 2**31 + 4099
    x = torch.randn(n + first_read, device="cuda", dtype=torch.float16)
    y = placed(n + first_written, "float16")
    launch("misaligned_copy", variant, "float16", {"N": n, "F": first_read, "G": first_written}, x=x, y=y)
    assert torch.equal(y.tensor[first_written:], x[first_read:])
    assert bool((y.tensor[:first_written].view(torch.uint8) == 0xA5).all())


@one_test("variant", ["eager", "compile"])
@one_test(("first_read", "first_written"), [(0, 0), (3, 0), (1, 2)])
def test_the_baselines_write_the_elements_and_nothing_else(trial, variant, first_read, first_written):
    baseline = trial("misaligned_copy", variant, "float32", N=100, F=first_read, G=first_written)
    poison = check.make_outputs(baseline.ctx, OP.variants[variant])
    assert baseline.complaint(y=poison.y).startswith(
        f"y: 100 of 100 elements are wrong by up to inf; element {first_written} is nan"
    )
    after = baseline.call()
    assert baseline.complaint(y=after.y) is None
    assert int(after.y.isnan().sum()) == first_written


def test_what_lies_before_the_first_element_is_no_work():
    assert OP.work_of({"N": 100, "F": 32, "G": 7}, "float32") == Work(400, 400)
