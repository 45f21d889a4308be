"""window_attention: torch's code, the check, and its kernels on a GPU; test_window_attention_plan.py has its plans."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from harness.collection.ops.attention import _window_attention as shared
from harness.collection.ops.attention import window_attention as module
from harness.collection.ops.attention.window_attention import OP
from harness.model import Traffic, Work
from harness.ops import Tensors, comparer
from tests.one_test import one_test

# One band and several, K and V held and not, tables and none, each size of a head, and what `scalar` alone can do.
COMPILED = [{"W": 128, "H": 4, "T": 49, "D": 32, "G": 64, "mask": "shift", "bias": bias} for bias in ("yes", "no")] + [
    {"W": 128, "H": 4, "T": tokens, "D": size, "G": 1}
    for tokens, size in ((1, 16), (49, 32), (49, 48), (64, 32), (64, 64), (144, 32), (196, 32), (256, 64), (300, 24))
]
# Rows that come in words, queries in parts, and few windows.
COMPILED += [
    {"W": 256, "H": 6, "T": 64, "D": 30, "G": 64, "mask": "shift"},
    {"W": 256, "H": 3, "T": 256, "D": 32, "G": 16, "mask": "shift"},
    {"W": 64, "H": 3, "T": 49, "D": 32, "G": 64, "mask": "shift"},
    {"W": 64, "H": 6, "T": 144, "D": 32, "G": 64, "mask": "shift"},
]
LOCAL_MEMORY = ("unfused",)  # it has none: but its products need real tensors, and its kernel is in every compilation
# 18 warps of 144 tokens have 96 registers each; with nine warps none would spill. Also a few bytes on sm_100.
SPILLED = 48
DTYPES = shared.DTYPES
OURS = ["unfused", "scalar", "fused", "tuned"]
TOKENS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 50, 56, 57, 63, 65, 80, 100)
# W, H, T, D, G. Few windows have blocks of their own, which don't stay: up to some 400 windows and heads on an H200.
SHAPES = [
    (8, 4, 49, 32, 4),
    (1, 1, 49, 32, 1),  # one window
    (1000, 3, 49, 32, 1),
    (264, 5, 49, 32, 3),  # heads that no number of tables divides
    (600, 4, 49, 32, 600),  # a mask for each window
    (600, 4, 64, 32, 4),
    (128, 2, 144, 32, 64),
    (512, 2, 144, 32, 64),
    (3, 1, 144, 32, 3),
    (6, 2, 196, 32, 2),
    (2, 2, 256, 64, 1),
    (300, 2, 256, 64, 4),
    (2, 1, 300, 32, 1),
    (150, 4, 49, 64, 2),
    (150, 4, 49, 48, 2),
    (150, 4, 49, 16, 2),
    (50, 4, 49, 24, 2),
    (600, 4, 49, 24, 4),  # packs that fill a tile in part
    (300, 6, 64, 30, 4),  # words
    (300, 4, 49, 30, 4),
    (50, 4, 49, 2, 2),
    (300, 4, 33, 62, 4),
    (50, 4, 49, 27, 2),  # neither
    (3, 2, 144, 30, 3),
    (300, 2, 196, 32, 4),  # queries in parts
    (300, 2, 225, 32, 4),
    (300, 2, 256, 32, 4),
    (64, 6, 144, 32, 64),
    (64, 3, 49, 32, 64),
    *((windows, 2, tokens, 32, 4) for windows in (40, 240) for tokens in TOKENS),
    (300, 2, 128, 16, 2),
    (0, 4, 49, 32, 2),
]


def values_of(shape, **choices):
    return dict(zip(OP.symbols, shape, strict=True)) | {"bias": "yes", "mask": "shift"} | choices


# ---- The formula of the kernels of tiles.


def weights_of(scores, head, bands, far):
    """The weights of rows of scores (float32), band by band as attention_tiles.cuh takes them, before they are halves.

    far: the scaled score from which on the difference to the largest score comes first.
    """
    scale = np.float32(1.442695041 / math.sqrt(head))
    parts, largest, weights = np.split(scores, bands, 1), np.full((len(scores), 1), -np.inf, np.float32), []
    for part in parts:
        before, largest = largest, np.maximum(largest, np.fmax.reduce(part, 1, keepdims=True))
        base = np.where(largest == -np.inf, np.float32(0), largest)
        weights = [old * np.exp2((before - base) * scale) for old in weights]
        first = np.abs(base) > far / scale
        moved, zero = np.where(first, part - base, part), np.where(first, np.float32(0), base * scale)
        exact = moved.astype(np.float64) * np.float64(scale) - zero.astype(np.float64)  # a multiply-add
        weights.append(np.exp2(exact.astype(np.float32)))
    every = np.concatenate(weights, 1)
    return every / every.sum(1, keepdims=True)


@one_test("bands", [1, 3])
@one_test("size", [1.0, 1e3, 1e6, 1e12, 1e20, 3e38])
def test_weights_are_right_for_scores_of_any_size(size, bands):
    rng = np.random.default_rng(2)
    scores = (rng.uniform(-1, 1, (64, 48)) * size).astype(np.float32)
    scores[0], scores[1], scores[2, ::2], scores[3, :40] = size, -size, -np.inf, -np.inf
    scaled = scores.astype(np.float64) / math.sqrt(32)
    wide = np.exp(scaled - scaled.max(1, keepdims=True))
    wanted = wide / wide.sum(1, keepdims=True)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(weights_of(scores, 32, bands, 4096.0), wanted, rtol=1e-3, atol=1e-12)
        without = np.isclose(weights_of(scores, 32, bands, np.inf), wanted, rtol=1e-3, atol=1e-12).all()
    assert bool(without) == (size < 1e12)


@pytest.mark.parametrize("bands", [1, 3])
def test_weights_of_rows_without_an_answer_are_nan(bands):
    scores = np.zeros((3, 48), np.float32)
    scores[0], scores[1, 7], scores[2, 7] = -np.inf, np.inf, np.nan
    with np.errstate(all="ignore"):
        assert np.isnan(weights_of(scores, 32, bands, 4096.0)).all()


# ---- Torch's code and the check.


@one_test("dtype", DTYPES)
@one_test(("bias", "mask"), [("yes", "shift"), ("yes", "none"), ("no", "shift"), ("no", "none")])
def test_eager_is_right_on_the_cpu(trial, dtype, bias, mask):
    """It rounds scores to halves, so it may be inexact, as the harness lets libraries be."""
    made = trial(OP.name, "eager", dtype, **values_of((8, 2, 49, 32, 4), bias=bias, mask=mask))
    after = made.call()
    judged = comparer.judged(OP.check(made.ctx, SimpleNamespace(**vars(after), before=made.inputs)), leeway=8.0)
    assert judged.wrong is None


def enlarge(variant, q, k, size):
    """Make scores large. `unfused` rounds them to halves, so its scores are whole numbers times a power of 2.

    Of other scores the rounding decides which of two large ones is the larger. The check's bound is of the first order,
    and among many windows some element is further off.
    """
    if variant == "unfused":
        q.sign_(), k.sign_()
    q.mul_(size)


@one_test(
    ("variant", "size", "is_right"),
    [("unfused", 2.0**5, True), ("tuned", 30.0, False), ("unfused", 2.0**20, True), ("unfused", 2.0**40, True)],
)
def test_large_scores_of_unfused_are_halves(trial, variant, size, is_right):
    """Were they rounded, the check would tell it, as it does of the scores that `tuned` gets."""
    import torch

    made = trial(OP.name, "unfused", "bfloat16", **values_of((16, 2, 144, 32, 4)))
    t = made.inputs
    enlarge(variant, t.q, t.k, size)
    scores = (t.q.float() @ t.k.float().mT).bfloat16().float() * 32**-0.5 + t.bias.float()
    scores.view(-1, 4, 2, 144, 144).add_(t.mask.float()[:, None])
    out = torch.softmax(scores, -1).bfloat16().float() @ t.v.float()
    assert (made.complaint(out=out.bfloat16()) is None) == is_right


def test_the_check_sees_a_missing_mask_and_a_wrong_element(trial):
    with_mask = trial(OP.name, "eager", "float16", **values_of((8, 2, 16, 16, 4)))
    without = trial(OP.name, "eager", "float16", **values_of((8, 2, 16, 16, 4), mask="none"))
    assert with_mask.complaint(out=without.call().out) is not None
    found = with_mask.complaint_after_call(lambda t: t.out.view(-1)[1234].add_(1))
    assert found is not None
    assert "element 1234 is " in found


def test_torch_gives_nan_where_a_query_has_no_key(trial):
    made = trial(OP.name, "eager", "float16", **values_of((4, 2, 16, 16, 4)))
    made.inputs.mask[1, 5] = -math.inf
    assert made.complaint_after_call() is None
    assert int(made.call().out.isnan().any(-1).sum()) == 2


@pytest.mark.parametrize("size", [30, 4, 36])
def test_sdpa_fills_heads_that_arent_whole_packs(trial, monkeypatch, size):
    """No backend but math takes heads of 30."""
    from torch.nn import functional
    from torch.nn.attention import SDPBackend

    attention, heads = functional.scaled_dot_product_attention, []

    def noted(q, k, v, **options):
        heads.append((q.shape[-1], k.shape[-1], v.shape[-1]))
        return attention(q, k, v, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", noted)
    made = trial(OP.name, "sdpa_efficient", "float16", **values_of((8, 2, 49, size, 4)))
    given = Tensors(**vars(made.inputs), **module._merged(made.ctx, made.inputs))
    (out,) = module.by_sdpa(made.ctx, SDPBackend.MATH)(given)
    result = module._as_windows(made.ctx, Tensors(out=out))["out"]
    found = OP.check(made.ctx, SimpleNamespace(out=result, before=made.inputs))
    assert comparer.judged(found, leeway=8.0).wrong is None
    assert heads == [(-(-size // 8) * 8,) * 3]


def test_sdpa_and_flex_compute_the_same(trial):
    """Their own backends need a GPU; what they are given is the same."""
    from torch.nn.attention import SDPBackend

    made = trial(OP.name, "sdpa_efficient", "float16", **values_of((8, 2, 49, 32, 4)))
    given = Tensors(**vars(made.inputs), **module._merged(made.ctx, made.inputs))
    assert given.merged.shape == (1, 8, 49, 49)
    assert given.merged.stride(2) % 8 == 0
    (out,) = module.by_sdpa(made.ctx, SDPBackend.MATH)(given)
    t = made.inputs
    for result in (module._as_windows(made.ctx, Tensors(out=out))["out"], flexed(made.ctx, t)):
        found = OP.check(made.ctx, SimpleNamespace(out=result, before=t))
        assert comparer.judged(found, leeway=8.0).wrong is None


def flexed(ctx, t):
    return module.flexible(ctx)(t.q, t.k, t.v, t.bias, t.mask)


def test_work_and_traffic():
    values = values_of((8, 4, 49, 32, 4)) | {"world": 1}
    data, scores = 8 * 4 * 49 * 32 * 2, 8 * 4 * 49 * 49 * 2
    once = (3 * data + (4 + 4) * 49 * 49 * 2, data)
    assert OP.work_of(values, "float16") == Work(
        *once, flops=(("float16", 4 * 8 * 4 * 49 * 49 * 32),), items=8, item="windows"
    )
    moved = {name: OP.traffic_of(variant, values, "float16") for name, variant in OP.variants.items()}
    assert moved["tuned"] == moved["sdpa_cudnn"] == Traffic(*once)
    assert moved["unfused"] == Traffic(once[0] + 2 * scores, once[1] + 2 * scores)
    assert OP.work_of(values | {"bias": "no", "mask": "none"}, "float16").read == 3 * data
    assert dict(OP.work_of(values, "bfloat16").flops) == {"bfloat16": 4 * 8 * 4 * 49 * 49 * 32}


# ---- The kernels.


def made(placed, dtype, shape, offsets=(0, 0, 0, 0, 0), **choices):
    """The inputs of a case on the GPU, each so many elements past an aligned address."""
    import torch

    values = values_of(shape, **choices)
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    given = {}
    for tensor, offset in zip(OP.inputs, offsets, strict=True):
        (extent,) = tensor.shapes(values)
        there = placed(extent, dtype, offset).tensor.normal_(generator=generator)
        if tensor.name == "mask" and len(there):
            there.copy_(shared.shift_mask(shape[4], shape[2]))
        given[tensor.name] = there
    return given


def complaint(given, out, dtype):
    """What the op's check says of an output."""
    ctx = SimpleNamespace(case=SimpleNamespace(dtype=dtype))
    return comparer.complaint(OP.check(ctx, SimpleNamespace(before=SimpleNamespace(**given), out=out)))


def run_and_check(launch, placed, variant, dtype, shape, offsets=(0,) * 6, change=lambda _: None, **choices):
    given = made(placed, dtype, shape, offsets[:5], **choices)
    change(given)
    out = placed(shape[:4], dtype, offsets[5])
    launch(OP.name, variant, dtype, values_of(shape, **choices), **given, out=out)
    assert complaint(given, out.tensor, dtype) is None, (shape, offsets, choices)
    return out.tensor


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, variant, dtype):
    for shape in SHAPES:
        run_and_check(launch, placed, variant, dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(("bias", "mask"), [("yes", "none"), ("no", "shift"), ("no", "none")])
def test_without_a_bias_or_a_mask(launch, placed, variant, bias, mask):
    for shape in (
        (64, 4, 49, 32, 8),
        (200, 4, 49, 32, 8),
        (1001, 4, 49, 32, 1),
        (200, 3, 64, 32, 8),
        (700, 2, 144, 32, 1),
        (16, 2, 196, 32, 4),
        (300, 2, 196, 32, 4),
    ):
        run_and_check(launch, placed, variant, "bfloat16", shape, bias=bias, mask=mask)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant):
    for tokens, place in itertools.product((49, 64, 144), range(6)):
        offsets = [0] * 6
        offsets[place] = 1
        run_and_check(launch, placed, variant, "float16", (240, 2, tokens, 32, 4), offsets)
        offsets[place] = 2
        run_and_check(launch, placed, variant, "float16", (240, 2, tokens, 30, 4), offsets)
    run_and_check(launch, placed, variant, "float16", (24, 2, 49, 32, 4), (8, 16, 24, 1, 3, 8))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("tokens", [49, 64, 144, 196, 256])
def test_rows_and_columns_that_are_masked(launch, placed, variant, dtype, tokens):
    """A query without any key gives NaN, and no other does; a band of keys without weight changes nothing."""
    import torch

    def change(given):
        mask = given["mask"]
        mask[1, 5] = -math.inf
        mask[2, :, : tokens - 3] = -math.inf
        mask[3, :, 3:] = -math.inf
        if mask.dtype == torch.bfloat16:
            mask[0, 7] = torch.finfo(mask.dtype).min  # as some models write it: all keys have the same weight

    for windows, size in ((16, 32), (400, 30), (400, 32)):  # few have blocks of their own
        shape = (windows, 2, tokens, size, 4)
        out = run_and_check(launch, placed, variant, dtype, shape, change=change, bias="no")
        assert int(out.isnan().any(-1).sum()) == windows // 4 * 2


@pytest.mark.gpu
@pytest.mark.parametrize("size", [2.0**5, 2.0**20, 2.0**40])
@pytest.mark.parametrize("variant", OURS)
def test_large_scores(launch, placed, variant, size):
    def change(given):
        enlarge(variant, given["q"], given["k"], size)

    for windows, tokens in itertools.product((16, 400), (49, 64, 144, 256)):
        run_and_check(launch, placed, variant, "bfloat16", (windows, 2, tokens, 32, 4), change=change)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(64, 4, 49, 32, 8), (200, 4, 49, 32, 8), (200, 4, 49, 30, 8), (200, 2, 256, 30, 8)])
def test_infinite_values_of_other_tokens_stay_away(launch, placed, shape):
    """What lies beside a row in shared memory, of others or of an earlier window, has no part in a window."""
    import torch

    given = made(placed, "float16", shape)
    given["v"][1::2] = math.inf
    given["k"][1::2] = math.nan
    out = placed(shape[:4], "float16")
    launch(OP.name, "tuned", "float16", values_of(shape), **given, out=out)
    part = {name: value[::2] if name in "qkv" else value for name, value in given.items()}
    part["mask"] = part["mask"][::2]
    assert complaint(part, out.tensor[::2], "float16") is None
    assert bool(torch.isnan(out.tensor[1::2]).all())


@pytest.mark.gpu
def test_a_result_repeats_bit_by_bit(launch, placed):
    import torch

    outs = [run_and_check(launch, placed, "tuned", "float16", (600, 4, 49, 32, 4)) for _ in range(3)]
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", ["scalar", "fused", "tuned"])
@pytest.mark.parametrize("tokens", [49, 144])
def test_more_than_2_to_31_elements(launch, variant, tokens):
    import torch

    windows = (2**31 // (4 * tokens * 32) // 64 + 1) * 64
    shape = (windows, 4, tokens, 32, 64)
    values = values_of(shape)
    given = {name: torch.empty(shape[:4], device="cuda", dtype=torch.float16).normal_() for name in "qkv"}
    given["bias"] = torch.randn(4, tokens, tokens, device="cuda").half()
    given["mask"] = shared.shift_mask(64, tokens).cuda().half()
    out = torch.full(shape[:4], math.nan, device="cuda", dtype=torch.float16)
    launch(OP.name, variant, "float16", values, **given, out=out)
    # Images at the start, in the middle and at the end stand for the rest.
    for first in (0, windows // 128 * 64, windows - 64):
        part = {name: value[first : first + 64] if name in "qkv" else value for name, value in given.items()}
        assert complaint(part, out[first : first + 64], "float16") is None, first
    assert not bool(out.isnan().any())
