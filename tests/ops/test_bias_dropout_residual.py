"""Bias, dropout and a residual on a GPU: masks bit for bit, values to the last bit, rows of any length, any address."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from harness import check
from harness.model import Case
from harness.ops import Catalogue, Context
from harness.ops._bits import pack, unpack
from harness.ops._dropout import NARROW, WIDE, Keep
from harness.ops._philox import numbers

# Biases as packs and not (by their address), indexes of 32 bits and of 64.
COMPILED = [{"R": 64, "C": 1024, "P": 10}, {"R": 2**22, "C": 1024, "P": 10}]
DTYPES = ["float32", "float16", "bfloat16"]
BITS = {"fused_bytes": WIDE, "fused_bitmask": WIDE, "tuned": NARROW}
SHAPES = [
    (0, 5), (5, 0), (1, 1), (33, 1), (5000, 1), (700, 2), (1000, 3), (4, 4), (11, 5), (900, 7), (33, 8), (513, 8),
    (20, 12), (1, 255), (1, 256), (1, 257), (9, 1000), (3, 1023), (301, 1023), (64, 1024), (65, 1024), (7, 4099),
]  # fmt: skip


def kept(variant, percent, elements, seed=0, call=0):
    """The mask of the elements with these indexes in row-major order."""
    bits = BITS[variant]
    return numbers(seed, call, elements, bits) < Keep(percent, bits).threshold


def expected(variant, percent, x, bias, residual, mask):
    """The first sum is rounded to float; the product and the second one are the kernels' fused ones."""
    import torch

    scale = float(torch.tensor(Keep(percent, BITS[variant]).scale))
    biased = torch.where(mask, x.float() + bias.float(), 0)
    return (biased.double() * scale + residual.double()).float().to(x.dtype)


def run(launch, placed, variant, dtype, shape, percent=10, seed=0, call=0, values=None, **offsets):
    """One call, of which everything is compared. values: x, bias and residual in place of random ones."""
    import torch

    n, by_bytes = math.prod(shape), variant == "fused_bytes"
    shapes = {"x": shape, "bias": shape[1:], "residual": shape, "y": shape}
    parts = {name: placed(extents, dtype, offsets.get(name, 0)) for name, extents in shapes.items()}
    words = (shape, "bool") if by_bytes else (-(-n // 32), "int32")
    parts["mask"] = placed(*words, offsets.get("mask", 0))
    tensors = {name: part.tensor for name, part in parts.items()}
    for place, name in enumerate(("x", "bias", "residual")):
        given = torch.randn(shapes[name], device="cuda") if values is None else values[place]
        tensors[name].copy_(given)
    symbols = {"R": shape[0], "C": shape[1], "P": percent}
    number = torch.tensor([call], device="cuda")
    launch("bias_dropout_residual", variant, dtype, symbols, seed=seed, call=number, **tensors)
    mask = kept(variant, percent, torch.arange(n, device="cuda"), seed, call)
    # Whole words: also the bits past the last element are as they must be.
    assert torch.equal(tensors["mask"], mask.view(shape) if by_bytes else pack(mask))
    wanted = expected(variant, percent, tensors["x"], tensors["bias"], tensors["residual"], mask.view(shape))
    torch.testing.assert_close(tensors["y"], wanted, rtol=0, atol=0, equal_nan=True)
    for part in parts.values():
        part.assert_untouched_around()
    return SimpleNamespace(**tensors, kept=mask)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", BITS)
def test_shapes(launch, placed, variant, dtype):
    for shape in SHAPES:
        run(launch, placed, variant, dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_every_seed_and_call_draws_its_own_numbers(launch, placed, variant):
    import torch

    streams = [(0, 0), (0, 1), (1, 0), (2**40 + 1, 5), (5, 2**33 + 1), (2**63, -1)]
    masks = [run(launch, placed, variant, "float16", (50, 100), seed=s, call=c).kept for s, c in streams]
    assert not any(torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])


@pytest.mark.gpu
@pytest.mark.parametrize("percent", [0, 1, 50, 99, 100])
@pytest.mark.parametrize("variant", BITS)
def test_probabilities(launch, placed, variant, percent):
    share = float(run(launch, placed, variant, "float32", (317, 317), percent).kept.double().mean())
    assert abs(share - (1 - percent / 100)) <= 0.01
    assert share in (0, 1) or 0 < percent < 100


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", BITS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for shape in ((3, 7), (4, 1024), (11, 93)):
        for name in ("x", "bias", "residual", "y", "mask"):
            for offset in (1, 4):
                run(launch, placed, variant, dtype, shape, **{name: offset})
        run(launch, placed, variant, dtype, shape, x=1, bias=7, residual=2, y=3, mask=5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", BITS)
def test_special_values(launch, placed, variant, dtype):
    import torch

    limits = torch.finfo(getattr(torch, dtype))
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, limits.max, -limits.max, limits.tiny, 1.0])
    # Every special x and residual with every special bias.
    x, residual = torch.cartesian_prod(special, special).repeat(30, 1).cuda().unbind(1)
    count = len(special)
    values = x.view(-1, 1).expand(-1, count), special.cuda(), residual.view(-1, 1).expand(-1, count)
    run(launch, placed, variant, dtype, (len(x), count), values=values)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_the_mask_gives_the_gradients(launch, placed, variant):
    """A plain expression with the mask is the function that the kernel computes, and so has its gradients."""
    import torch

    shape, scale = (100, 101), Keep(10, BITS[variant]).scale
    at, step = torch.randn(2, *shape, device="cuda")
    bias, bias_step = torch.randn(2, shape[1], device="cuda")
    residual = torch.zeros_like(at)
    points = ((at, bias, residual), (at + step, bias, residual), (at, bias + bias_step, residual))
    base, by_x, by_bias = (run(launch, placed, variant, "float32", shape, values=point) for point in points)
    mask = base.mask if variant == "fused_bytes" else unpack(base.mask, at.numel()).view(shape)
    x, b = at.clone().requires_grad_(), bias.clone().requires_grad_()
    ((x + b) * mask * scale + residual).backward(torch.ones_like(at))
    torch.testing.assert_close(by_x.y - base.y, x.grad * step, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close((by_bias.y - base.y).sum(0), b.grad * bias_step, rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [1023, 1024])
@pytest.mark.parametrize("variant", BITS)
def test_more_than_2_to_31_elements(launch, variant, columns):
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
    symbols = {"R": rows, "C": columns, "P": 10}
    launch("bias_dropout_residual", variant, "float16", symbols, seed=9, mask=mask, **tensors)
    # The first rows and those from below 2**31 elements to the end stand for the rest.
    for first, last in ((0, 32), (rows - rows % 32 - 32, rows)):
        part, begin, end = slice(first, last), first * columns, last * columns
        wanted = kept(variant, 10, torch.arange(begin, end, device="cuda"), 9, 3).view(-1, columns)
        words = mask[begin // 32 : -(-end // 32)]
        got = mask[part] if by_bytes else unpack(words, end - begin).view(-1, columns)
        assert torch.equal(got, wanted)
        assert torch.equal(y[part], expected(variant, 10, x[part], bias, residual[part], wanted))
    assert not bool(y.isnan().any())
    if by_bytes:
        assert int(mask.view(torch.uint8).max()) == 1


@pytest.fixture
def cpu() -> Context:
    import torch

    op = Catalogue()["bias_dropout_residual"]
    case = Case(op.name, "eager", "float32", (("R", 150), ("C", 131), ("P", 10)), "cpu")
    place = torch.device("cpu")
    return Context(case, torch.float32, place, torch.Generator(place).manual_seed(1), op)


def checked(ctx: Context, change=lambda _: None) -> str | None:
    """What the op's check says of eager's outputs after `change`."""
    before, eager = check.make_inputs(ctx), ctx.op.variants["eager"]
    after = check.collect(ctx.op, eager, before, eager.prepare(ctx)(before))
    change(after)
    return check.complaint(ctx, eager, before, after)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("percent", [0, 10, 50])
def test_eager_passes_the_check(cpu, dtype, percent):
    import torch

    cpu.case = Case(cpu.op.name, "eager", dtype, (("R", 150), ("C", 1310), ("P", percent)), "cpu")
    cpu.dtype = getattr(torch, dtype)
    assert checked(cpu) is None


def test_the_check_finds_a_wrong_value_a_wrong_share_and_a_shifted_bias(cpu):
    assert "y: 1 of 19650 elements are wrong; element 7" in checked(cpu, lambda t: t.y[0, 7].add_(0.01))
    assert "of 19650 elements are kept" in checked(cpu, lambda t: t.mask[:10].zero_())
    assert "elements are wrong" in checked(cpu, lambda t: t.y.add_(t.bias.roll(1) - t.bias))


@pytest.mark.parametrize("variant", ["fused_bitmask", "tuned"])
def test_masks_of_bits_are_decoded(cpu, variant):
    import torch

    mask = torch.rand(150, 131, generator=cpu.generator) < 0.9
    decoded = cpu.op.variants[variant].decode(cpu, SimpleNamespace(mask=pack(mask.view(-1)), y=mask))
    assert torch.equal(decoded["mask"], mask)


def test_traffic_counts_every_tensor_that_passes(cpu):
    op, symbols = cpu.op, {"R": 1024, "C": 1024, "P": 10}
    size = 2 * 2**20
    moved = {
        name: op.traffic(op.variants[name], symbols, "float16").moved / size
        for name in ("eager", "fused_bytes", "tuned")
    }
    assert moved == pytest.approx({"eager": 7.5, "fused_bytes": 3.5, "tuned": 3 + 1 / 16}, rel=1e-3)
