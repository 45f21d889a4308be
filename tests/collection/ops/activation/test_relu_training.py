"""ReLU and its backward together, at the sizes and addresses that break kernels."""

from __future__ import annotations

import pytest

from harness.collection.ops.activation.relu_training import OP
from harness.collection.ops.elementwise import CUDA_TYPE

COMPILED = [{"N": 1000}]
OURS = ["from_y", "bitset", "from_y_packed", "tuned"]
WITH_BITS = ["bitset", "tuned"]
SIZES = [0, 1, 3, 7, 8, 9, 31, 32, 33, 63, 255, 256, 257, 511, 513, 2047, 2048, 2049, 100_003, 2**20]


def run_and_check(launch, placed, variant, x, dy, y_offset=0, dx_offset=0):
    """y and dx, exactly, and nothing around them."""
    import torch

    n, dtype = x.numel(), str(x.dtype)[6:]
    y, dx = placed(n, dtype, y_offset), placed(n, dtype, dx_offset)
    bits = {"mask": placed(-(-n // 32), "int32")} if variant in WITH_BITS else {}
    launch("relu_training", variant, dtype, {"N": n}, x=x, dy=dy, y=y, dx=dx, **bits)
    torch.testing.assert_close(y.tensor, x.clamp(min=0), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(dx.tensor, dy.where(x > 0, 0), rtol=0, atol=0, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_sizes(launch, placed, normal, variant, dtype):
    for n in SIZES:
        x = normal(n, dtype, seed=1)
        x[::3] = 0
        run_and_check(launch, placed, variant, x, normal(n, dtype, seed=2))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, normal, variant, dtype):
    for n in (1, 300, 1025):
        for offsets in [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (3, 5, 3, 1), (8, 4, 4, 8)]:
            x, dy = normal(n, dtype, offsets[0], seed=1), normal(n, dtype, offsets[1], seed=2)
            run_and_check(launch, placed, variant, x, dy, *offsets[2:])


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_special_values(launch, placed, special, variant, dtype):
    import torch

    x, dy = torch.cartesian_prod(special(dtype), special(dtype)).T.contiguous()
    run_and_check(launch, placed, variant, x, dy)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
def test_more_than_2_to_31_elements(launch, placed, variant):
    import torch

    n = 2**31 + 4099
    x, dy = (torch.randn(n, device="cuda", dtype=torch.float16) for _ in range(2))
    y, dx = placed(n, "float16"), placed(n, "float16")
    bits = {"mask": placed(-(-n // 32), "int32")} if variant in WITH_BITS else {}
    launch("relu_training", variant, "float16", {"N": n}, x=x, dy=dy, y=y, dx=dx, **bits)
    assert torch.equal(dx.tensor, dy.masked_fill_(x <= 0, 0))
    assert torch.equal(y.tensor, x.clamp_(min=0))


def test_eager_gives_the_reference(trial, dtype):
    given = trial("relu_training", "eager", dtype, N=1001)
    assert given.complaint_after_call() is None
    assert "dx: " in given.complaint_after_call(lambda t: t.dx.copy_(t.dy))
    assert "y: " in given.complaint_after_call(lambda t: t.y.copy_(t.x))


def test_the_forward_without_bits_moves_packs_as_the_one_with_bits_does(accesses_of_packs, dtype):
    macros = {"SCALAR": CUDA_TYPE[dtype]}
    assert accesses_of_packs("relu_training.cu", "relu_packed", macros) == ["ld.nc.v4", "st.v4"]
    assert accesses_of_packs("relu_mask.cu", "relu_mask_tuned", macros)[:2] == ["ld.nc.v4", "st.v4"]


def test_the_forward_and_the_backward_are_compiled_apart(trial, monkeypatch):
    """In one function Inductor would read x and dy once and never read y, which no training step can do."""
    import torch

    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function) or function)
    assert trial("relu_training", "compile", "float32", N=1001).complaint_after_call() is None
    assert len(compiled) == 2


@pytest.mark.parametrize(("dtype", "share"), [("float32", 4 / 5 + 1 / 80), ("float16", 4 / 5 + 1 / 40)])
def test_five_tensors_become_four_and_twice_the_bits(dtype, share):
    moved = {name: OP.traffic_of(OP.variants[name], {"N": 2**20}, dtype).moved for name in OP.variants}
    assert {moved[name] for name in moved if name not in WITH_BITS} == {moved["eager"]}
    assert [moved[name] / moved["eager"] for name in WITH_BITS] == pytest.approx([share] * 2)
    assert OP.work_of({"N": 2**20}, dtype).moved == moved["tuned"]
