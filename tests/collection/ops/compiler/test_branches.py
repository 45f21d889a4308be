"""PReLU with a slope for each element, exactly; and whether the read of the slope stands behind a branch."""

from __future__ import annotations

import pytest

from harness.collection.ops.elementwise import CUDA_TYPE
from harness.ops import Catalogue

COMPILED = [{"N": 1000}]
OURS = ["branch", "select", "tuned"]


def expected(x, w):
    """The result in float64, which holds the product of two floats exactly."""
    wide = x.double()
    return wide.where(x > 0, w.double() * wide).to(x.dtype)


def check(launch, placed, variant, dtype, n, offsets=(0, 0, 0)):
    import torch

    x, w, y = (placed(n, dtype, offset) for offset in offsets)
    x.tensor.copy_(torch.randn(n, device="cuda"))
    w.tensor.copy_(torch.randn(n, device="cuda"))
    launch("branches", variant, dtype, {"N": n}, x=x, w=w, y=y)
    assert torch.equal(y.tensor, expected(x.tensor, w.tensor))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [0, 1, 3, 7, 8, 9, 255, 256, 257, 2047, 2049, 100_003])
@pytest.mark.parametrize("variant", OURS)
def test_sizes(launch, placed, variant, dtype, n):
    check(launch, placed, variant, dtype, n)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for n in (1, 17, 4099):
        for offsets in ((1, 0, 0), (0, 3, 0), (0, 0, 5), (1, 2, 3), (8, 4, 8)):
            check(launch, placed, variant, dtype, n, offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_special_values(launch, special, variant, dtype):
    import torch

    x, w = torch.cartesian_prod(special(dtype), special(dtype)).T.contiguous()
    y = torch.zeros_like(x)
    launch("branches", variant, dtype, {"N": len(x)}, x=x, w=w, y=y)
    torch.testing.assert_close(y, expected(x, w), rtol=0, atol=0, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
def test_more_than_2_to_31_elements(launch, placed, variant):
    import torch

    n = 2**31 + 17
    x, w, y = (placed(n, "float16") for _ in range(3))
    x.tensor.normal_()
    w.tensor.normal_()
    launch("branches", variant, "float16", {"N": n}, x=x, w=w, y=y)
    for start in (0, 2**31 - 500, n - 1000):
        part = slice(start, start + 1000)
        assert torch.equal(y.tensor[part], expected(x.tensor[part], w.tensor[part])), start


def test_only_the_branch_stands_between_the_reads(ptx, dtype):
    """The compiler moves reads into branches where it can, so this must be seen to."""
    for variant in OURS:
        text = ptx("branches.cu", f"branches_{variant}", {"SCALAR": CUDA_TYPE[dtype]})
        between = text.split("ld.global")[1]
        assert ("bra" in between.split()) == (variant == "branch"), variant


def test_the_slopes_count_in_full():
    op = Catalogue()["branches"]
    work = op.work_of({"N": 1000}, "float16")
    assert (work.read, work.written) == (4000, 2000)
    eager = op.traffic_of(op.variants["eager"], {"N": 1000}, "float16")
    assert (eager.read, eager.written) == (11000, 5000)
