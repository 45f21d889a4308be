"""ReLU's backward from bits, alone and after the forward that wrote them."""

from __future__ import annotations

import pytest

from harness.collection.ops.activation.relu_grad import OP
from harness.collection.ops.activation.relu_mask import OP as FORWARD
from harness.collection.ops.activation.relu_mask import pack_strided, unpack_strided
from harness.collection.ops.bits import pack, unpack
from harness.collection.ops.elementwise import CUDA_TYPE

COMPILED = [{"N": 1000}]
BITS = ["bitset", "bitset_strided", "tuned"]
OURS = ["from_y", "from_y_packed", *BITS]
SIZES = [0, 1, 3, 7, 8, 9, 31, 32, 33, 63, 255, 256, 257, 511, 513, 2047, 2048, 2049, 100_003, 2**20]
ROUND_TRIPS = [
    ("strided", "bitset_strided"),
    *(
        (forward, backward)
        for forward in ("sequential", "ballot", "ballot8", "tuned")
        for backward in ("bitset", "tuned")
    ),
]


def run_and_check(launch, placed, variant, dy, kept, dx_offset=0, mask_offset=0):
    """dx for these gradients and this mask (booleans), exactly, and nothing around it."""
    import torch

    n, dtype = dy.numel(), str(dy.dtype)[6:]
    if variant in BITS:
        name, values = "mask", (pack_strided if variant == "bitset_strided" else pack)(kept)
    else:
        name, values = "y", torch.where(kept, 0.5, 0.0).to(dy.dtype)
    signs = placed(values.shape, str(values.dtype)[6:], mask_offset)
    signs.tensor.copy_(values)
    dx = placed(n, dtype, dx_offset)
    launch("relu_grad", variant, dtype, {"N": n}, dy=dy, dx=dx, **{name: signs.tensor})
    torch.testing.assert_close(dx.tensor, dy.where(kept, 0), rtol=0, atol=0, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_sizes(launch, placed, normal, variant, dtype):
    for n in SIZES:
        run_and_check(launch, placed, variant, normal(n, dtype, seed=1), normal(n, dtype, seed=2) > 0)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, normal, variant, dtype):
    for n in (1, 300, 1025):
        for dy_offset, dx_offset, mask_offset in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 5, 3), (2, 2, 2), (8, 4, 4)]:
            dy, kept = normal(n, dtype, dy_offset, seed=1), normal(n, dtype, seed=2) > 0
            run_and_check(launch, placed, variant, dy, kept, dx_offset, mask_offset)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_a_dropped_gradient_is_zero_whatever_it_was(launch, placed, special, variant, dtype):
    import torch

    dy = special(dtype).repeat(120)
    for kept in (torch.ones(dy.numel(), dtype=torch.bool).cuda(), torch.zeros(dy.numel(), dtype=torch.bool).cuda()):
        run_and_check(launch, placed, variant, dy, kept)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["from_y", "from_y_packed"])
def test_only_a_y_above_0_lets_a_gradient_through(launch, special, variant, dtype):
    """A NaN isn't above 0: there the bit is 0, too."""
    import torch

    y, dy = torch.cartesian_prod(special(dtype), special(dtype)).T.contiguous()
    dx = torch.full_like(dy, 7)
    launch("relu_grad", variant, dtype, {"N": len(y)}, dy=dy, y=y, dx=dx)
    torch.testing.assert_close(dx, dy.where(y > 0, 0), rtol=0, atol=0, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", ["from_y", "from_y_packed"])
def test_more_than_2_to_31_elements_of_y(launch, placed, variant):
    import torch

    n = 2**31 + 4099
    dy, y = (torch.randn(n, device="cuda", dtype=torch.float16) for _ in range(2))
    dx = placed(n, "float16")
    launch("relu_grad", variant, "float16", {"N": n}, dy=dy, y=y, dx=dx)
    assert torch.equal(dx.tensor, dy.masked_fill_(y <= 0, 0))


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", BITS)
def test_more_than_2_to_31_elements(launch, placed, variant):
    import torch

    n = 2**31 + 4099
    dy = torch.randn(n, device="cuda", dtype=torch.float16)
    strided = variant == "bitset_strided"
    mask = torch.randint(0, 256, (-(-n // 8) if strided else 4 * -(-n // 32),), device="cuda", dtype=torch.uint8)
    mask = mask if strided else mask.view(torch.int32)
    dx = placed(n, "float16")
    launch("relu_grad", variant, "float16", {"N": n}, dy=dy, mask=mask, dx=dx)
    kept = (unpack_strided if strided else unpack)(mask, n)
    assert torch.equal(dx.tensor, dy.masked_fill_(~kept, 0))


@pytest.mark.gpu
@pytest.mark.parametrize(("forward", "backward"), ROUND_TRIPS)
def test_the_mask_of_a_forward_gives_autograds_gradient(launch, placed, normal, forward, backward, dtype):
    import torch

    for n in (1, 33, 999, 4096, 100_003):
        x, dy = normal(n, dtype, seed=3), normal(n, dtype, seed=4)
        x[::5] = 0
        declared = FORWARD.tensors(FORWARD.variants[forward])[1][1]
        y, dx = placed(n, dtype).tensor, placed(n, dtype).tensor
        mask = placed(declared.shapes({"N": n})[0], declared.dtype).tensor
        launch("relu_mask", forward, dtype, {"N": n}, x=x, y=y, mask=mask)
        launch("relu_grad", backward, dtype, {"N": n}, dy=dy, mask=mask, dx=dx)
        torch.relu(x.requires_grad_()).backward(dy)
        assert torch.equal(dx, x.grad)


def test_eager_and_the_masks_given_to_ours_agree_with_the_reference(trial, dtype):
    eager = trial("relu_grad", "eager", dtype, N=1001)
    assert bool((eager.inputs.y == 0).any())
    assert eager.complaint_after_call() is None
    for name in BITS:
        ours = trial("relu_grad", name, dtype, N=1001)
        mask = OP.variants[name].encode(ours.ctx, ours.inputs)["mask"]
        decoded = (unpack_strided if name == "bitset_strided" else unpack)(mask, 1001)
        assert ours.complaint(dx=ours.inputs.dy.where(decoded, 0)) is None


@pytest.mark.parametrize(("dtype", "share"), [("float32", 2 / 3 + 1 / 96), ("float16", 2 / 3 + 1 / 48)])
def test_three_tensors_become_two_and_a_bit(dtype, share):
    moved = {name: OP.traffic_of(OP.variants[name], {"N": 2**20}, dtype).moved for name in OP.variants}
    assert {moved[name] for name in moved if name not in BITS} == {moved["eager"]}
    assert [moved[name] / moved["eager"] for name in BITS] == pytest.approx([share] * 3)


@pytest.mark.parametrize("variant", ["from_y", "bitset"])
def test_the_gradient_is_read_before_its_fate_is_known(ptx, variant, dtype):
    """Otherwise two reads would wait for each other, and the pair would show that in place of the bits."""
    text = ptx("relu_grad.cu", f"relu_grad_{variant}", {"SCALAR": CUDA_TYPE[dtype]})
    assert text.count("ld.global") == 2
    before_both = text[: text.rindex("ld.global")]
    assert before_both.count("bra") == 1, "there is a branch for threads past the end, and another one"
