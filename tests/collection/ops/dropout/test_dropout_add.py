"""Dropout and an addition on a GPU: masks bit for bit, values to the last bit, any size and address."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from harness.collection.ops.bits import pack, unpack
from harness.collection.ops.dropout._dropout import NARROW, WIDE, Keep, split
from harness.collection.ops.dropout.dropout_add import OP

COMPILED = [{"N": 1000}]
BITS = {"fused_bytes": WIDE, "fused_bitmask": WIDE, "tuned": NARROW}
# Around quads, groups, words, tiles and blocks.
SIZES = [0, 1, 3, 4, 5, 7, 8, 9, 31, 32, 33, 63, 255, 256, 257, 1023, 1025, 2047, 2048, 2049, 300_007]


def expected(variant, p, x, addend, mask):
    """A product and a sum in float64 are the kernels' fused ones, rounded to float and to the dtype as there."""
    import torch

    scale = float(torch.tensor(Keep(p, BITS[variant]).scale))
    return (torch.where(mask, x.double(), 0) * scale + addend.double()).float().to(x.dtype)


@pytest.fixture
def run(launch, placed, replay):
    import torch

    def call_one(variant, dtype, n, p=0.1, seed=0, call=0, values=None, **offsets):
        """One call, of which everything is compared. values: x and addend in place of random ones."""
        by_bytes = variant == "fused_bytes"
        parts = {name: placed(n, dtype, offsets.get(name, 0)) for name in ("x", "addend", "y")}
        parts["mask"] = placed(n if by_bytes else -(-n // 32), "bool" if by_bytes else "int32", offsets.get("mask", 0))
        tensors = SimpleNamespace(**{name: part.tensor for name, part in parts.items()})
        for place, input_ in enumerate((tensors.x, tensors.addend)):
            input_.copy_(torch.randn(n, device="cuda") if values is None else values[place])
        number = torch.tensor([call], device="cuda")
        launch("dropout_add", variant, dtype, {"N": n, "p": p}, seed=seed, call=number, **parts)
        mask = replay(p, BITS[variant], seed, call, 0, n)
        # Whole words: also the bits past the last element are as they must be.
        assert torch.equal(tensors.mask, mask if by_bytes else pack(mask))
        wanted = expected(variant, p, tensors.x, tensors.addend, mask)
        torch.testing.assert_close(tensors.y, wanted, rtol=0, atol=0, equal_nan=True)
        tensors.kept = mask
        return tensors

    return call_one


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_sizes(run, variant, dtype):
    for n in SIZES:
        run(variant, dtype, n)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_every_seed_and_call_draws_its_own_numbers(run, variant):
    import torch

    streams = [(0, 0), (0, 1), (1, 0), (2**40 + 1, 5), (5, 2**33 + 1), (2**63, -1)]
    masks = [run(variant, "float16", 5000, seed=s, call=c).kept for s, c in streams]
    assert not any(torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0, 0.01, 0.5, 0.99, 1])
@pytest.mark.parametrize("variant", BITS)
def test_probabilities(run, variant, p):
    share = float(run(variant, "float32", 100_001, p).kept.double().mean())
    assert abs(share - (1 - p)) <= 0.01
    assert share in (0, 1) or 0 < p < 1


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_unaligned_addresses(run, variant, dtype):
    for n in (5, 1001, 4096):
        for name in ("x", "addend", "y", "mask"):
            for offset in (1, 4, 7):
                run(variant, dtype, n, **{name: offset})
        run(variant, dtype, n, x=1, addend=2, y=3, mask=5)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_special_values(run, special, variant, dtype):
    import torch

    pairs = torch.cartesian_prod(special(dtype), special(dtype)).repeat(40, 1)
    for p in (0.1, 0.5):
        run(variant, dtype, len(pairs), p, values=pairs.unbind(1))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", BITS)
def test_the_mask_gives_the_gradient(run, variant):
    """A plain expression with the mask is the function that the kernel computes, and so has its gradient."""
    import torch

    n, scale = 10_007, Keep(0.1, BITS[variant]).scale
    at, step = torch.randn(2, n, device="cuda")
    addend = torch.zeros_like(at)
    before, after = (run(variant, "float32", n, values=(x, addend)) for x in (at, at + step))
    mask = before.mask if variant == "fused_bytes" else unpack(before.mask, n)
    x = at.clone().requires_grad_()
    (x * mask * scale + addend).backward(torch.ones_like(at))
    torch.testing.assert_close(after.y - before.y, x.grad * step, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", BITS)
def test_more_than_2_to_31_elements(launch, replay, variant):
    import torch

    n, by_bytes = 2**31 + 77, variant == "fused_bytes"
    x, addend = (torch.randn(n, device="cuda", dtype=torch.float16) for _ in range(2))
    y = torch.full_like(x, math.nan)
    mask = torch.full((n,), 0xA5, device="cuda", dtype=torch.uint8).view(torch.bool)
    if not by_bytes:
        mask = torch.zeros(-(-n // 32), device="cuda", dtype=torch.int32)
    call = torch.tensor([3], device="cuda")
    launch("dropout_add", variant, "float16", {"N": n, "p": 0.1}, seed=9, x=x, addend=addend, call=call, y=y, mask=mask)
    # The start, around 2**31 elements and the end stand for the rest.
    for begin, end in ((0, 1024), (2**31 - 1024, n)):
        wanted = replay(0.1, BITS[variant], 9, 3, begin, end)
        got = mask[begin:end] if by_bytes else unpack(mask[begin // 32 : -(-end // 32)], end - begin)
        assert torch.equal(got, wanted)
        assert torch.equal(y[begin:end], expected(variant, 0.1, x[begin:end], addend[begin:end], wanted))
    assert not bool(y.isnan().any())
    if by_bytes:
        assert int(mask.view(torch.uint8).max()) == 1


@pytest.mark.parametrize("p", [0, 0.1, 0.5])
def test_eager_passes_the_check(trial, dtype, p):
    assert trial("dropout_add", "eager", dtype, N=20_000, p=p).complaint_after_call() is None


def test_the_check_finds_a_wrong_value_and_a_wrong_share(trial):
    said = trial("dropout_add", "eager", "float32", N=20_000, p=0.1).complaint_after_call
    assert "y: 1 of 20000 elements are wrong by up to 0.01; element 7" in said(lambda t: t.y[7].add_(0.01))
    assert "of 20000 elements are kept" in said(lambda t: t.mask[:1000].zero_())
    assert "elements are wrong" in said(lambda t: t.y.copy_(t.y.roll(1)))


@pytest.mark.parametrize("variant", ["fused_bitmask", "tuned"])
def test_masks_of_bits_are_decoded(trial, variant):
    import torch

    ctx = trial("dropout_add", variant, "float32", N=20_000, p=0.1).ctx
    mask = torch.rand(20_000, generator=ctx.generator) < 0.9
    decoded = OP.variants[variant].decode(ctx, SimpleNamespace(mask=pack(mask)))
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


def test_traffic_is_as_the_text_counts_it():
    size = 4 * 2**20
    moved = {
        name: OP.traffic_of(OP.variants[name], {"N": 2**20}, "float32").moved / size
        for name in ("eager", "fused_bytes", "tuned")
    }
    assert moved == pytest.approx({"eager": 5.25, "fused_bytes": 3.25, "tuned": 3 + 1 / 32}, rel=1e-5)
