"""The forward of layer_norm and rms_norm: its reference and check, and the kernels of both on a GPU."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from harness import cuda
from harness.collection.ops.chip import H200
from harness.collection.ops.rows import _norm as norm
from harness.collection.ops.rows import _norm_plan
from harness.collection.ops.rows._rows import RowPlan
from harness.collection.ops.rows.layer_norm import OP as LAYER_NORM
from harness.collection.ops.rows.rms_norm import OP as RMS_NORM
from harness.model import Case, Traffic
from harness.ops import ITEMSIZE, comparer
from tests.one_test import one_test

OPS = {op.name: op for op in (LAYER_NORM, RMS_NORM)}
OURS = ["two_pass", "registers", "half2", "tuned"]
# Lengths at which a way changes: a tile, lanes of a warp, a block, a cluster, and beyond; ragged ones among them. Each
# compiles a kernel, so only float16 takes all.
LENGTHS = [
    *(1, 3, 8, 49, 197, 256, 640, 896, 1000, 1023, 1500, 4096, 5000),
    *(30_522, 32_768, 65_536, 100_000, 131_072, 300_000),
]
LENGTHS_OF = [
    *(("layer_norm", "float16", columns) for columns in LENGTHS),
    *(("rms_norm", "float16", columns) for columns in (3, 256, 896, 1023, 1500, 32_768, 50_257)),
    *((op, dtype, columns) for op in OPS for dtype in ("float32", "bfloat16") for columns in (49, 257, 1023, 16_384)),
]


# More rows than multiprocessors; and many that begin alike, which lanes or a block take in pairs, or teams in turn.
MANY = [(150, columns) for columns in (1024, 2048, 8192, 30_522, 32_768, 50_257, 128_256)]
MANY += [(1000, 515), (1001, 1022), (1000, 1026), (537, 8191), (600, 9001)]


@pytest.fixture(params=OPS)
def op(request):
    """The names of both ops, in turn."""
    return request.param


def complaint(op, before, after):
    """What the op's check says of outputs. before: its inputs."""
    return comparer.complaint(OPS[op].check(SimpleNamespace(op=OPS[op]), SimpleNamespace(before=before, **vars(after))))


# ---- On the CPU.


@pytest.mark.parametrize("columns", [1, 3, 64, 1000])
def test_eager_is_right_on_the_cpu(trial, op, dtype, columns):
    assert trial(op, "eager", dtype, M=50, N=columns).complaint_after_call() is None


def test_an_empty_matrix_is_right(trial, op):
    assert trial(op, "eager", "float32", M=0, N=8).complaint_after_call() is None


@pytest.mark.parametrize(("columns", "off", "wrong"), [(3, 0.9, False), (3, 3.0, True), (2**18, 10.0, False)])
def test_numbers_may_be_off_by_what_sums_of_the_smallest_ones_lose(columns, off, wrong):
    """At 2^18 columns a mean may be off by 2^-122, at three by little more than 2^-126, as by a row's first element."""
    tiny = torch.full((2, columns), 2.0**-126)
    before = SimpleNamespace(x=tiny, gamma=torch.ones(columns), beta=torch.zeros(columns))
    exact = norm.layer_normalised(tiny)
    y = torch.full((2, columns), float(exact.rstd[0]) * off * 2.0**-126)
    after = SimpleNamespace(y=y, mean=exact.mean.float(), rstd=exact.rstd.float())
    assert bool(complaint("layer_norm", before, after)) == wrong


@pytest.mark.parametrize(("output", "first"), [("y", 500), ("rstd", 5), ("mean", 5)])
def test_the_check_sees_a_wrong_element(trial, op, output, first):
    if output not in {tensor.name for tensor in OPS[op].outputs}:
        pytest.skip("rms_norm has no mean")
    made = trial(op, "eager", "float32", M=7, N=100)
    found = made.complaint_after_call(lambda t: getattr(t, output)[5:6].mul_(1.0001).add_(1e-4))
    assert found is not None
    assert found.startswith(f"{output}: ")
    assert f"; element {first} is " in found


@pytest.mark.parametrize(("output", "element"), [("y", 3344), ("mean", 33)])
def test_the_check_names_the_element_of_a_later_part(trial, monkeypatch, output, element):
    monkeypatch.setattr(norm, "_CHECKED", 200)
    made = trial("layer_norm", "eager", "float32", M=70, N=100)
    assert made.complaint_after_call() is None
    found = made.complaint_after_call(lambda t: getattr(t, output).view(-1)[element].add_(1))
    assert found is not None
    assert found.startswith(f"{output}: 1 of ")
    assert f"; element {element} is " in found


def test_the_check_sees_what_should_be_no_number(trial, op):
    made = trial(op, "eager", "float32", M=3, N=10)
    made.inputs.x[1, 2] = math.nan
    assert made.complaint_after_call() is None
    assert made.complaint_after_call(lambda t: t.y[1, 3].fill_(0)) is not None
    assert made.complaint_after_call(lambda t: t.y[0, 0].fill_(math.nan)) is not None


@one_test("value", [0.0, 1.1, -65504.0, 1e38])
@one_test("columns", [1, 3, 1000])
def test_the_reference_of_equal_values_is_exact(value, columns):

    x = torch.full((2, columns), value)
    made = norm.layer_normalised(x)
    assert torch.equal(made.mean, x[:, 0].double())
    assert not made.xhat.any()
    assert torch.allclose(made.rstd, torch.full((2,), norm.EPS**-0.5, dtype=torch.float64))


def test_the_reference_beyond_the_range_of_float32_divides_by_infinity():

    x = torch.tensor([[3e38, -3e38]])
    for made in (norm.layer_normalised(x), norm.rms_normalised(x)):
        assert made.rstd.item() == 0
        assert not made.xhat.any()


@one_test(
    ("variant", "dtype", "columns", "runs"),
    [
        ("registers", "float32", 16_384, True),
        ("registers", "float16", 16_385, False),
        ("half2", "float16", 32_768, True),
        ("half2", "bfloat16", 32_770, False),
        ("half2", "float16", 1023, False),
        ("half2", "float32", 1024, False),
    ],
)
def test_what_registers_and_pairs_cannot_do(op, variant, dtype, columns, runs):
    reason = OPS[op].variants[variant].unsupported(Case(op, variant, dtype, (("M", 1), ("N", columns))))
    assert (reason is None) == runs


@pytest.mark.parametrize(
    ("columns", "threads"),
    [(1, 256), (1024, 256), (4096, 256), (4097, 512), (8192, 512), (8193, 1024), (16_384, 1024)],
)
def test_a_row_in_registers_has_as_few_threads_as_can_keep_it(trial, monkeypatch, op, columns, threads):
    """Two blocks of 1024 threads fill a multiprocessor. While both wait for their sums, nothing is loaded."""
    asked = []
    kernel = SimpleNamespace(facts=None)
    monkeypatch.setattr(cuda, "load", lambda _, entry, macros: asked.append((entry, macros)) or kernel)
    ctx = trial(op, "registers", "float32", M=1, N=columns).ctx
    ctx.op.variants["registers"].prepare(ctx)
    (macros,) = [macros for entry, macros in asked if entry == f"{op}_registers"]
    assert macros["THREADS"] == threads
    assert columns <= threads * macros["ELEMENTS"] <= max(256, 2 * columns)


def test_two_pass_moves_one_matrix_more(op):
    symbols = {"M": 100, "N": 64}
    ours = OPS[op]
    work = ours.work_of(symbols, "float16")
    twice = ours.traffic_of(ours.variants["two_pass"], symbols, "float16")
    assert twice == Traffic(work.read + 100 * 64 * 2, work.written)
    assert (work.items, work.item) == (100, "rows")


@one_test("dtype", ["float32", "float16"])
def test_tuned_moves_what_two_pass_does_where_rows_are_too_long(op, dtype):
    ours = OPS[op]
    tuned, two_pass = ours.variants["tuned"], ours.variants["two_pass"]
    fits, too_long = {"M": 10, "N": 131_072}, {"M": 10, "N": 262_144 + 8}
    work = ours.work_of(fits, dtype)
    assert ours.traffic_of(tuned, fits, dtype) == Traffic(work.read, work.written)
    assert ours.traffic_of(tuned, too_long, dtype) == ours.traffic_of(two_pass, too_long, dtype)


def test_more_rows_than_a_grid_has_blocks_are_refused(op):
    for variant in ("registers", "half2"):
        unsupported = OPS[op].variants[variant].unsupported
        reasons = [unsupported(Case(op, variant, "float16", (("M", m), ("N", 2)))) for m in (2**31 - 1, 2**31)]
        assert reasons == [None, "a grid has blocks for 2147483647 rows"]


# ---- On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [1, 3, 49, 197, 1000])
def test_the_reference_of_equal_rows_is_exact_on_a_gpu(columns):
    """Its division by N once was a product with 1 / N, and a row of the lowest numbers had a variance out of range."""
    x = torch.full((2, columns), torch.finfo(torch.float32).min, device="cuda")
    found = norm.layer_normalised(x)
    assert torch.equal(found.mean, x[:, 0].double())
    assert not bool(found.xhat.any())
    assert found.rstd.tolist() == pytest.approx([norm.EPS**-0.5] * 2)


@pytest.fixture
def run(launch, placed, normal):
    """run(op, variant, x, offset of y, of the vectors, of the statistics): what the check says of the outputs.

    Also: nothing may be written around them. Skips what the variant doesn't support. Gives the tensors, too.
    """

    def call(op, variant, x, y_offset=0, vector_offset=0, statistic_offset=0):
        dtype = str(x.dtype).removeprefix("torch.")
        rows, columns = x.shape
        shape = {"M": rows, "N": columns}
        unsupported = OPS[op].variants[variant].unsupported
        if unsupported and (reason := unsupported(Case(op, variant, dtype, tuple(shape.items())))):
            pytest.skip(reason)
        vectors = [tensor.name for tensor in OPS[op].inputs if tensor.name != "x"]
        inputs = {"x": x} | {v: normal(columns, dtype, vector_offset, seed=i + 1) for i, v in enumerate(vectors)}
        outputs = {"y": placed((rows, columns), dtype, y_offset)}
        for tensor in OPS[op].outputs[1:]:
            outputs[tensor.name] = placed(rows, "float32", statistic_offset)
        after = launch(op, variant, dtype, shape, **inputs, **outputs)
        return complaint(op, SimpleNamespace(**inputs), after), after

    return call


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "dtype", "columns"), LENGTHS_OF)
@pytest.mark.parametrize("variant", OURS)
def test_lengths(run, normal, op, variant, dtype, columns):
    rows = max(3, 200_000 // columns)
    x = normal(rows * columns, dtype).view(rows, columns)
    assert run(op, variant, x)[0] is None


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 133])
@pytest.mark.parametrize("variant", OURS)
def test_numbers_of_rows(run, normal, op, variant, rows):
    for columns in (8, 1000):
        x = normal(rows * columns, "float16").view(rows, columns)
        assert run(op, variant, x)[0] is None


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [1, 8, 16, 24, 64, 72, 200, 256, 264, 504, 512])
def test_rows_that_lanes_share_out(run, normal, op, dtype, columns):
    """Some warps lack rows, some lanes lack a pack, and the sums of some rows are made again beside other rows."""
    for rows in (133, 255, 1000, 4099):
        x = normal(rows * columns, dtype).view(rows, columns)
        x[::3, 0] = 30_000
        assert run(op, "tuned", x)[0] is None, rows
    assert run(op, "tuned", special_rows(columns, dtype).repeat(9, 1)[:211])[0] is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "columns"),
    [
        *(("float16", columns) for columns in (1000, 1024, 4096)),
        *(("float32", columns) for columns in (4000, 4096, 16_384)),
    ],
)
def test_the_last_of_rows_in_pairs(run, normal, op, dtype, columns):
    """A team that works on two rows at once has only one row at the end of an odd number of rows."""
    assert RowPlan.with_vectors(333, columns, ITEMSIZE[dtype], H200).together == 2
    x = normal(333 * columns, dtype).view(333, columns)
    x[1::2, 0] *= 100
    assert run(op, "tuned", x)[0] is None


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns"), MANY)
def test_tuned_with_many_rows(run, normal, op, dtype, rows, columns):
    """The sums of some rows are made again, about another point."""
    x = normal(rows * columns, dtype).view(rows, columns)
    x[::3, 0] = 30_000
    assert run(op, "tuned", x)[0] is None


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [1024, 16_384, 131_072])
def test_tuned_with_few_rows(run, normal, op, columns):
    for rows in (1, 8, 132):
        x = normal(rows * columns, "float16").view(rows, columns)
        assert run(op, "tuned", x)[0] is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(run, normal, op, variant, dtype):
    for columns in (1, 3, 8, 1023, 1024):
        if variant == "half2" and (columns % 2 or dtype == "float32"):
            continue
        for x, y, vectors, statistics in ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (2, 4, 6, 3)):
            matrix = normal(5 * columns, dtype, x).view(5, columns)
            assert run(op, variant, matrix, y, vectors, statistics)[0] is None, (columns, x, y, vectors, statistics)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [2061, 5001, 8201, 50_257, 131_071, 65_544, 100_000, 131_064, 131_072, 262_144])
def test_rows_in_turn(run, normal, monkeypatch, dtype, columns):
    """From a single row, which a team of many takes alone, to more than the teams take in three turns."""
    monkeypatch.setattr(_norm_plan, "_FEWEST_TURNS", 1)
    for rows in (0, 1, 3, 500, 2**25 // columns + 1):
        x = normal(rows * columns, dtype).view(rows, columns)
        x[1::3, :8] = 30_000  # far from the mean: the sums are made again
        assert run("layer_norm", "tuned", x)[0] is None, rows


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [9001, 30_522, 65_544, 131_072])
def test_special_values_in_turn(run, monkeypatch, dtype, columns):
    monkeypatch.setattr(_norm_plan, "_FEWEST_TURNS", 1)
    x = special_rows(columns, dtype)
    # Rows follow on each other in a team, and what one leaves mustn't reach the next; each kind begins at all places.
    assert run("layer_norm", "tuned", torch.cat((x, x[:1])).repeat(24, 1)[:571])[0] is None


def special_rows(columns, dtype):
    """Rows of values for which sums of squares may overflow, cancel or be NaN, on the GPU."""

    kind = getattr(torch, dtype)
    info = torch.finfo(kind)
    generator = torch.Generator("cuda").manual_seed(columns)
    x = torch.randn((24, columns), generator=generator, device="cuda", dtype=kind)
    first, middle, last = 0, columns // 2, columns - 1
    equal = [0.0, 1.1, -3.0, info.max, info.min, info.tiny, 65504.0, -math.inf, math.inf, math.nan]
    for row, value in enumerate(equal):
        x[row] = value
    x[10] = -math.inf
    x[10, middle] = 5.0
    places = itertools.product((first, middle, last), (math.nan, math.inf, -math.inf, info.max))
    for row, (column, value) in enumerate(places, 11):
        if row < 21:
            x[row, column] = value
    x[21] += 1000  # a mean far larger than the deviation
    x[22, ::2], x[22, 1::2] = info.min, info.max
    x[23] = info.max * torch.linspace(0.9, 1, columns, device="cuda", dtype=torch.float64).to(kind)
    return x


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_special_values(run, op, variant, dtype):
    if variant == "half2" and dtype == "float32":
        pytest.skip("for halves only")
    for columns in (3, 1000, 1023, 16_384, 65_536):
        if variant == "half2" and columns % 2:
            continue
        found, _ = run(op, variant, special_rows(columns, dtype))
        assert found is None, columns


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_rows_of_equal_values_give_exactly_beta(run, variant):

    values = torch.tensor([0.1, -7.7, 1e4, 65504.0, 1.2e-7], device="cuda")
    for dtype, columns in itertools.product(("float16", "float32"), (1, 50, 1000, 16_384)):
        if variant == "half2" and (columns % 2 or dtype == "float32"):
            continue
        x = values.to(getattr(torch, dtype))[:, None].expand(-1, columns).contiguous()
        found, after = run("layer_norm", variant, x)
        assert found is None
        assert torch.equal(after.y, after.beta.expand_as(x))
        assert torch.equal(after.mean, x[:, 0].float())


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_a_first_element_far_from_the_mean(run, normal, variant):
    """The sums are made about the first element. If they show that it is too far from the mean, they are made again."""
    for dtype, columns in itertools.product(("float16", "float32"), (30, 1000, 16_384)):
        if variant == "half2" and dtype == "float32":
            continue
        x = normal(40 * columns, dtype).view(40, columns)
        x[::3, 0] = 30_000  # beside rows of the same warp that need no second turn
        x[1::3] += 100
        x[1::3, 0] = -5
        assert run("layer_norm", variant, x)[0] is None


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize(
    ("variant", "rows", "columns"),
    [
        *((variant, 2**21 + 3, 1024) for variant in OURS),
        *(("tuned", rows, columns) for rows, columns in ((2**31 + 5, 1), (2**31 // 3 + 9, 3), (2**23 + 3, 256))),
        ("tuned", 2**14 + 3, 131_072),
    ],
)
def test_more_than_2_to_31_elements(run, normal, op, variant, rows, columns):
    x = normal(rows * columns, "float16").view(rows, columns)
    assert x.numel() > 2**31
    assert run(op, variant, x)[0] is None


@pytest.mark.parametrize("more", [{}, {"EPS": "1e-12f"}])
def test_epsilon_is_a_macro(ptx, more):
    text = ptx("rms_norm.cu", "rms_norm_two_pass", {"SCALAR": "float", "THREADS": 256} | more)
    assert ("0f3727C5AC" in text, "0f2B8CBCCC" in text) == (not more, bool(more))  # 1e-5 and 1e-12 as float32
