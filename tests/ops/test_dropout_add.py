"""Dropout and an addition on a GPU: masks bit for bit, values to the last bit, any size and address."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from harness import check
from harness.model import Case
from harness.ops import Catalogue, Context
from harness.ops._bits import pack, unpack
from harness.ops._dropout import NARROW, WIDE, Keep, split
from harness.ops._philox import numbers

COMPILED = [{"N": 1000, "P": 10}]
DTYPES = ["float32", "float16", "bfloat16"]
BITS = {"fused_bytes": WIDE, "fused_bitmask": WIDE, "tuned": NARROW}
# Around quads, groups, words, tiles and blocks.
SIZES = [0, 1, 3, 4, 5, 7, 8, 9, 31, 32, 33, 63, 255, 256, 257, 1023, 1025, 2047, 2048, 2049, 300_007]


def kept(variant, percent, elements, seed=0, call=0):
    """The mask of the elements with these indexes."""
    bits = BITS[variant]
    return numbers(seed, call, elements, bits) < Keep(percent, bits).threshold


def expected(variant, percent, x, addend, mask):
    """A product and a sum in float64 are the kernels' fused ones, rounded to float and to the dtype as there."""
    import torch

    scale = float(torch.tensor(Keep(percent, BITS[variant]).scale))
    return (torch.where(mask, x.double(), 0) * scale + addend.double()).float().to(x.dtype)


def run(launch, placed, variant, dtype, n, percent=10, seed=0, call=0, values=None, **offsets):
    """One call, of which everything is compared. values: x and addend in place of random ones."""
    import torch

    by_bytes = variant == "fused_bytes"
    parts = {name: placed(n, dtype, offsets.get(name, 0)) for name in ("x", "addend", "y")}
    parts["mask"] = placed(n if by_bytes else -(-n // 32), "bool" if by_bytes else "int32", offsets.get("mask", 0))
    tensors = {name: part.tensor for name, part in parts.items()}
    for place, name in enumerate(("x", "addend")):
        tensors[name].copy_(torch.randn(n, device="cuda") if values is None else values[place])
    number = torch.tensor([call], device="cuda")
    launch("dropout_add", variant, dtype, {"N": n, "P": percent}, seed=seed, call=number, **tensors)
    mask = kept(variant, percent, torch.arange(n, device="cuda"), seed, call)
    # Whole words: also the bits past the last element are as they must be.
    assert torch.equal(tensors["mask"], mask if by_bytes else pack(mask))
    wanted = expected(variant, percent, tensors["x"], tensors["addend"], mask)
    torch.testing.assert_close(tensors["y"], wanted, rtol=0, atol=0, equal_nan=True)
    for part in parts.values():
        part.assert_untouched_around()
    return SimpleNamespace(**tensors, kept=mask)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", BITS)
def test_sizes(launch, placed, variant, dtype):
    for n in SIZES:
        run(launch, placed, variant, dtype, n)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_every_seed_and_call_draws_its_own_numbers(launch, placed, variant):
    import torch

    streams = [(0, 0), (0, 1), (1, 0), (2**40 + 1, 5), (5, 2**33 + 1), (2**63, -1)]
    masks = [run(launch, placed, variant, "float16", 5000, seed=s, call=c).kept for s, c in streams]
    assert not any(torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])


@pytest.mark.gpu
@pytest.mark.parametrize("percent", [0, 1, 50, 99, 100])
@pytest.mark.parametrize("variant", BITS)
def test_probabilities(launch, placed, variant, percent):
    share = float(run(launch, placed, variant, "float32", 100_001, percent).kept.double().mean())
    assert abs(share - (1 - percent / 100)) <= 0.01
    assert share in (0, 1) or 0 < percent < 100


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", BITS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for n in (5, 1001, 4096):
        for name in ("x", "addend", "y", "mask"):
            for offset in (1, 4, 7):
                run(launch, placed, variant, dtype, n, **{name: offset})
        run(launch, placed, variant, dtype, n, x=1, addend=2, y=3, mask=5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", BITS)
def test_special_values(launch, placed, variant, dtype):
    import torch

    limits = torch.finfo(getattr(torch, dtype))
    special = [math.inf, -math.inf, math.nan, 0.0, -0.0, limits.max, -limits.max, limits.tiny, limits.smallest_normal]
    pairs = torch.cartesian_prod(torch.tensor(special), torch.tensor([*special, 1.0])).repeat(40, 1)
    for percent in (10, 50):
        run(launch, placed, variant, dtype, len(pairs), percent, values=pairs.cuda().unbind(1))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_the_mask_gives_the_gradient(launch, placed, variant):
    """A plain expression with the mask is the function that the kernel computes, and so has its gradient."""
    import torch

    n, scale = 10_007, Keep(10, BITS[variant]).scale
    at, step = torch.randn(2, n, device="cuda")
    addend = torch.zeros_like(at)
    before, after = (run(launch, placed, variant, "float32", n, values=(x, addend)) for x in (at, at + step))
    mask = before.mask if variant == "fused_bytes" else unpack(before.mask, n)
    x = at.clone().requires_grad_()
    (x * mask * scale + addend).backward(torch.ones_like(at))
    torch.testing.assert_close(after.y - before.y, x.grad * step, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_more_than_2_to_31_elements(launch, variant):
    import torch

    n, by_bytes = 2**31 + 77, variant == "fused_bytes"
    x, addend = (torch.randn(n, device="cuda", dtype=torch.float16) for _ in range(2))
    y = torch.full_like(x, math.nan)
    mask = torch.full((n,), 0xA5, device="cuda", dtype=torch.uint8).view(torch.bool)
    if not by_bytes:
        mask = torch.zeros(-(-n // 32), device="cuda", dtype=torch.int32)
    call = torch.tensor([3], device="cuda")
    launch("dropout_add", variant, "float16", {"N": n, "P": 10}, seed=9, x=x, addend=addend, call=call, y=y, mask=mask)
    # The start, around 2**31 elements and the end stand for the rest.
    for begin, end in ((0, 1024), (2**31 - 1024, n)):
        wanted = kept(variant, 10, torch.arange(begin, end, device="cuda"), 9, 3)
        got = mask[begin:end] if by_bytes else unpack(mask[begin // 32 : -(-end // 32)], end - begin)
        assert torch.equal(got, wanted)
        assert torch.equal(y[begin:end], expected(variant, 10, x[begin:end], addend[begin:end], wanted))
    assert not bool(y.isnan().any())
    if by_bytes:
        assert int(mask.view(torch.uint8).max()) == 1


@pytest.fixture
def cpu() -> Context:
    import torch

    op = Catalogue()["dropout_add"]
    case = Case(op.name, "eager", "float32", (("N", 20_000), ("P", 10)), "cpu")
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

    cpu.case = Case("dropout_add", "eager", dtype, (("N", 20_000), ("P", percent)), "cpu")
    cpu.dtype = getattr(torch, dtype)
    assert checked(cpu) is None


def test_the_check_finds_a_wrong_value_and_a_wrong_share(cpu):
    assert "y: 1 of 20000 elements are wrong; element 7" in checked(cpu, lambda t: t.y[7].add_(0.01))
    assert "of 20000 elements are kept" in checked(cpu, lambda t: t.mask[:1000].zero_())
    assert "elements are wrong" in checked(cpu, lambda t: t.y.copy_(t.y.roll(1)))


@pytest.mark.parametrize("variant", ["fused_bitmask", "tuned"])
def test_masks_of_bits_are_decoded(cpu, variant):
    import torch

    mask = torch.rand(20_000, generator=cpu.generator) < 0.9
    decoded = cpu.op.variants[variant].decode(cpu, SimpleNamespace(mask=pack(mask)))
    assert torch.equal(decoded["mask"], mask)


@pytest.mark.parametrize("bits", [WIDE, NARROW])
def test_threads_hold_all_words_and_whole_ones_all_their_elements(bits):
    per_thread = {WIDE: 4, NARROW: 8}[bits]
    for count in range(1100):
        threads, whole = split(count, bits)
        assert threads * per_thread == -(-count // 32) * 32
        assert whole * per_thread <= count
        assert whole <= threads
        if bits == NARROW:
            assert whole % 32 == 0


def test_traffic_is_as_the_text_counts_it(cpu):
    op, size = cpu.op, 4 * 2**20
    moved = {
        name: op.traffic(op.variants[name], {"N": 2**20, "P": 10}, "float32").moved / size
        for name in ("eager", "fused_bytes", "tuned")
    }
    assert moved == pytest.approx({"eager": 5.25, "fused_bytes": 3.25, "tuned": 3 + 1 / 32}, rel=1e-5)
