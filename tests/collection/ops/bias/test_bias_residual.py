"""Bias and residual kernels on a GPU, against exact sums, at the sizes and addresses that break kernels."""

from __future__ import annotations

import math
import re

import pytest

from harness import cuda
from harness.collection.ops.bias import bias_residual
from harness.collection.ops.bias.bias_residual import OP, two_passes
from harness.collection.ops.elementwise import CUDA_TYPE, PACK_BYTES
from harness.model import Case, Traffic
from harness.ops import ITEMSIZE, Context
from tests.one_test import one_test

# Below and from 2^31 threads on: of one element, of two and of eight.
COMPILED = [{"R": rows, "C": 64} for rows in (2, 2**26, 2**29)]
ROUNDED_TWICE = ["half1", "half2", "unfused"]
OURS = ["scalar", "unrolled", "packed8", "tuned", "eight_launches", *ROUNDED_TWICE]
SHAPES = [
    (0, 8),  # empty, in each way
    (8, 0),
    (1, 1),  # one element
    (1, 5),  # fewer elements than a pack
    (1, 8),
    (7, 24),  # whole packs, odd rows
    (33, 64),
    (333, 1),  # one bias
    (333, 2),
    (333, 3),
    (65, 12),  # whole packs of floats, not of halves
    (65, 15),  # packs over the ends of rows
    (33, 130),
    (331, 337),  # many blocks, odd everything
    (409, 1024),
]


def unsupported(variant, dtype, shape):
    reason = OP.variants[variant].unsupported
    return reason and reason(Case("bias_residual", variant, dtype, tuple(zip("RC", shape, strict=True))))


def expected(variant, x, bias, residual):
    """Exactly: each addition in the tensors' type, or both in float and rounded once."""
    if variant in ROUNDED_TWICE:
        return x + bias + residual
    return (x.float() + bias.float() + residual.float()).to(x.dtype)


def check(launch, placed, variant, dtype, shape, offsets=(0, 0, 0, 0)):
    import torch

    sizes = shape, shape[1], shape, shape
    x, bias, residual, y = (placed(size, dtype, offset) for size, offset in zip(sizes, offsets, strict=True))
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    inputs = {"x": x.tensor, "bias": bias.tensor, "residual": residual.tensor}
    for tensor in inputs.values():
        tensor.normal_(generator=generator)
    launch("bias_residual", variant, dtype, dict(zip("RC", shape, strict=True)), **inputs, y=y)
    assert torch.equal(y.tensor, expected(variant, **inputs)), (shape, offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, variant, dtype):
    for shape in SHAPES:
        if not unsupported(variant, dtype, shape):
            check(launch, placed, variant, dtype, shape)


@pytest.mark.gpu
def test_packs_in_small_tensors(launch, placed, monkeypatch, dtype):
    """By the rule, few rows move in words."""
    monkeypatch.setattr(bias_residual, "_FEW_BYTES", 0)
    for shape in SHAPES:
        check(launch, placed, "tuned", dtype, shape)
        check(launch, placed, "tuned", dtype, shape, (1, 0, 3, 1))


@pytest.mark.gpu
def test_words_of_short_rows_and_of_rows_of_many_blocks(launch, placed, monkeypatch, dtype):
    """By the rule, only rows of 64 words or more move in words, and few such rows have several blocks each."""
    monkeypatch.setattr(bias_residual, "SHORTEST", 0)
    monkeypatch.setattr(bias_residual, "_FEW_BYTES", 2**20)
    for shape in (*SHAPES, (3, 2050), (1, 4096)):
        check(launch, placed, "tuned", dtype, shape)
        check(launch, placed, "tuned", dtype, shape, (2, 4, 6, 2))


@pytest.mark.gpu
def test_special_values_in_words(launch, special, monkeypatch, dtype):
    monkeypatch.setattr(bias_residual, "SHORTEST", 0)
    monkeypatch.setattr(bias_residual, "_FEW_BYTES", 2**20)
    check_special_values(launch, special, "tuned", dtype)


def test_rows_are_too_many_for_words():
    tuning = bias_residual.OP.variants["tuned"].tuning

    def refused(rows):
        case = Case("bias_residual", "tuned", "float16", (("R", rows), ("C", 2)))
        return tuning.obstacle(case, {"bytes": 4, "threads": 64})

    assert refused(2**16 - 1) is None
    assert "bytes can't be 4" in refused(2**16)


def test_words_are_for_few_rows_of_whole_words(monkeypatch):
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)

    def plan(rows, columns, dtype="bfloat16"):
        case = Case("bias_residual", "tuned", dtype, (("R", rows), ("C", columns)))
        return bias_residual.OP.variants["tuned"].tuning.rule(case)["bytes"]

    assert [plan(1, 4096), plan(16, 768), plan(1, 4096, "float32"), plan(7, 64, "float32")] == [4] * 4
    # Rows that aren't whole words, many rows, and short ones, of whose blocks most threads would have nothing to do.
    assert [plan(1, 4097), plan(64, 1024), plan(16384, 4096), plan(7, 11, "float32"), plan(0, 4096)] == [16] * 5


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for shape in ((5, 40), (5, 13), (3, 6), (17, 1)):
        if unsupported(variant, dtype, shape):
            continue
        for offset in (1, 2, 3, 4, 5, 7):
            for which in range(4):
                offsets = tuple(offset if place == which else 0 for place in range(4))
                check(launch, placed, variant, dtype, shape, offsets)
            check(launch, placed, variant, dtype, shape, (offset, 0, 3, offset))
            check(launch, placed, variant, dtype, shape, (offset,) * 4)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_special_values(launch, special, variant, dtype):
    if not unsupported(variant, dtype, (1, 8)):
        check_special_values(launch, special, variant, dtype)


def check_special_values(launch, special, variant, dtype):
    import torch

    # Each value meets each pair of other values, twice: two times 12 are rows of whole packs.
    bias = special(dtype).repeat(2)
    pairs = torch.cartesian_prod(special(dtype), special(dtype))
    x, residual = (values.view(-1, 1).expand(-1, len(bias)).contiguous() for values in pairs.unbind(1))
    y = torch.full_like(x, 7)
    launch(
        "bias_residual", variant, dtype, dict(zip("RC", x.shape, strict=True)), x=x, bias=bias, residual=residual, y=y
    )
    wanted = expected(variant, x, bias, residual)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(y.signbit() & (y == 0), wanted.signbit() & (wanted == 0))


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("shape", [(2**21 + 1, 1024), (2**21 + 1, 1025)], ids=str)
def test_more_than_2_to_31_elements(launch, variant, shape):
    import torch

    if unsupported(variant, "float16", shape):
        return
    assert math.prod(shape) > 2**31
    generator = torch.Generator("cuda").manual_seed(1)
    x, residual = (torch.empty(shape, device="cuda", dtype=torch.float16).normal_(generator=generator) for _ in "xr")
    bias = torch.randn(shape[1], generator=generator, device="cuda", dtype=torch.float16)
    y = torch.full_like(x, math.nan)
    symbols = dict(zip("RC", shape, strict=True))
    launch("bias_residual", variant, "float16", symbols, x=x, bias=bias, residual=residual, y=y)
    # Slices at the start, around 2**31 elements and at the end stand for the rest.
    for first in (0, 2**31 // shape[1] - 50, shape[0] - 100):
        part = slice(first, first + 100)
        assert torch.equal(y[part], expected(variant, x[part], bias, residual[part])), first
    assert not bool(y.isnan().any())


@one_test(
    ("variant", "dtype", "shape", "reason"),
    [
        ("half1", "float32", (4, 8), "halves"),
        ("half1", "float16", (4, 7), None),
        ("half2", "float32", (4, 8), "halves"),
        ("half2", "float16", (4, 7), "multiple of 2"),
        ("half2", "bfloat16", (4, 6), None),
        ("packed8", "float32", (4, 8), "halves"),
        ("packed8", "float16", (4, 12), "multiple of 8"),
        ("packed8", "float16", (3, 16), None),
    ],
)
def test_what_a_variant_cannot_do(variant, dtype, shape, reason):
    found = unsupported(variant, dtype, shape)
    assert found is None if reason is None else reason in found


def test_eager_is_within_the_tolerance_and_a_missing_bias_is_not(trial, dtype):
    eager = trial("bias_residual", "eager", dtype, R=3000, C=300)
    assert eager.complaint_after_call() is None
    assert eager.complaint(y=eager.inputs.x + eager.inputs.residual)


def test_eager_moves_five_tensors_where_three_would_do():
    symbols = {"R": 1000, "C": 10}
    assert two_passes(symbols, 2) == Traffic(read=3 * 20_000 + 20, written=2 * 20_000)
    assert OP.work_of(symbols, "float16").moved == 3 * 20_000 + 20
    moved = {name: OP.traffic_of(OP.variants[name], symbols, "float16").moved for name in OURS}
    assert moved == dict.fromkeys(OURS, 3 * 20_000 + 20) | {"unfused": 5 * 20_000 + 20}


@pytest.mark.parametrize(("dtype", "pair"), [("float16", "__half2"), ("bfloat16", "__nv_bfloat162")])
def test_halves_are_added_alike_one_and_two_at_a_time(ptx, dtype, pair):
    """Two additions of halves each, and none of floats: only the number of elements differs."""
    kind = "f16" if dtype == "float16" else "bf16"
    macros = {"SCALAR": CUDA_TYPE[dtype], "PAIR": pair, "INDEX": "unsigned"}
    for entry, added in (("half1", kind), ("half2", f"{kind}x2")):
        text = ptx("bias_residual.cu", f"bias_residual_{entry}", macros)
        additions = re.findall(r"\b(?:add|fma)(?:\.rn)?\.(b?f16(?:x2)?|f32)\b", text)
        assert additions == [added, added], entry


def test_unrolled_loads_all_before_it_stores_any(ptx, dtype):
    text = ptx("bias_residual.cu", "bias_residual_unrolled", {"SCALAR": CUDA_TYPE[dtype], "INDEX": "unsigned"})
    accesses = re.findall(r"\b(ld|st)\.global", text)
    assert accesses == ["ld"] * 12 + ["st"] * 4


def test_unfused_asks_for_all_before_it_waits_as_tuned_does(accesses_of_packs, dtype):
    """Its second kernel writes y, so it reads y by a plain load: the read-only path is for what no thread writes."""
    size = PACK_BYTES // ITEMSIZE[dtype]

    def accesses(entry):
        macros = {"SCALAR": CUDA_TYPE[dtype], "INDEX": "unsigned"}
        return accesses_of_packs("bias_residual.cu", f"bias_residual_{entry}", macros)

    biases = ["ld.nc"] * size
    assert accesses("any") == ["ld.nc.v4", "ld.nc.v4", *biases, "st.v4"]
    assert accesses("first") == ["ld.nc.v4", *biases, "st.v4"]
    assert accesses("first_whole") == ["ld.nc.v4", "ld.nc.v4", "st.v4"]
    assert accesses("second") == ["ld.v4", "ld.nc.v4", "st.v4"]


@pytest.mark.parametrize(
    ("columns", "shifted", "entry"), [(64, 0, "first_whole"), (60, 0, "first"), (64, 1, "first")], ids=str
)
def test_unfused_loads_packs_of_biases_where_tuned_does(trial, monkeypatch, columns, shifted, entry):
    import torch

    launched = []
    monkeypatch.setattr(Context, "kernel", lambda _self, _file, name, _macros: lambda *_: launched.append(name))
    made = trial("bias_residual", "unfused", "float16", R=4, C=columns)
    bias = torch.empty(columns + 8 + shifted, dtype=torch.float16)
    begin = -(bias.data_ptr() // 2) % 8 + shifted
    made.inputs.bias = bias[begin : begin + columns]
    made.call()
    assert launched == [f"bias_residual_{entry}", "bias_residual_second"]


@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (7, 7), (8, 8), (1000, 8)])
def test_eight_launches_take_every_row_once(trial, monkeypatch, rows, parts):
    launched = []

    class Kernel:
        def __call__(self, _grid, _block, x, bias, residual, y, *_):
            launched.append(len(x))
            y.copy_(x + bias + residual)

    ctx = trial("bias_residual", "eight_launches", "float32", R=rows, C=12)
    monkeypatch.setattr(Context, "kernel", lambda *_: Kernel())
    assert ctx.complaint_after_call() is None
    assert (len(launched), sum(launched)) == (parts, rows)
    assert ctx.ctx.facts == {"launches": parts}
