"""ReLU with a mask: every bit in its place, at the sizes and addresses that break kernels."""

from __future__ import annotations

import math

import pytest

from harness.collection.ops.activation.relu_mask import OP, pack_strided, unpack_strided
from harness.collection.ops.bits import pack, unpack
from tests.one_test import one_test

COMPILED = [{"N": 1000}]
OURS = ["sequential", "strided", "ballot", "ballot8", "tuned"]
SIZES = [0, 1, 3, 7, 8, 9, 31, 32, 33, 63, 255, 256, 257, 511, 513, 2047, 2048, 2049, 100_003, 2**20]


def packed_as(variant, mask):
    """The mask as the variant must write it, with every bit past the last element zero."""
    return pack_strided(mask) if variant == "strided" else pack(mask)


def run(launch, placed, variant, x, y_offset=0, mask_offset=0):
    """y and the mask that the variant writes for x; fails if it writes anything around them."""
    n, dtype = x.numel(), str(x.dtype)[6:]
    y = placed(n, dtype, y_offset)
    of_mask = OP.tensors(OP.variants[variant])[1][1]
    mask = placed(of_mask.shapes({"N": n})[0], of_mask.dtype, mask_offset)
    launch("relu_mask", variant, dtype, {"N": n}, x=x, y=y, mask=mask)
    return y.tensor, mask.tensor


def run_and_check(launch, placed, variant, x, y_offset=0, mask_offset=0):
    import torch

    y, mask = run(launch, placed, variant, x, y_offset, mask_offset)
    torch.testing.assert_close(y, x.clamp(min=0), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(mask, packed_as(variant, x > 0))


@pytest.fixture
def values(normal):
    """Like `normal`, with a zero among every three."""

    def make(*args):
        x = normal(*args)
        x[::3] = 0
        return x

    return make


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_sizes(launch, placed, values, variant, dtype):
    for n in SIZES:
        run_and_check(launch, placed, variant, values(n, dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, values, variant, dtype):
    for n in (1, 300, 1025):
        for x_offset, y_offset, mask_offset in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 5, 3), (2, 2, 2), (8, 4, 4)]:
            run_and_check(launch, placed, variant, values(n, dtype, x_offset), y_offset, mask_offset)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_special_values(launch, placed, variant, dtype):
    import torch

    kind = getattr(torch, dtype)
    info = torch.finfo(kind)
    least = info.smallest_normal * info.eps  # the smallest subnormal
    special = [math.inf, math.nan, 0.0, info.max, info.smallest_normal, least, 1.0]
    x = torch.tensor([*special, *(-value for value in special)], device="cuda", dtype=kind)
    assert bool((x != 0).sum() == 12), "a subnormal was rounded to zero"
    for n in (5, 14, 256, 1000):
        run_and_check(launch, placed, variant, x.repeat(100)[:n])


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
def test_more_than_2_to_31_elements(launch, placed, variant):
    import torch

    x = torch.randn(2**31 + 4099, device="cuda", dtype=torch.float16)
    y, mask = run(launch, placed, variant, x)
    decode = unpack_strided if variant == "strided" else unpack
    assert torch.equal(decode(mask, x.numel()), x > 0)
    assert torch.equal(y, x.clamp_(min=0))


@one_test("element", [0, 1, 8, 9, 17, 18, 69])
def test_bit_k_of_strided_byte_i_is_element_i_plus_k_n(element):
    import torch

    mask = torch.zeros(70, dtype=torch.bool)
    mask[element] = True
    n = 9
    assert pack_strided(mask).tolist() == [1 << element // n if i == element % n else 0 for i in range(n)]


@one_test("count", [0, 1, 7, 8, 9, 1001])
def test_unpack_strided_undoes_pack_strided(count):
    import torch

    mask = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.3
    assert torch.equal(unpack_strided(pack_strided(mask), count), mask)


def test_eager_and_the_masks_of_ours_agree_with_the_reference(trial, dtype):
    given = trial("relu_mask", "eager", dtype, N=1001)
    assert given.complaint_after_call() is None
    assert "y: " in given.complaint(y=given.inputs.x)
    wanted, kept = given.call(), given.inputs.x > 0
    for name in OURS:
        ours = trial("relu_mask", name, dtype, N=1001)
        assert ours.complaint(y=wanted.y, mask=packed_as(name, kept)) is None
        assert "mask: " in ours.complaint(y=wanted.y, mask=packed_as(name, ~kept))


def test_a_mask_is_a_little_more_to_write_than_y_alone():
    moved = {name: OP.traffic_of(OP.variants[name], {"N": 2**20}, "float32").moved / 2**20 for name in OP.variants}
    assert {moved[name] for name in ("eager", "compile", "compile_autotune")} == {4 + 4}
    assert OP.work_of({"N": 2**20}, "float32").moved == (4 + 4) * 2**20, "no variant may seem faster than the memory"
    assert {moved[name] for name in OURS} == {4 + 4 + 1 / 8}
