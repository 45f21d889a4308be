"""The backward of softmax: exactly where sums are exact, at the sizes and addresses that break kernels."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.collection.ops.chip import H200
from harness.collection.ops.rows.softmax_grad import OP, in_shared_memory
from harness.model import Case, Traffic, Work
from tests.one_test import one_test

# Each size of `registers`; tiles, warps, blocks, clusters, whole packs and not, a few rows and many.
COMPILED = [
    {"M": rows, "N": columns}
    for rows, columns in [
        (1024, 49),
        (1024, 256),
        (1024, 257),
        (1024, 1023),
        (1024, 4096),
        (1024, 8192),
        (1024, 16384),
        (1024, 131072),
        (8, 50257),
        (512, 524288),  # dy in shared memory, for halves and, at half of the length, for floats
        (512, 262144),
    ]
]
OURS = ["two_pass", "registers", "tuned"]
SHAPES = [
    (0, 8),  # no rows
    (1, 1),  # one element
    (5003, 1),
    (1000, 3),  # rows shorter than a pack
    (133, 49),  # several rows a tile
    (9, 197),  # a warp a row of a tile
    (1, 8),  # one pack of halves, two of floats
    (131, 8),
    (77, 256),  # one row a warp
    (131, 257),
    (19, 1000),
    (3, 1000),
    (7, 1023),  # rows that begin inside of packs
    (301, 4096),  # a block a row
    (3, 8191),
    (135, 16384),  # more rows than multiprocessors
    (1, 16384),  # fewer: clusters
    (3, 50257),
    (2, 131072),
    (1, 262144),
    (2, 151936),  # floats, and more halves, with dy in shared memory
    (3, 262152),
    (2, 524288),
    (2, 262147),  # too long for registers
    (1, 524296),  # too long for shared memory, too
]


@one_test(
    ("columns", "itemsize", "cut"),
    [
        (151_936, 4, (5, 960)),
        (262_144, 4, (8, 1024)),
        (524_288, 2, (8, 1024)),
        (262_152, 2, (5, 832)),
        (8, 4, (1, 32)),
        (262_148, 4, None),  # a pack more than threads can have
        (151_937, 4, None),  # rows begin inside of packs
        (0, 4, None),
    ],
)
def test_long_rows_lie_in_shared_memory(columns, itemsize, cut):
    assert in_shared_memory(columns, itemsize, H200) == cut
    assert in_shared_memory(columns, itemsize, replace(H200, clusters=False)) is None
    if cut:
        kept, threads = cut
        assert 8 * kept * threads * 16 >= columns * itemsize
        assert in_shared_memory(columns, itemsize, replace(H200, shared=16 * kept * threads)) is None


def unsupported(variant, dtype, shape):
    reason = OP.variants[variant].unsupported
    return reason and reason(Case("softmax_grad", variant, dtype, tuple(zip("MN", shape, strict=True))))


def small_integers(shape, seed=0):
    """Integers, dy of -4 to 4 and y of 0 to 3: products, sums and dx are exact in float32, though y is no softmax."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed + math.prod(shape))
    dy = torch.randint(-4, 5, shape, generator=generator, device="cuda", dtype=torch.int8)
    y = torch.randint(0, 4, shape, generator=generator, device="cuda", dtype=torch.int8)
    return dy, y


def expected(dy, y):
    """Dx in float64."""
    dy, y = dy.double(), y.double()
    return y * (dy - (dy * y).sum(-1, keepdim=True))


def check(launch, placed, variant, dtype, shape, offsets=(0, 0, 0)):
    import torch

    dy, y, dx = (placed(shape, dtype, offset) for offset in offsets)
    for to, values in zip((dy, y), small_integers(shape), strict=True):
        to.tensor.copy_(values)
    launch("softmax_grad", variant, dtype, dict(zip("MN", shape, strict=True)), dy=dy, y=y, dx=dx)
    assert torch.equal(dx.tensor, expected(dy.tensor, y.tensor).to(dx.tensor.dtype)), (shape, offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, variant, dtype):
    for shape in SHAPES:
        if not unsupported(variant, dtype, shape):
            check(launch, placed, variant, dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_shapes_in_bfloat16(launch, placed, variant):
    """Few shapes are enough: bfloat16 differs from float16 only in how numbers are widened and rounded."""
    for shape in ((133, 49), (19, 1000), (7, 1023), (3, 50257)):
        if not unsupported(variant, "bfloat16", shape):
            check(launch, placed, variant, "bfloat16", shape)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for shape in ((65, 49), (5, 1000), (3, 1023)):
        for offset in (1, 2, 4, 7):
            for offsets in ((offset, 0, 0), (0, offset, 0), (0, 0, offset), (offset, offset, offset), (3, offset, 1)):
                check(launch, placed, variant, dtype, shape, offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4096, 49), (2048, 1000), (513, 1023), (135, 16384), (2, 131072)], ids=str)
@pytest.mark.parametrize("variant", OURS)
def test_real_softmaxes(trial, variant, dtype, shape):
    if not unsupported(variant, dtype, shape):
        sizes = dict(zip("MN", shape, strict=True))
        assert trial("softmax_grad", variant, dtype, device="cuda", **sizes).complaint_after_call() is None


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [49, 1000, 1023])
@pytest.mark.parametrize("variant", OURS)
def test_special_values(launch, special, variant, dtype, columns):
    """Rows of y are even, have a single 1, or have zeros; each meets each special value at each end of dy."""
    import torch

    kind = getattr(torch, dtype)
    x = torch.zeros(4, columns, device="cuda", dtype=kind)
    x[1], x[1, 3] = -math.inf, 5  # one finite value
    x[2, ::2] = -math.inf
    x[3] = -math.inf  # a row of NaN
    rows, values = torch.cartesian_prod(torch.arange(4), torch.arange(12)).unbind(1)
    y = torch.softmax(x, -1)[rows]
    dy = torch.linspace(-2, 2, columns, device="cuda", dtype=kind).repeat(len(rows), 1)
    dy[:, 3] = dy[:, -1] = special(dtype)[values]
    dy = torch.cat([dy, dy.flip(1), dy.where(dy == dy[:, -1:], 1)])  # the last: equal values but for two
    y = y.repeat(3, 1)
    dx = torch.full_like(y, 7)
    launch("softmax_grad", variant, dtype, {"M": y.shape[0], "N": columns}, dy=dy, y=y, dx=dx)
    # Sums whose largest parts don't cancel are off by a few of their units; a half's rounding is added.
    want = expected(dy, y)
    size = (dy * y).double().abs()
    allowed = 2.0**-20 * (y.double() * size.sum(-1, keepdim=True) + size).nan_to_num(0.0, 0.0)
    close = (dx.double() - want).abs() <= allowed + torch.finfo(kind).eps * want.abs() + torch.finfo(kind).tiny
    same = (dx.double() == want) | (dx.isnan() & want.isnan())
    assert bool(torch.where(want.isfinite(), close, same).all())


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize(("variant", "columns"), [("two_pass", 1024), ("registers", 1025), ("tuned", 1024)])
def test_more_than_2_to_31_elements(launch, variant, columns):
    import torch

    shape = 2**21 + 1, columns
    assert math.prod(shape) > 2**31
    dy, y = (torch.empty(shape, device="cuda", dtype=torch.float16) for _ in "dy")
    for to, values in zip((dy, y), small_integers(shape), strict=True):
        to.copy_(values)
    dx = torch.full_like(y, math.nan)
    launch("softmax_grad", variant, "float16", dict(zip("MN", shape, strict=True)), dy=dy, y=y, dx=dx)
    # Slices at the start, around 2**31 elements and at the end stand for the rest.
    for first in (0, 2**31 // columns - 50, shape[0] - 100):
        part = slice(first, first + 100)
        assert torch.equal(dx[part], expected(dy[part], y[part]).half()), first
    assert not bool(dx.isnan().any())


def test_eager_is_right_on_the_cpu(trial, dtype):
    for shape in ((300, 1), (300, 7), (64, 1000), (3, 50257)):
        sizes = dict(zip("MN", shape, strict=True))
        assert trial("softmax_grad", "eager", dtype, **sizes).complaint_after_call() is None, shape


@pytest.mark.parametrize(("rows", "columns"), [(4, 64), (4, 4096), (2, 262144)])
def test_a_sum_that_lacks_an_element_is_noticed(trial, dtype, rows, columns):
    tuned = trial("softmax_grad", "tuned", dtype, M=rows, N=columns)
    dy, y = tuned.inputs.dy.double(), tuned.inputs.y.double()
    assert tuned.complaint(dx=expected(dy, y).to(tuned.inputs.y.dtype)) is None
    if (dtype, columns) == ("float16", 262144):
        return  # dx is so small that a half says little of it
    lacking = (dy * y)[:, :-1].sum(-1, keepdim=True)
    assert "elements are wrong" in tuned.complaint(dx=(y * (dy - lacking)).to(tuned.inputs.y.dtype))


def test_one_wrong_element_is_told(trial, dtype):
    tuned = trial("softmax_grad", "tuned", dtype, M=5, N=100)
    dx = expected(tuned.inputs.dy, tuned.inputs.y).to(tuned.inputs.y.dtype)
    dx[3, 70] = math.nan
    found = tuned.complaint(dx=dx)
    assert found.startswith("dx: 1 of 500 elements are wrong")
    assert "; element 370 is nan" in found


def test_inputs_are_softmaxes(trial, dtype):
    inputs = trial("softmax_grad", "eager", dtype, M=50, N=100).inputs
    sums = inputs.y.double().sum(-1)
    assert bool(((sums - 1).abs() < 0.02).all())
    assert bool((inputs.y >= 0).all())
    assert inputs.dy.dtype == inputs.y.dtype


@one_test(
    ("shape", "reason"),
    [((8, 16384), None), ((8, 16385), "up to 16384 elements"), ((2**31, 2), "2147483647 rows"), ((2**31 - 1, 2), None)],
)
def test_what_does_not_fit_into_registers(shape, reason):
    found = unsupported("registers", "float16", shape)
    assert found is None if reason is None else reason in found


def test_what_each_variant_moves():
    symbols = {"M": 10, "N": 1000}
    assert OP.work_of(symbols, "float16") == Work(read=40_000, written=20_000, items=10, item="rows")
    names = [name for name, variant in OP.variants.items() if variant.role != "peer"]
    moved = {name: OP.traffic_of(OP.variants[name], symbols, "float16").moved // 20_000 for name in names}
    assert moved == {"eager": 6, "compile": 3, "compile_autotune": 3, "two_pass": 5, "registers": 3, "tuned": 3}
    assert OP.traffic_of(OP.variants["eager"], symbols, "float16") == Traffic(read=80_000, written=40_000)


@pytest.mark.parametrize(("dtype", "columns"), [("float16", 524_288), ("float32", 262_144)])
def test_tuned_moves_what_its_fallback_does_where_rows_are_too_long(dtype, columns):
    tuned, two_pass = OP.variants["tuned"], OP.variants["two_pass"]
    fits, too_long = {"M": 10, "N": columns}, {"M": 10, "N": columns + 8}
    work = OP.work_of(fits, dtype)
    assert OP.traffic_of(tuned, fits, dtype) == Traffic(work.read, work.written)
    assert OP.traffic_of(tuned, too_long, dtype) == OP.traffic_of(two_pass, too_long, dtype)
