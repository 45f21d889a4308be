"""Bias kernels on a GPU, against exact sums, at the sizes and addresses that break kernels."""

from __future__ import annotations

import math

import pytest

from harness.collection.ops.bias.bias_add import OP
from harness.model import Case
from tests.one_test import one_test

SYMBOLS = ("outer", "bias", "inner")
# Below and from 2^31 elements on.
COMPILED = [dict(zip(SYMBOLS, shape, strict=True)) for shape in [(2, 64, 3), (2**29, 64, 3)]]
OURS = ["index64", "index32", "index32_early", "fastdiv", "inner1", "outer1", "tuned"]
SHAPES = [
    (0, 3, 5),  # empty, in each way
    (3, 0, 5),
    (3, 5, 0),
    (1, 1, 1),  # one element
    (1, 5, 1),  # fewer elements than a pack
    (33, 64, 1),  # packs of biases
    (33, 129, 1),  # packs at every offset, and over the ends of rows
    (257, 33, 1),  # two words around a pack fit into the biases, just
    (257, 17, 1),
    (300, 15, 1),  # they don't
    (1001, 7, 1),
    (1001, 3, 1),
    (65, 11, 2),  # rows shorter than a pack: more than two biases in it
    (65, 11, 3),
    (67, 5, 4),
    (65, 11, 7),
    (65, 6, 8),  # one bias a pack
    (33, 6, 9),  # two
    (5, 3, 49),
    (1, 131, 49),  # outer 1
    (1, 64, 24),
    (1, 131, 1),
    (29, 1, 7),  # one bias for all
    (129, 1, 1),
    (1, 1, 1001),
    (3, 331, 337),  # many blocks, odd everything
    (409, 1023, 1),
]


def unsupported(variant, dtype, shape):
    reason = OP.variants[variant].unsupported
    return reason and reason(Case("bias_add", variant, dtype, tuple(zip(SYMBOLS, shape, strict=True))))


def expected(x, bias):
    """A sum of two halves that is rounded to float and then to half is as if rounded once."""
    return (x.float() + bias.float().view(1, -1, 1)).to(x.dtype)


def check(launch, placed, variant, dtype, shape, offsets=(0, 0, 0)):
    import torch

    x, bias, y = (placed(s, dtype, offset) for s, offset in zip((shape, shape[1], shape), offsets, strict=True))
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    x.tensor.normal_(generator=generator)
    bias.tensor.normal_(generator=generator)
    symbols = dict(zip(SYMBOLS, shape, strict=True))
    launch("bias_add", variant, dtype, symbols, x=x, bias=bias, y=y)
    assert torch.equal(y.tensor, expected(x.tensor, bias.tensor)), (shape, offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, variant, dtype):
    for shape in SHAPES:
        if not unsupported(variant, dtype, shape):
            check(launch, placed, variant, dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for shape in ((9, 40, 1), (9, 41, 1), (1, 13, 1), (5, 3, 7), (3, 5, 8), (1, 5, 49)):
        if unsupported(variant, dtype, shape):
            continue
        for offset in (1, 2, 3, 4, 5, 7):
            for offsets in ((offset, 0, 0), (0, offset, 0), (0, 0, offset), (offset, offset, offset)):
                check(launch, placed, variant, dtype, shape, offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_special_values(launch, special, variant, dtype):
    import torch

    every = special(dtype)
    # Each value meets each one: a bias for each column, for the kernel that knows nothing else, or for each row.
    count = len(every)
    shape = (count, count, 1) if variant == "inner1" else (1, count, count)
    x = (every.repeat_interleave(count) if variant == "inner1" else every.repeat(count)).view(shape)
    y = torch.full_like(x, 7)
    launch("bias_add", variant, dtype, dict(zip(SYMBOLS, shape, strict=True)), x=x, bias=every, y=y)
    wanted = expected(x, every)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(y.signbit() & (y == 0), wanted.signbit() & (wanted == 0))


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", ["index64", "tuned"])
@pytest.mark.parametrize(
    "shape",
    [(2**23 + 1, 256, 1), (2**21 + 1, 1025, 1), (2**24 + 1, 8, 16), (2**20 + 1, 41, 50), (43826197, 7, 7)],
    ids=str,
)
def test_more_than_2_to_31_elements(launch, variant, shape):
    import torch

    assert math.prod(shape) > 2**31
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.empty(shape, device="cuda", dtype=torch.float16).normal_(generator=generator)
    bias = torch.randn(shape[1], generator=generator, device="cuda", dtype=torch.float16)
    y = torch.full_like(x, math.nan)
    launch("bias_add", variant, "float16", dict(zip(SYMBOLS, shape, strict=True)), x=x, bias=bias, y=y)
    # Slices at the start, around 2**31 elements and at the end stand for the rest.
    for first in (0, 2**31 // x[0].numel() - 50, shape[0] - 100):
        part = slice(first, first + 100)
        assert torch.equal(y[part], expected(x[part], bias)), first
    assert not bool(y.isnan().any())


def test_eager_gives_the_reference_on_the_cpu(trial, dtype):
    eager = trial("bias_add", "eager", dtype, outer=50, bias=30, inner=7)
    assert eager.complaint_after_call() is None
    assert eager.complaint(y=eager.inputs.x)


@one_test(
    ("variant", "shape", "reason"),
    [
        ("index32", (2**21, 1024, 1), "fewer than 2^31"),
        ("index32", (2**21 - 1, 1024, 1), None),
        ("index32_early", (2**21, 1024, 1), "fewer than 2^31"),
        ("inner1", (2, 3, 4), "inner = 1"),
        ("inner1", (2**21, 1024, 1), "fewer than 2^31"),
        ("inner1", (2, 3, 1), None),
        ("outer1", (2, 3, 4), "outer = 1"),
        ("outer1", (1, 2, 2**30), "fewer than 2^31"),
        ("outer1", (1, 3, 4), None),
    ],
)
def test_what_a_variant_cannot_do(variant, shape, reason):
    found = unsupported(variant, "float16", shape)
    assert found is None if reason is None else reason in found


def test_a_branch_keeps_the_load_of_x_before_the_divisions(ptx):
    """In a block of its own: within a block the compiler puts the load where it likes, whatever the source says."""

    def blocks(entry):
        text = ptx("bias_add.cu", entry, {"SCALAR": "float"})
        return [[name for name in ("ld.global", "div.u32", "rem.u32") if name in part] for part in text.split("bra")]

    assert blocks("bias_add_early_index32") == [[], ["ld.global"], ["ld.global", "div.u32", "rem.u32"]]
    assert blocks("bias_add_index32") == [[], ["ld.global", "div.u32", "rem.u32"]]
