"""The permutation of heads on a GPU, bit by bit, at the sizes and addresses that break kernels."""

from __future__ import annotations

import math

import pytest

from harness import cuda
from harness.collection.ops.layouts import permute
from harness.collection.ops.layouts.permute import OP, packs_of_thread
from harness.model import Case
from tests.one_test import one_test

SYMBOLS = "BSHD"
COMPILED = [
    dict(zip(SYMBOLS, shape, strict=True))
    for shape in [
        (64, 512, 12, 64),
        (64, 197, 12, 49),
        (64, 128, 12, 6),
        (2, 100, 12, 2049),
        (1, 9, 3, 64),
        (1, 384, 12, 64),
        (64, 128, 3, 50),
        (2**12, 512, 16, 80),
    ]
]
OURS = ["naive", "packed", "tiled", "tuned"]
SHAPES = [
    (0, 3, 5, 4),
    (3, 0, 5, 4),
    (3, 5, 4, 0),
    (1, 1, 1, 1),
    (2, 1, 5, 7),  # the same order
    (2, 5, 1, 7),
    (2, 2, 2, 1),  # a transpose
    (3, 100, 12, 1),
    (3, 101, 5, 3),  # rows of less than a sector
    (3, 100, 12, 4),
    (3, 100, 12, 6),
    (2, 33, 4, 15),
    (2, 128, 12, 64),  # whole packs
    (2, 197, 12, 64),
    (2, 50, 3, 80),
    (3, 384, 16, 32),
    (2, 128, 12, 50),  # words
    (2, 128, 12, 44),
    (2, 197, 12, 49),  # odd
    (5, 33, 3, 197),
    (2, 48, 12, 49),  # rows of y are whole sectors
    (3, 31, 4, 33),
    (4, 16, 5, 17),
    (2, 300, 70, 21),  # a row of x is too long for shared memory
    (1, 9, 7, 2047),
    (1, 9, 7, 2049),
    (1, 2, 3, 5000),
]


def unsupported(variant, dtype, shape):
    reason = OP.variants[variant].unsupported
    return reason and reason(Case("permute", variant, dtype, tuple(zip(SYMBOLS, shape, strict=True))))


def run_and_check(launch, placed, any_bits, variant, dtype, shape, x_offset=0, y_offset=0):
    import torch

    b, s, h, d = shape
    x = any_bits(math.prod(shape), dtype, x_offset).view(shape)
    y = placed((b, h, s, d), dtype, y_offset)
    launch("permute", variant, dtype, dict(zip(SYMBOLS, shape, strict=True)), x=x, y=y)
    assert torch.equal(y.tensor.view(x.dtype), x.permute(0, 2, 1, 3)), (shape, x_offset, y_offset)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, any_bits, variant, dtype):
    for shape in SHAPES:
        if not unsupported(variant, dtype, shape):
            run_and_check(launch, placed, any_bits, variant, dtype, shape)


@pytest.mark.gpu
def test_packs_of_small_tensors(launch, placed, any_bits, monkeypatch, dtype):
    """By the rule, few packs go by parts of heads."""
    monkeypatch.setattr(permute, "_FEW_PACKS", 0)
    for shape in SHAPES:
        run_and_check(launch, placed, any_bits, "tuned", dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, any_bits, variant, dtype):
    for shape in [
        (2, 2, 2, 1),
        (2, 33, 12, 64),
        (2, 33, 12, 6),
        (2, 33, 5, 50),
        (2, 33, 12, 49),
        (2, 48, 12, 49),
        (1, 5, 3, 2050),
    ]:
        if unsupported(variant, dtype, shape):
            continue
        for offsets in [(1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (4, 4), (3, 5), (8, 8)]:
            run_and_check(launch, placed, any_bits, variant, dtype, shape, *offsets)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("shape", [(5500, 512, 12, 64), (1001, 3700, 12, 49), (3_000_000, 30, 8, 3)], ids=str)
def test_more_than_2_to_31_elements(launch, placed, any_bits, variant, shape):
    assert math.prod(shape) > 2**31
    if unsupported(variant, "float16", shape):
        pytest.skip("no packs")
    run_and_check(launch, placed, any_bits, variant, "float16", shape)


def test_eager_gives_the_reference_on_the_cpu(trial, dtype):
    for shape in [(2, 3, 5, 7), (2, 1, 5, 7), (2, 3, 1, 7)]:
        eager = trial("permute", "eager", dtype, **dict(zip(SYMBOLS, shape, strict=True)))
        assert eager.complaint_after_call() is None
    eager = trial("permute", "eager", dtype, B=2, S=6, H=6, D=5)
    assert eager.complaint(y=eager.inputs.x)


@one_test(
    ("dtype", "d", "reason"),
    [
        ("float16", 64, None),
        ("float16", 50, None),  # two halves as one element
        ("float16", 49, "more than 2 bytes"),
        ("float32", 50, None),
        ("float32", 49, "more than 4 bytes"),
    ],
)
def test_packs_must_divide_rows(dtype, d, reason):
    found = unsupported("packed", dtype, (2, 128, 12, d))
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(("element", "index"), [("unsigned short", "unsigned"), ("uint2", "unsigned long long")])
def test_a_pack_takes_as_many_divisions_as_an_element(ptx, element, index):
    """So four halves at a time take a quarter of the index arithmetic."""
    text = ptx("permute.cu", "permute_naive", {"ELEMENT": element, "INDEX": index})
    bits = 32 if index == "unsigned" else 64
    # The compiler adds a division of 32 bits to each of 64 bits, for numbers that fit.
    assert text.count(f"div.u{bits}") == 3
    assert text.count("rem.u") == 0


@pytest.mark.parametrize(
    ("element", "unroll", "load"), [("uint4", 1, "v4.u32"), ("uint2", 8, "v2.u32"), ("unsigned", 8, "u32")]
)
def test_all_loads_of_a_thread_are_under_way_before_a_store(ptx, element, unroll, load):
    text = ptx("permute.cu", "permute_packs", {"ELEMENT": element, "INDEX": "unsigned", "UNROLL": unroll})
    assert text.count(f"ld.global.nc.{load}") == unroll
    assert text.rindex("ld.global.nc") < text.index("st.global")


@one_test(("packs", "size", "unroll"), [(2**24, 16, 1), (2**24, 8, 8), (2**24, 2, 8), (2**16, 4, 1), (1, 4, 1)])
def test_a_thread_moves_several_narrow_packs_where_there_are_many(packs, size, unroll):
    assert packs_of_thread(packs, size, 132) == unroll


def test_few_packs_go_by_parts_of_heads_where_blocks_would_be_full(monkeypatch):
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)
    tuning = OP.variants["tuned"].tuning

    def case(*shape, dtype="float16"):
        return Case("permute", "tuned", dtype, tuple(zip(SYMBOLS, shape, strict=True)))

    heads, packs = {"unroll": 1, "heads": 1}, {"unroll": 1, "heads": 0}
    assert [tuning.rule(case(*shape)) for shape in ((1, 384, 12, 64), (2, 77, 8, 64), (8, 49, 12, 32))] == [heads] * 3
    # Many packs, and heads of which a block would have too few.
    assert [tuning.rule(case(*shape)) for shape in ((64, 512, 12, 64), (40, 15, 12, 32))] == [packs] * 2
    assert tuning.rule(case(1, 384, 12, 49)) is None
    assert tuning.obstacle(case(64, 512, 12, 64), heads) is None
    assert "one pack" in tuning.obstacle(case(1, 384, 12, 64), {**heads, "unroll": 2})
    assert "nothing to do" in tuning.obstacle(case(40, 15, 12, 32), heads)
    assert "so many heads" in tuning.obstacle(case(2**16, 64, 2, 64), heads)
    assert "so many heads" in tuning.obstacle(case(2, 64, 2**16, 64), heads)
    assert "32 bits" in tuning.obstacle(case(2**15, 2**12, 8, 16), heads)
