"""Softmax kernels on a GPU, against a float64 reference, at the lengths, addresses and values that break kernels."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from harness import cuda
from harness.collection.ops.rows.softmax import OP, blocks_of_cluster, spread
from harness.errors import MachineError
from harness.model import Case, Traffic
from tests.one_test import one_test

# Each team of `tuned`, ragged and not, and elements a thread of `registers` and `cluster` from 1 to 32.
COMPILED = [
    {"M": rows, "N": columns}
    for rows, columns in [
        (1000, 3),
        (1000, 256),
        (1000, 257),
        (1000, 1023),
        (1000, 1024),
        (1000, 32_768),
        (1, 65_536),
        (200, 65_533),
        (64, 2**18),
    ]
]
SPILLED = 16
ANY_LENGTH = ["unfused", "online", "tuned"]
OURS = [*ANY_LENGTH, "shared", "registers", "cluster"]

# Lengths at which the way changes: a tile, a warp of more and more lanes, a block, a cluster, and `online`; ragged ones
# among them. Each compiles kernels of its own, which takes a while; bfloat16 goes the ways of float16.
LENGTHS = [1, 3, 8, 49, 197, 256, 257, 1000, 1024, 1025, 4096, 50_257, 65_536, 131_072, 262_144]
LENGTHS_OF = [(dtype, columns) for dtype in ("float32", "float16") for columns in LENGTHS] + [("bfloat16", 1)]
LENGTHS_IN_REGISTERS = [1, 8, 1000, 16_384, 50_257, 131_072]

RELATIVE = 4e-6  # of float32; the float that is rounded to a half is as near
WIDE = 1e-5  # where differences to the maximum are tens, whose own rounding counts
SMALLEST = 1.2e-38  # below it powers may be zero


def unsupported(variant, dtype, rows, columns):
    reason = OP.variants[variant].unsupported
    return reason and reason(Case("softmax", variant, dtype, (("M", rows), ("N", columns))))


def assert_rounded(y, x, relative=RELATIVE):
    """Fails unless y is the softmax of x, with an error of up to `relative`, rounded to its dtype."""
    import torch

    wanted = torch.softmax(x.double(), dim=-1)
    low = (wanted * (1 - relative) - SMALLEST).to(y.dtype)
    high = (wanted * (1 + relative) + SMALLEST).to(y.dtype)
    right = ((low <= y) & (y <= high)) | (wanted.isnan() & y.isnan())
    if not bool(right.all()):
        row, column = (~right).nonzero()[0].tolist()
        count = int((~right).sum())
        raise AssertionError(f"{count} wrong; ({row}, {column}): {y[row, column]}, not {wanted[row, column]}")


def fma(a, b, c):
    """A multiply-add of float32 in float64, whose own rounding is far below the one of float32."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def by_formula(x, powers):
    """The softmax of rows of float32, with the kernels' powers of 2. powers(x, most): the exponents."""
    with np.errstate(all="ignore"):
        most = x.max(1, keepdims=True)
        exponentials = np.exp2(powers(x, np.where(np.isinf(most) & (most < 0), np.float32(0), most)))
        return exponentials / exponentials.sum(1, keepdims=True)


LOG2_E = np.float32(1.4426950408889634)


def difference_first(x, most):
    return (x - most) * LOG2_E


def product_first(x, most):
    return fma(x, np.broadcast_to(LOG2_E, x.shape), -(most * LOG2_E))


@one_test("size", [1.0, 1e4, 3e9, 1e15, 1e30, 3.3e38])
def test_a_difference_that_is_scaled_is_right_for_numbers_of_any_size(size):
    """Products that are subtracted aren't, which is why no kernel has them: their rounding is a number of its own."""
    rng = np.random.default_rng(1)
    x = (rng.uniform(-1, 1, (64, 50)) * size).astype(np.float32)
    x[0], x[1, ::2], x[2, 0] = size, -size, -math.inf
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True).astype(np.float64))
    wanted = wide / wide.sum(1, keepdims=True)
    np.testing.assert_allclose(by_formula(x, difference_first), wanted, rtol=1e-5, atol=1e-30)
    right = np.isclose(by_formula(x, product_first), wanted, rtol=1e-2, atol=1e-30).all()
    assert bool(right) == (size < 1e9)


def test_rows_without_an_answer_are_nan_in_the_formula():
    x = np.zeros((3, 8), np.float32)
    x[0], x[1, 3], x[2, 3] = -math.inf, math.inf, math.nan
    assert np.isnan(by_formula(x, difference_first)).all()


@pytest.mark.parametrize(
    ("entry", "macros"),
    [
        ("softmax_online", {}),
        ("softmax_registers", {"ELEMENTS": 8, "THREADS": 64}),
        ("softmax_cluster", {"ELEMENTS": 8, "THREADS": 64}),
    ],
)
def test_kernels_scale_the_difference_to_the_largest_number(ptx, entry, macros):
    text = ptx("softmax.cu", entry, {"SCALAR": "__nv_bfloat16", **macros})
    found = re.findall(r"\b(mul|sub|fma)(?:\.rn)?\.f32\s+(%[fr]\d+), (%[fr]\d+)", text)
    made = {result: (what, first) for what, result, first in found}
    exponents = re.findall(r"ex2\.approx\.ftz\.f32 %[fr]\d+, (%[fr]\d+);", text)
    assert exponents
    for exponent in exponents:
        what, difference = made[exponent]
        assert (what, made[difference][0]) == ("mul", "sub")


@pytest.fixture
def softmax(launch, placed):
    """softmax(variant, x, y_offset=0): y, with nothing written around it. Skips what the variant doesn't support."""

    def call(variant, x, y_offset=0):
        dtype = str(x.dtype).removeprefix("torch.")
        rows, columns = x.shape
        if reason := unsupported(variant, dtype, rows, columns):
            pytest.skip(reason)
        y = placed((rows, columns), dtype, y_offset)
        launch("softmax", variant, dtype, {"M": rows, "N": columns}, x=x, y=y)
        return y.tensor

    return call


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "columns"), LENGTHS_OF)
@pytest.mark.parametrize("variant", [*ANY_LENGTH, "shared"])
def test_lengths(softmax, normal, variant, dtype, columns):
    rows = max(2, 200_000 // columns)
    x = normal(rows * columns, dtype).view(rows, columns)
    assert_rounded(softmax(variant, x), x)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", LENGTHS_IN_REGISTERS)
@pytest.mark.parametrize("variant", ["registers", "cluster"])
def test_lengths_in_registers(softmax, normal, variant, dtype, columns):
    rows = max(2, 200_000 // columns)
    x = normal(rows * columns, dtype).view(rows, columns)
    assert_rounded(softmax(variant, x), x)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("columns", [131_080, 151_936, 200_001, 262_144])
def test_long_rows_whose_exponentials_are_computed_twice(softmax, normal, dtype, columns):
    """There are more rows than multiprocessors. (Threads of fewer rows keep less.)"""
    x = normal(150 * columns, dtype).view(150, columns)
    x[0], x[1, 5], x[2, 7], x[3, : columns // 2] = -math.inf, math.nan, math.inf, -math.inf
    assert_rounded(softmax("tuned", x), x)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 133])
@pytest.mark.parametrize("variant", OURS)
def test_numbers_of_rows(softmax, normal, variant, rows):
    for columns in (3, 1000, 1023):
        x = normal(rows * columns, "float16").view(rows, columns)
        assert_rounded(softmax(variant, x), x)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns"), [(1, 16_384), (8, 131_072), (1, 50_257), (8, 1024)])
def test_tuned_with_few_rows(softmax, normal, rows, columns):
    x = normal(rows * columns, "float16").view(rows, columns)
    assert_rounded(softmax("tuned", x), x)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(softmax, normal, variant, dtype):
    for rows, columns in ((5, 3), (3, 8), (7, 1000), (3, 1023)):
        for x_offset, y_offset in ((1, 1), (1, 0), (0, 1), (3, 6), (8, 5)):
            x = normal(rows * columns, dtype, x_offset).view(rows, columns)
            assert_rounded(softmax(variant, x, y_offset), x)


def special_rows(columns, dtype):
    """Rows of values for which a softmax may overflow, or be NaN, on the GPU."""
    import torch

    kind = getattr(torch, dtype)
    info = torch.finfo(kind)
    generator = torch.Generator("cuda").manual_seed(columns)
    x = torch.randn((24, columns), generator=generator, device="cuda", dtype=kind)
    middle, last = columns // 2, columns - 1
    equal = [0.0, 1.0, -3.0, info.max, info.min, info.tiny, -math.inf, math.inf, math.nan]
    for row, value in enumerate(equal):
        x[row] = value
    for row, column in ((9, 0), (10, middle), (11, last)):
        x[row] = -math.inf
        x[row, column] = 5.0
    for row, (column, value) in enumerate([(0, math.nan), (last, math.nan), (middle, math.inf), (last, info.max)], 12):
        x[row, column] = value
    x[16, middle], x[16, last] = math.inf, -math.inf
    x[17, :middle] = -math.inf
    x[18] *= 20  # most of what is far below the maximum is nothing
    x[19, ::2], x[19, 1::2] = info.min, info.max
    x[20] = info.max * torch.linspace(0.9, 1, columns, device="cuda", dtype=torch.float64).to(kind)
    for row, size in enumerate((3e9, 1e15, 1e30), 21):  # numbers whose product with log2(e) is rounded by more than 1
        x[row] = (x[row].double() * min(size, info.max / 8)).to(kind)
    return x


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [3, 8, 1000, 1023, 16_384])
@pytest.mark.parametrize("variant", OURS)
def test_special_values(softmax, variant, dtype, columns):
    x = special_rows(columns, dtype)
    assert_rounded(softmax(variant, x), x, WIDE)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", ANY_LENGTH)
def test_more_than_2_to_31_elements_in_short_rows(softmax, normal, variant):
    rows, columns = 2**31 // 3 + 1000, 3
    x = normal(rows * columns, "float16").view(rows, columns)
    y = softmax(variant, x)
    # Slices at the start, around 2**31 elements and at the end stand for the rest.
    for first in (0, 2**31 // columns - 500, rows - 1000):
        assert_rounded(y[first : first + 1000], x[first : first + 1000])
    assert bool((y > 0).all())


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", ANY_LENGTH)
def test_a_row_of_more_than_2_to_31_elements(softmax, variant):
    import torch

    columns = 2**31 + 17
    x = torch.full((1, columns), -math.inf, device="cuda", dtype=torch.float16)
    places = torch.tensor([0, 1, 2**30 + 5, 2**31 - 1, 2**31, columns - 1], device="cuda")
    x[0, places] = torch.arange(6, device="cuda", dtype=torch.float16)
    y = softmax(variant, x)
    assert int(y.count_nonzero()) == 6
    assert_rounded(y[:, places], x[:, places])


def test_eager_agrees_with_the_reference_on_a_cpu(trial, dtype):
    assert trial("softmax", "eager", dtype, M=33, N=197).complaint_after_call() is None


@pytest.mark.parametrize("change", [lambda y: y[5].mul_(1.01), lambda y: y[32, 196].zero_()])
def test_a_wrong_output_is_found(trial, dtype, change):
    assert trial("softmax", "eager", dtype, M=33, N=197).complaint_after_call(lambda t: change(t.y)) is not None


def test_the_unfused_steps_move_8_tensors_in_floats():
    floats = OP.traffic_of(OP.variants["unfused"], {"M": 1000, "N": 1024}, "float32")
    assert floats.moved == pytest.approx(8 * 1000 * 1024 * 4, rel=0.01)
    halves = OP.traffic_of(OP.variants["unfused"], {"M": 1000, "N": 1024}, "float16")
    assert halves.moved == pytest.approx(13 * 1000 * 1024 * 2, rel=0.01)


def test_a_row_too_long_for_shared_memory_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(cuda, "shared_memory", lambda: 227 * 1024)
    assert unsupported("shared", "float32", 8, 57_856) is None
    assert unsupported("shared", "float32", 8, 57_857) is not None
    reason = "a row of 512 KB doesn't fit into the 226 KB that a block has in shared memory"
    assert unsupported("shared", "float32", 8, 131_072) == reason


def test_a_row_too_long_for_registers_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(cuda, "has_clusters", lambda: True)
    assert unsupported("registers", "float16", 8, 16_384) is None
    reason = "a row of 16385 elements doesn't fit into the registers of a block, which take 16384"
    assert unsupported("registers", "float16", 8, 16_385) == reason
    assert unsupported("cluster", "float16", 8, 131_072) is None
    reason = "a row of 131073 elements doesn't fit into the registers of a cluster, which take 131072"
    assert unsupported("cluster", "float16", 8, 131_073) == reason


def test_clusters_are_refused_where_there_are_none(monkeypatch):
    monkeypatch.setattr(cuda, "has_clusters", lambda: False)
    assert unsupported("cluster", "float32", 8, 1024) == "clusters of blocks came with compute capability 9.0"


def test_more_rows_than_a_grid_has_blocks_are_refused(monkeypatch):
    monkeypatch.setattr(cuda, "has_clusters", lambda: True)
    monkeypatch.setattr(cuda, "shared_memory", lambda: 227 * 1024)
    for variant in ("shared", "registers"):
        assert unsupported(variant, "float16", 2**31 - 1, 1) is None
        assert unsupported(variant, "float16", 2**31, 1) == "a grid has blocks for 2147483647 rows"
    assert unsupported("cluster", "float16", 2**30, 1) == "a grid has blocks for 1073741823 rows"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tuned_moves_what_online_does_where_rows_are_too_long(dtype):
    tuned, online = OP.variants["tuned"], OP.variants["online"]
    for columns in (1, 50_257, 262_144):
        fits = {"M": 10, "N": columns}
        work = OP.work_of(fits, dtype)
        assert OP.traffic_of(tuned, fits, dtype) == Traffic(work.read, work.written)
    too_long = {"M": 10, "N": 262_144 + 8}
    assert OP.traffic_of(tuned, too_long, dtype) == OP.traffic_of(online, too_long, dtype)


def test_registers_hold_every_row_that_is_supported():
    for columns in (*range(1, 3000), *range(3000, 131_072, 997), 16_384, 131_072):
        for blocks_a_row in (1, blocks_of_cluster(columns)):
            if columns > blocks_a_row * 16_384:
                continue
            elements, threads = spread(columns, blocks_a_row)
            assert blocks_a_row * threads * elements >= columns
            assert threads in (32, 64, 128, 256, 512, 1024)
            assert 1 <= elements <= 32


def test_missing_headers_of_cub_are_named(monkeypatch):
    from harness.cuda import compile as compiler

    monkeypatch.setattr(compiler, "_cuda_headers", lambda: (compiler.paths.data("kernels"),))
    with pytest.raises(MachineError, match="CUB"):
        cuda.need_cccl()
