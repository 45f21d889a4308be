"""window_attention_packed: the look-up, torch's code, and its kernels on a GPU."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest

from harness.collection.ops.attention import _window_attention as shared
from harness.collection.ops.attention import window_attention_packed as module
from harness.collection.ops.attention.window_attention_packed import OP
from harness.model import Traffic, Work
from harness.ops import Tensors, comparer
from tests.one_test import one_test

COMPILED = [
    *({"W": 512, "H": heads, "side": 7, "D": 32, "G": 64, "mask": "shift"} for heads in (1, 2, 3, 4)),
    *({"W": 512, "H": 4, "side": side, "D": size} for side, size in ((7, 32), (8, 32), (8, 64), (12, 32), (14, 32))),
    {"W": 128, "H": 4, "side": 18, "D": 24},
    {"W": 512, "H": 6, "side": 8, "D": 30, "G": 64, "mask": "shift"},
    {"W": 64, "H": 3, "side": 7, "D": 32, "G": 64, "mask": "shift"},
]
LOCAL_MEMORY = ("unfused",)  # it has none: but its products need real tensors, and its kernel is in every compilation
# 18 warps of 144 tokens have 96 registers each; with nine warps none would spill. Also a few bytes on sm_100.
SPILLED = 32
DTYPES = shared.DTYPES
OURS = ["unfused", "scalar", "fused", "tuned"]
# W, H, side, D, G.
SHAPES = [
    (8, 4, 7, 32, 4),
    (1, 1, 7, 32, 1),
    (1000, 3, 7, 32, 1),
    (264, 5, 7, 32, 3),
    (264, 6, 7, 32, 3),
    (600, 4, 7, 32, 600),
    (600, 4, 8, 32, 4),
    (64, 2, 12, 32, 16),
    (400, 2, 12, 32, 16),
    (300, 2, 14, 32, 2),
    (300, 2, 16, 32, 4),
    (2, 2, 16, 64, 1),
    (300, 6, 8, 30, 4),
    (2, 1, 18, 32, 1),
    (150, 4, 7, 64, 2),
    (150, 4, 7, 48, 2),
    (150, 4, 7, 16, 2),
    (150, 4, 7, 24, 2),
    *((240, 2, side, 32, 4) for side in (1, 2, 3, 4, 5, 6, 9, 10)),
    (0, 4, 7, 32, 2),
]


def values_of(shape, **choices):
    return dict(zip(OP.symbols, shape, strict=True)) | {"mask": "shift"} | choices


# ---- The look-up, torch's code and the check.


def test_the_index_is_swin_s():
    import torch

    for side in (1, 2, 7):
        index = module.relative_index(side).view(side * side, side * side)
        for (row, column), (other_row, other_column) in itertools.product(
            itertools.product(range(side), repeat=2), repeat=2
        ):
            want = (row - other_row + side - 1) * (2 * side - 1) + column - other_column + side - 1
            assert index[row * side + column, other_row * side + other_column] == want
        assert sorted(set(index.flatten().tolist())) == list(range((2 * side - 1) ** 2))
    table = torch.arange(3.0 * 9).view(9, 3)
    bias = module.looked_up(table, module.relative_index(2), 4)
    assert bias.shape == (3, 4, 4)
    assert bias[1, 0, 0] == table[4, 1]
    assert bias[2, 0, 3] == table[0, 2]


@one_test("dtype", DTYPES)
@one_test("mask", ["shift", "none"])
def test_eager_is_right_on_the_cpu(trial, dtype, mask):
    made = trial(OP.name, "eager", dtype, **values_of((8, 2, 7, 32, 4), mask=mask))
    after = made.call()
    judged = comparer.judged(OP.check(made.ctx, SimpleNamespace(**vars(after), before=made.inputs)), leeway=8.0)
    assert judged.wrong is None


def test_the_order_of_heads_and_tokens(trial):
    """window_attention of the parts gives the same, with heads and tokens exchanged."""
    import torch

    made = trial(OP.name, "eager", "float16", **values_of((4, 3, 2, 16, 2)))
    t = made.inputs
    given = Tensors(**vars(t), **module._look_up(made.ctx, t))
    q, k, v = (t.qkv[:, :, i].transpose(1, 2) for i in range(3))
    want = shared.by_torch(q, k, v, given.bias, t.mask)
    got = made.call().out
    assert torch.equal(got.view(4, 4, 3, 16), want.transpose(1, 2))


def test_the_check_sees_exchanged_heads(trial):
    import torch

    made = trial(OP.name, "eager", "float16", **values_of((8, 2, 4, 16, 4)))
    out = made.call().out
    assert made.complaint(out=torch.cat(out.chunk(2, dim=-1)[::-1], dim=-1)) is not None


def test_work_and_traffic():
    values = values_of((8, 4, 7, 32, 4)) | {"world": 1}
    data, scores, bias, mask = 8 * 4 * 49 * 32 * 2, 8 * 4 * 49 * 49 * 2, 4 * 49 * 49 * 2, 4 * 49 * 49 * 2
    read = 3 * data + 13 * 13 * 4 * 2 + mask
    flops = (("float16", 4 * 8 * 4 * 49 * 49 * 32),)
    assert OP.work_of(values, "float16") == Work(read, data, flops=flops, items=8, item="windows")
    moved = {name: OP.traffic_of(variant, values, "float16") for name, variant in OP.variants.items()}
    assert moved["tuned"] == moved["fused"] == Traffic(3 * data + bias + mask, data)
    index = 49 * 49 * 8
    assert moved["unfused"] == Traffic(
        read + 4 * data + 2 * scores + 2 * bias + index, 5 * data + 2 * scores + 2 * bias
    )


# ---- The kernels.


def complaint(given, out, dtype, shape):
    """What the op's check says of an output."""
    ctx = SimpleNamespace(case=SimpleNamespace(dtype=dtype), s=SimpleNamespace(**values_of(shape)))
    return comparer.complaint(OP.check(ctx, SimpleNamespace(before=SimpleNamespace(**given), out=out)))


def run_and_check(launch, placed, variant, dtype, shape, offsets=(0, 0, 0, 0), **choices):
    import torch

    values = values_of(shape, **choices)
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    before = {}
    for tensor, offset in zip(OP.inputs, offsets, strict=False):
        (extent,) = tensor.shapes(values)
        there = placed(extent, dtype, offset).tensor.normal_(generator=generator)
        if tensor.name == "mask" and len(there):
            there.copy_(shared.shift_mask(len(there), shape[2] ** 2))
        before[tensor.name] = there
    ctx = SimpleNamespace(s=SimpleNamespace(**values), device=torch.device("cuda"))
    ahead = {} if variant == "unfused" else module._look_up(ctx, SimpleNamespace(**before))
    out = placed(OP.outputs[0].shapes(values)[0], dtype, offsets[3])
    launch(OP.name, variant, dtype, values, **before, **ahead, out=out)
    assert complaint(before, out.tensor, dtype, shape) is None, (shape, offsets, choices)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, variant, dtype):
    for shape in SHAPES:
        run_and_check(launch, placed, variant, dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_without_a_mask(launch, placed, variant):
    for shape in (
        (64, 4, 7, 32, 8),
        (1001, 4, 7, 32, 1),
        (400, 24, 7, 32, 1),
        (200, 3, 8, 32, 8),
        (16, 2, 12, 32, 4),
        (300, 2, 14, 32, 4),
    ):
        run_and_check(launch, placed, variant, "bfloat16", shape, mask="none")


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant):
    for side, offsets in itertools.product(
        (7, 8, 12), ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (8, 1, 3, 16))
    ):
        run_and_check(launch, placed, variant, "float16", (240, 2, side, 32, 4), offsets)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", ["scalar", "fused", "tuned"])
def test_more_than_2_to_31_elements(launch, variant):
    import torch

    shape = ((2**31 // (4 * 49 * 32) // 64 + 1) * 64, 4, 7, 32, 64)
    values = values_of(shape)
    qkv = torch.empty(module._qkv_shape(values), device="cuda", dtype=torch.float16).normal_()
    table = torch.randn(module._table_shape(values), device="cuda").half()
    mask = shared.shift_mask(64, 49).cuda().half()
    bias = module.looked_up(table, module.relative_index(7, "cuda"), 49)
    out = torch.full(module._out_shape(values), math.nan, device="cuda", dtype=torch.float16)
    launch(OP.name, variant, "float16", values, qkv=qkv, bias=bias, mask=mask, out=out)
    # Images at the start, in the middle and at the end stand for the rest.
    for first in (0, shape[0] // 128 * 64, shape[0] - 64):
        part = {"qkv": qkv[first : first + 64], "table": table, "mask": mask}
        assert complaint(part, out[first : first + 64], "float16", (64, *shape[1:])) is None, first
    assert not bool(out.isnan().any())
