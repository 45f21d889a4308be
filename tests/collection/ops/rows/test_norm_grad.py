"""The backwards of LayerNorm and RMSNorm: all outputs near their reference, at sizes and addresses that break kernels.

What only one of them has is in test_layer_norm_grad.py and test_rms_norm_grad.py.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest

from harness.collection.ops.chip import H200
from harness.collection.ops.rows import _norm_grad_check as exact
from harness.collection.ops.rows._norm_grad_beside import BesidePlan
from harness.collection.ops.rows._norm_grad_plan import NormGradPlan
from harness.model import Case
from harness.ops import ITEMSIZE
from harness.tune.candidates import legal_plans
from tests.one_test import one_test

DTYPES = ["float32", "float16", "bfloat16"]
OPS = ["layer_norm_grad", "rms_norm_grad"]
OURS = ["separate", "fused", "tuned"]
CASES = list(itertools.product(OPS, OURS))

# Many tiles of each kind of team for every block of an H200; a tile that isn't full; fewer tiles than stages.
TILED = [
    ("float16", 1_000_003, 1),
    ("float16", 2_000_001, 3),
    ("float16", 300_001, 16),
    ("float16", 150_001, 21),
    ("float16", 150_001, 49),
    ("float16", 110_003, 64),
    ("float16", 30_001, 197),
    ("float16", 30_001, 301),  # tiles that share packs with their neighbours
    ("float16", 2001, 257),
    ("float16", 5005, 1023),
    ("float16", 20_005, 512),
    ("float16", 6401, 1024),
    ("float16", 4001, 2048),
    ("float16", 1063, 4096),
    ("float16", 1063, 8191),
    ("float16", 531, 8192),
    ("float16", 531, 16_384),
    ("float16", 133, 30_522),
    ("float16", 303, 32_768),
    ("float16", 97, 65_536),
    ("float16", 67, 81_919),
    ("float16", 91, 131_072),
    ("float16", 2, 16_384),
    ("float16", 8, 1024),
    ("float16", 2, 3048),
    ("float16", 4, 3048),
    ("float16", 2, 3331),
    ("float16", 2, 5931),
    ("float16", 2, 6088),
    ("float16", 4, 6088),
    ("float32", 150_001, 33),
    ("float32", 150_001, 49),
    ("float32", 40_007, 256),
    ("float32", 20_003, 512),
    ("float32", 5005, 1023),
    ("float32", 1, 460),
    ("float32", 4001, 1024),
    ("float32", 531, 4096),
    ("float32", 267, 8192),
    ("float32", 133, 16_384),
    ("float32", 137, 34_200),
    ("float32", 100, 50_257),
    ("float32", 69, 65_536),
    ("float32", 37, 70_685),
    ("float32", 37, 76_208),
    ("float32", 37, 81_919),
    ("float32", 37, 100_000),
    ("float32", 37, 131_072),
    ("bfloat16", 150_001, 49),
    ("bfloat16", 6407, 1024),
    # More blocks of a multiprocessor, since few threads of each have work.
    *(("float16", *shape) for shape in [(5003, 520), (2003, 2049), (1503, 3001), (1003, 5120)]),
    # Clusters of 16.
    *(("float16", *shape) for shape in [(77, 262_144), (53, 151_936), (43, 100_003), (39, 151_937)]),
    *(("float32", *shape) for shape in [(37, 128_256), (29, 262_144), (31, 151_937)]),
]
# Too few rows, or too long ones; rows of both that aren't whole packs; none at all.
SPREAD = [
    *(("float16", *shape) for shape in [(24, 98_304), (9, 50_257), (77, 262_152), (0, 1024)]),
    *(("float32", *shape) for shape in [(9, 262_148), (5, 262_145)]),
]
# One row, one pack; as many packs as threads, and some more; blocks of a cluster, one of them nearly empty.
BESIDE = [
    *(
        ("float16", *shape)
        for shape in [(1, 8), (1, 1024), (1, 131_072), (2, 4096), (256, 4104), (131, 16_000), (8, 131_072)]
    ),
    *(("bfloat16", *shape) for shape in [(64, 896), (255, 128), (7, 65_544), (16, 128_256)]),
    *(("float32", *shape) for shape in [(33, 36), (100, 10_000), (5, 65_536)]),
]
ANY = [(0, 3), (1, 1), (1, 7), (2, 8), (33, 49), (7, 512), (129, 1000), (40, 1023), (300, 1024), (5, 8192), (3, 16_385)]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ANY, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "variant"), [case for case in CASES if case[1] != "tuned"])
def test_shapes(trial, op, variant, dtype, shape):
    case = trial(op, variant, dtype, "cuda", M=shape[0], N=shape[1])
    if unsupported(case):
        assert variant == "fused"
        assert shape[1] > 8192
        return
    assert case.complaint_after_call() is None


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "rows", "columns"), TILED)
@pytest.mark.parametrize("op", OPS)
def test_tiles(trial, op, dtype, rows, columns):
    """By tiles, even where the rule has another way for so few rows."""
    case = trial(op, "tuned", dtype, "cuda", M=rows, N=columns)
    tuning = case.ctx.op.variants["tuned"].tuning
    if tuning.rule(case.ctx.case)["way"] == "beside":
        case.ctx.tried = next(plan for plan in legal_plans(tuning, case.ctx.case) if plan["way"] == "tiles")
    assert case.complaint_after_call() is None
    assert case.ctx.kernels[0].name == f"{op}_tuned"


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "rows", "columns"), SPREAD)
@pytest.mark.parametrize("op", OPS)
def test_few_rows_and_long_ones(trial, op, dtype, rows, columns):
    case = trial(op, "tuned", dtype, "cuda", M=rows, N=columns)
    assert case.complaint_after_call() is None
    assert case.ctx.kernels[0].name == f"{op}_rows"


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "rows", "columns"), BESIDE)
@pytest.mark.parametrize("op", OPS)
def test_few_rows_beside_columns(trial, op, dtype, rows, columns):
    case = trial(op, "tuned", dtype, "cuda", M=rows, N=columns)
    assert case.complaint_after_call() is None
    assert case.ctx.kernels[0].name == f"{op}_beside"


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "variant"), CASES)
@pytest.mark.parametrize("shape", [(4001, 64), (999, 1024), (2005, 1023), (9, 2048)], ids=str)
def test_results_repeat(trial, op, variant, shape):
    import torch

    case = trial(op, variant, "float16", "cuda", M=shape[0], N=shape[1])
    first, again = case.call(), case.call()
    for output in case.ctx.op.outputs:
        assert torch.equal(getattr(first, output.name), getattr(again, output.name)), output.name


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "variant"), CASES)
@pytest.mark.parametrize("shape", [(33, 64), (70, 49), (300, 1024), (5, 2048)], ids=str)
def test_unaligned_addresses(trial, launch, placed, op, variant, shape):
    """Each tensor is moved by itself, then all are; nothing around the outputs is written."""
    case = trial(op, variant, "float16", "cuda", M=shape[0], N=shape[1])
    names = [tensor.name for tensor in (*case.ctx.op.inputs, *case.ctx.op.outputs)]
    for moved in (*([name] for name in names), names, []):
        tensors = {name: lay(placed, case, name, 1 if name in moved else 0) for name in names}
        after = launch(op, variant, "float16", {"M": shape[0], "N": shape[1]}, **tensors)
        outputs = {output.name: getattr(after, output.name) for output in case.ctx.op.outputs}
        assert case.complaint(**outputs) is None, moved


def lay(placed, case, name, offset):
    """An input, or room for an output, `offset` elements past an aligned address."""
    declared = {tensor.name: tensor for tensor in (*case.ctx.op.inputs, *case.ctx.op.outputs)}[name]
    (shape,) = declared.shapes(case.ctx.case.values)
    made = placed(shape, declared.dtype_of(case.ctx.case.dtype), offset)
    if hasattr(case.inputs, name):
        made.tensor.copy_(getattr(case.inputs, name))
    return made


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [24, 49, 1000, 2048])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "variant"), CASES)
def test_special_values(trial, op, variant, dtype, columns):
    """Rows have equal values, values near the type's limits, and values that aren't finite."""
    import torch

    case = trial(op, variant, dtype, "cuda", M=9, N=columns)
    t, big = case.inputs, torch.finfo(case.ctx.dtype).max / 8
    t.x[0], t.x[1], t.x[2] = 0, 3, big
    t.x[3].mul_(big / 8)
    t.dy[4] = 0
    t.dy[5].mul_(2.0**10)
    vars(t).update(statistics(case, t.x))
    # The largest ones lead to results below what float32 has all its digits for.
    complaint = case.complaint_after_call()
    assert complaint is None

    for row, value in ((6, math.inf), (7, -math.inf), (8, math.nan)):
        t.dy[row, columns // 2] = value
    t.x[3, 1] = math.nan
    vars(t).update(statistics(case, t.x))
    after, want = case.call(), exact.reference(case.ctx, case.inputs)
    for output in case.ctx.op.outputs:
        got = getattr(after, output.name)
        assert torch.equal(got.isnan(), want[output.name].isnan()), output.name


def statistics(case, x):
    """The statistics of rows of any values, by the names that they have among the op's inputs."""
    wide = x.double()
    mean = wide.mean(1, keepdim=True) if hasattr(case.inputs, "mean") else wide.new_zeros(len(x), 1)
    equal = (wide == wide[:, :1]).all(1, keepdim=True)
    mean = mean.where(~equal, wide[:, :1]) if hasattr(case.inputs, "mean") else mean
    rstd = ((wide - mean).square().mean(1) + 1e-5).rsqrt().float()
    return {"rstd": rstd} | ({"mean": mean[:, 0].float()} if hasattr(case.inputs, "mean") else {})


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("shape", [(2**21 + 3, 1024), (2**31 // 3 + 5, 3)], ids=str)
@pytest.mark.parametrize(("op", "variant"), CASES)
def test_more_than_2_to_31_elements(launch, catalogue, op, variant, shape):
    """All rows are zeros except the first and the last ones. A matrix takes 4 GB."""
    import torch

    rows, columns = shape
    if variant == "fused" and columns == 3:
        return  # a row of three takes it as long as one of 512
    inputs = {"dy": (rows, columns), "x": (rows, columns), "gamma": (columns,)}
    t = SimpleNamespace(
        **{name: torch.zeros(size, device="cuda", dtype=torch.float16) for name, size in inputs.items()}
    )
    t.gamma.normal_()
    t.rstd = torch.ones(rows, device="cuda")
    if op == "layer_norm_grad":
        t.mean = torch.zeros(rows, device="cuda")
    parts = [slice(0, 300), slice(rows - 300, rows)]
    for part in parts:
        t.dy[part].normal_()
        t.x[part].normal_()
    outputs = {"dx": shape, "dgamma": (columns,), "dbeta": (columns,)}
    declared = [tensor.name for tensor in catalogue[op].outputs]
    made = {name: torch.full(outputs[name], math.nan, device="cuda", dtype=torch.float16) for name in declared}
    launch(op, variant, "float16", {"M": rows, "N": columns}, **vars(t), **made)
    ends = {name: torch.cat([value[part] for part in parts]) for name, value in vars(t).items() if len(value) == rows}
    few = SimpleNamespace(**vars(t) | ends)
    want = exact.reference(SimpleNamespace(op=catalogue[op]), few)
    got = torch.cat([made["dx"][part] for part in parts])
    torch.testing.assert_close(got, want["dx"].half(), rtol=2e-3, atol=1e-5)
    for part in parts:
        made["dx"][part] = 0
    assert not made["dx"].any(), "elsewhere dy is zero"
    for name in declared[1:]:
        torch.testing.assert_close(made[name], want[name].half(), rtol=2e-3, atol=1e-3)


def unsupported(case):
    variant = case.ctx.op.variants[case.ctx.case.variant]
    return variant.unsupported and variant.unsupported(case.ctx.case)


# ---- Without a GPU.


@one_test("shape", [(0, 5), (1, 1), (300, 7), (64, 1000)], ids=str)
@one_test("dtype", DTYPES)
@one_test("op", OPS)
def test_eager_passes_the_check(trial, op, dtype, shape):
    assert trial(op, "eager", dtype, M=shape[0], N=shape[1]).complaint_after_call() is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_check_sees_what_is_wrong(monkeypatch, trial, op, dtype):
    monkeypatch.setattr(exact, "_CHECKED", 4096)
    case = trial(op, "eager", dtype, M=200, N=100)
    assert case.complaint_after_call() is None

    def scale(after):
        after.dx[150, 3] *= 1.02

    def leave_out_a_row(after):
        after.dgamma -= (case.inputs.dy * case.inputs.x)[7].to(after.dgamma.dtype)

    assert case.complaint_after_call(scale).startswith("dx: 1 of 20000 elements")
    assert "; element 15003 is " in case.complaint_after_call(scale)
    assert "dgamma: " in case.complaint_after_call(leave_out_a_row)


@pytest.mark.parametrize("elements", [2**10, 2**17])
def test_the_check_sees_that_an_element_was_left_out(trial, elements):
    case = trial("layer_norm_grad", "eager", "float32", M=2, N=elements)
    t = case.inputs
    rows = exact.ExactRows.of(t)
    without = rows.mean_gx - (rows.g * rows.xhat)[:, :1] / elements
    wrong = rows.rstd * (rows.g - rows.mean_g - rows.xhat * without)
    sums = {name: total.float() for name, (total, _) in rows.column_sums().items()}
    assert case.complaint(dx=rows.dx.float(), **sums) is None
    assert case.complaint(dx=wrong.float(), **sums).startswith("dx: ")


@pytest.mark.parametrize("sums", [1, 2])
def test_an_h200_takes_the_shapes_of_these_tests_as_they_say(sums):
    def on_tiles(dtype, rows, columns):
        plan = NormGradPlan.of(rows, columns, ITEMSIZE[dtype], sums, H200)
        return plan is not None and plan.worth(plan.teams)

    assert [shape for shape in TILED if not on_tiles(*shape)] == []
    assert [shape for shape in SPREAD if on_tiles(*shape)] == []
    beside = [BesidePlan.by_rule(*shape, ITEMSIZE[dtype], H200) for dtype, *shape in (*BESIDE, *SPREAD)]
    assert [plan is not None for plan in beside] == [True] * len(BESIDE) + [False] * len(SPREAD)


@pytest.mark.parametrize("op", OPS)
def test_tuned_says_what_it_moves(monkeypatch, catalogue, op):
    """Where there is no device, the traffic is that on an H200."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    tuned = catalogue[op].variants["tuned"]
    for (rows, columns), matrices in {
        (2**17, 1024): 3,
        (1000, 131_072): 3,
        (8, 131_072): 3,
        (24, 98_304): 5,
        (512, 2**18): 3,
        (512, 2**18 + 8): 5,
    }.items():
        assert tuned.traffic({"M": rows, "N": columns}, 2).moved == matrices * rows * columns * 2


@one_test(("op", "variant"), CASES)
def test_rows_whose_elements_can_not_be_counted_are_refused(catalogue, op, variant):
    unsupported = catalogue[op].variants[variant].unsupported
    assert unsupported(Case(op, variant, "float16", (("M", 1), ("N", 2**31)))) is not None
    if variant != "fused":
        assert unsupported(Case(op, variant, "float16", (("M", 1), ("N", 2**31 - 1)))) is None
