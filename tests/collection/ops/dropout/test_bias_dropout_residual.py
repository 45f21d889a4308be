"""Bias, dropout and a residual on a GPU: masks bit for bit, values to the last bit, rows of any length, any address."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from harness.collection.ops.bits import pack, unpack
from harness.collection.ops.dropout._dropout import NARROW, WIDE, Keep
from harness.collection.ops.dropout.bias_dropout_residual import OP

# Biases as packs and not (by their address), indexes of 32 bits and of 64.
COMPILED = [{"R": 64, "C": 1024}, {"R": 2**22, "C": 1024}]
BITS = {"fused_bytes": WIDE, "fused_bitmask": WIDE, "tuned": NARROW}
SHAPES = [
    (0, 5), (5, 0), (1, 1), (33, 1), (5000, 1), (700, 2), (1000, 3), (4, 4), (11, 5), (900, 7), (33, 8), (513, 8),
    (20, 12), (1, 255), (1, 256), (1, 257), (9, 1000), (3, 1023), (301, 1023), (64, 1024), (65, 1024), (7, 4099),
]  # fmt: skip


def expected(variant, p, x, bias, residual, mask):
    """The first sum is rounded to float; the product and the second one are the kernels' fused ones."""
    import torch

    scale = float(torch.tensor(Keep(p, BITS[variant]).scale))
    biased = torch.where(mask, x.float() + bias.float(), 0)
    return (biased.double() * scale + residual.double()).float().to(x.dtype)


@pytest.fixture
def run(launch, placed, replay):
    import torch

    def call_one(variant, dtype, shape, p=0.1, seed=0, call=0, values=None, **offsets):
        """One call, of which everything is compared. values: x, bias and residual in place of random ones."""
        n, by_bytes = math.prod(shape), variant == "fused_bytes"
        shapes = {"x": shape, "bias": shape[1:], "residual": shape, "y": shape}
        parts = {name: placed(extents, dtype, offsets.get(name, 0)) for name, extents in shapes.items()}
        words = (shape, "bool") if by_bytes else (-(-n // 32), "int32")
        parts["mask"] = placed(*words, offsets.get("mask", 0))
        tensors = SimpleNamespace(**{name: part.tensor for name, part in parts.items()})
        for place, input_ in enumerate((tensors.x, tensors.bias, tensors.residual)):
            input_.copy_(torch.randn(input_.shape, device="cuda") if values is None else values[place])
        symbols = {"R": shape[0], "C": shape[1], "p": p}
        number = torch.tensor([call], device="cuda")
        launch("bias_dropout_residual", variant, dtype, symbols, seed=seed, call=number, **parts)
        mask = replay(p, BITS[variant], seed, call, 0, n)
        # Whole words: also the bits past the last element are as they must be.
        assert torch.equal(tensors.mask, mask.view(shape) if by_bytes else pack(mask))
        wanted = expected(variant, p, tensors.x, tensors.bias, tensors.residual, mask.view(shape))
        torch.testing.assert_close(tensors.y, wanted, rtol=0, atol=0, equal_nan=True)
        tensors.kept = mask
        return tensors

    return call_one


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_shapes(run, variant, dtype):
    for shape in SHAPES:
        run(variant, dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_every_seed_and_call_draws_its_own_numbers(run, variant):
    import torch

    streams = [(0, 0), (0, 1), (1, 0), (2**40 + 1, 5), (5, 2**33 + 1), (2**63, -1)]
    masks = [run(variant, "float16", (50, 100), seed=s, call=c).kept for s, c in streams]
    assert not any(torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0, 0.01, 0.5, 0.99, 1])
@pytest.mark.parametrize("variant", BITS)
def test_probabilities(run, variant, p):
    share = float(run(variant, "float32", (317, 317), p).kept.double().mean())
    assert abs(share - (1 - p)) <= 0.01
    assert share in (0, 1) or 0 < p < 1


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_unaligned_addresses(run, variant, dtype):
    for shape in ((3, 7), (4, 1024), (11, 93)):
        for name in ("x", "bias", "residual", "y", "mask"):
            for offset in (1, 4):
                run(variant, dtype, shape, **{name: offset})
        run(variant, dtype, shape, x=1, bias=7, residual=2, y=3, mask=5)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_special_values(run, special, variant, dtype):
    import torch

    every = special(dtype)[:11]  # rows that no pack divides
    # Every x and residual with every bias.
    x, residual = torch.cartesian_prod(every, every).repeat(30, 1).unbind(1)
    count = len(every)
    values = x.view(-1, 1).expand(-1, count), every, residual.view(-1, 1).expand(-1, count)
    run(variant, dtype, (len(x), count), values=values)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_the_mask_gives_the_gradients(run, variant):
    """A plain expression with the mask is the function that the kernel computes, and so has its gradients."""
    import torch

    shape, scale = (100, 101), Keep(0.1, BITS[variant]).scale
    at, step = torch.randn(2, *shape, device="cuda")
    bias, bias_step = torch.randn(2, shape[1], device="cuda")
    residual = torch.zeros_like(at)
    points = ((at, bias, residual), (at + step, bias, residual), (at, bias + bias_step, residual))
    base, by_x, by_bias = (run(variant, "float32", shape, values=point) for point in points)
    mask = base.mask if variant == "fused_bytes" else unpack(base.mask, at.numel()).view(shape)
    x, b = at.clone().requires_grad_(), bias.clone().requires_grad_()
    ((x + b) * mask * scale + residual).backward(torch.ones_like(at))
    torch.testing.assert_close(by_x.y - base.y, x.grad * step, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close((by_bias.y - base.y).sum(0), b.grad * bias_step, rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("columns", [1023, 1024])
@pytest.mark.parametrize("variant", BITS)
def test_more_than_2_to_31_elements(launch, replay, variant, columns):
    import torch

    rows, by_bytes = 2**31 // columns + 3, variant == "fused_bytes"
    n = rows * columns
    assert n > 2**31
    x, residual = (torch.randn(rows, columns, device="cuda", dtype=torch.float16) for _ in range(2))
    bias = torch.randn(columns, device="cuda", dtype=torch.float16)
    y = torch.full_like(x, math.nan)
    mask = torch.full((rows, columns), 0xA5, device="cuda", dtype=torch.uint8).view(torch.bool)
    if not by_bytes:
        mask = torch.zeros(-(-n // 32), device="cuda", dtype=torch.int32)
    tensors = {"x": x, "bias": bias, "residual": residual, "call": torch.tensor([3], device="cuda"), "y": y}
    symbols = {"R": rows, "C": columns, "p": 0.1}
    launch("bias_dropout_residual", variant, "float16", symbols, seed=9, mask=mask, **tensors)
    # The first rows, and the rows from below 2**31 elements to the end, stand for the rest.
    for first, last in ((0, 32), (rows - rows % 32 - 32, rows)):
        part, begin, end = slice(first, last), first * columns, last * columns
        wanted = replay(0.1, BITS[variant], 9, 3, begin, end).view(-1, columns)
        words = mask[begin // 32 : -(-end // 32)]
        got = mask[part] if by_bytes else unpack(words, end - begin).view(-1, columns)
        assert torch.equal(got, wanted)
        assert torch.equal(y[part], expected(variant, 0.1, x[part], bias, residual[part], wanted))
    assert not bool(y.isnan().any())
    if by_bytes:
        assert int(mask.view(torch.uint8).max()) == 1


@pytest.mark.parametrize("p", [0, 0.1, 0.5])
def test_eager_passes_the_check(trial, dtype, p):
    assert trial("bias_dropout_residual", "eager", dtype, R=150, C=1310, p=p).complaint_after_call() is None


def test_the_check_finds_a_wrong_value_a_wrong_share_and_a_shifted_bias(trial):
    said = trial("bias_dropout_residual", "eager", "float32", R=150, C=131, p=0.1).complaint_after_call
    assert "y: 1 of 19650 elements are wrong by up to 0.01; element 7" in said(lambda t: t.y[0, 7].add_(0.01))
    assert "of 19650 elements are kept" in said(lambda t: t.mask[:10].zero_())
    assert "elements are wrong" in said(lambda t: t.y.add_(t.bias.roll(1) - t.bias))


@pytest.mark.parametrize("variant", ["fused_bitmask", "tuned"])
def test_masks_of_bits_are_decoded(trial, variant):
    import torch

    ctx = trial("bias_dropout_residual", variant, "float32", R=150, C=131, p=0.1).ctx
    mask = torch.rand(150, 131, generator=ctx.generator) < 0.9
    decoded = OP.variants[variant].decode(ctx, SimpleNamespace(mask=pack(mask.view(-1)), y=mask))
    assert torch.equal(decoded["mask"], mask)


def test_traffic_counts_every_tensor_that_passes():
    symbols = {"R": 1024, "C": 1024}
    size = 2 * 2**20
    moved = {
        name: OP.traffic_of(OP.variants[name], symbols, "float16").moved / size
        for name in ("eager", "fused_bytes", "tuned")
    }
    assert moved == pytest.approx({"eager": 7.5, "fused_bytes": 3.5, "tuned": 3 + 1 / 16}, rel=1e-3)
