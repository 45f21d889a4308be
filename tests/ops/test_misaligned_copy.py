"""Copies between any two addresses: each element arrives, and nothing around is touched."""

from __future__ import annotations

import pytest

from harness import check
from harness.model import Case, Work
from harness.ops import Context
from harness.ops.misaligned_copy import OP

COMPILED = [{"N": 1000, "F": 0, "G": 0}]
DTYPES = ["float32", "float16", "bfloat16"]
OURS = ["scalar", "packed", "tuned"]
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 255, 256, 257, 1023, 1025, 100_003]
BITS = {"float32": "int32", "float16": "int16", "bfloat16": "int16"}


def run_and_check(launch, placed, variant, dtype, n, first_read, first_written, x_offset=0, y_offset=0):
    """Any bits, so not-a-numbers too. x ends where its buffer does, so that a read past it would be one out of it."""
    import torch

    kind = getattr(torch, BITS[dtype])
    generator = torch.Generator("cuda").manual_seed(n)
    size = n + first_read
    x = torch.randint(-(2**15), 2**15 - 1, (size + x_offset,), generator=generator, device="cuda", dtype=kind)[
        x_offset:
    ]
    y = placed(n + first_written, dtype, y_offset)
    wanted = y.tensor.view(kind).clone()
    wanted[first_written:] = x[first_read:]
    shape = {"N": n, "F": first_read, "G": first_written}
    launch("misaligned_copy", variant, dtype, shape, x=x.view(getattr(torch, dtype)), y=y.tensor)
    assert torch.equal(y.tensor.view(kind), wanted), shape
    y.assert_untouched_around()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", OURS)
def test_sizes(launch, placed, variant, dtype):
    for n in SIZES:
        for first_read, first_written in ((0, 0), (1, 0), (0, 1), (3, 3), (5, 2)):
            run_and_check(launch, placed, variant, dtype, n, first_read, first_written)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", OURS)
def test_offsets(launch, placed, variant, dtype):
    for first_read in range(18):
        for first_written in (0, 1, 2, 3, 6, 7, 8, 15):
            run_and_check(launch, placed, variant, dtype, 1001, first_read, first_written)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_tensors(launch, placed, variant, dtype):
    """The address counts, not the offset: both may cancel out."""
    for x_offset, y_offset in ((1, 0), (0, 1), (7, 7), (3, 5)):
        for first_read, first_written in ((0, 0), (1, 1), (5, 3), (7, 0)):
            run_and_check(launch, placed, variant, dtype, 1001, first_read, first_written, x_offset, y_offset)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(("first_read", "first_written"), [(0, 0), (1, 0), (2, 5)])
def test_more_than_2_to_31_elements(launch, placed, variant, first_read, first_written):
    import torch

    n = 2**31 + 4099
    x = torch.randn(n + first_read, device="cuda", dtype=torch.float16)
    y = placed(n + first_written, "float16")
    launch("misaligned_copy", variant, "float16", {"N": n, "F": first_read, "G": first_written}, x=x, y=y.tensor)
    assert torch.equal(y.tensor[first_written:], x[first_read:])
    assert bool((y.tensor[:first_written].view(torch.uint8) == 0xA5).all())
    y.assert_untouched_around()


@pytest.mark.parametrize("variant", ["eager", "compile"])
@pytest.mark.parametrize(("first_read", "first_written"), [(0, 0), (3, 0), (1, 2)])
def test_the_baselines_write_the_elements_and_nothing_else(variant, first_read, first_written):
    import torch

    shape = (("N", 100), ("F", first_read), ("G", first_written))
    case = Case("misaligned_copy", variant, "float32", shape, "cpu")
    ctx = Context(case, torch.float32, torch.device("cpu"), torch.Generator().manual_seed(0), OP)
    inputs, outputs = check.make_inputs(ctx), check.make_outputs(ctx, OP.variants[variant])
    tensors = check.merged(inputs, outputs)
    assert "differ" in check.complaint(ctx, OP.variants[variant], inputs, tensors)
    OP.variants[variant].prepare(ctx)(tensors)
    assert check.complaint(ctx, OP.variants[variant], inputs, tensors) is None
    assert int(tensors.y.isnan().sum()) == first_written


def test_what_lies_before_the_first_element_is_no_work():
    assert OP.essential({"N": 100, "F": 32, "G": 7}, "float32") == Work(400, 400)
