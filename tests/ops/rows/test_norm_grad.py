"""The backwards of LayerNorm and RMSNorm: all outputs near their reference, at sizes and addresses that break kernels.

What only one of them has is in test_layer_norm_grad.py and test_rms_norm_grad.py.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest

from harness import cuda
from harness.model import Case
from harness.ops import Context
from harness.ops._device import H200, Device
from harness.ops.rows import _norm_grad as grad
from harness.ops.rows._norm_grad_plan import Plan

DTYPES = ["float32", "float16", "bfloat16"]
OPS = ["layer_norm_grad", "rms_norm_grad"]
OURS = ["separate", "fused", "tuned"]
CASES = list(itertools.product(OPS, OURS))

A100 = Device(108, clusters=False, shared=163 * 1024)
ROWS = (1, 2, 4, 5, 8, 132, 1000, 2**17)
COLUMNS = (
    *range(1, 300),
    *(2**k + d for k in range(9, 19) for d in (-1, 0, 1, 8)),
    *(1000, 30_522, 50_257, 100_000, 128_256),
)

# Many tiles of each kind of team for every block of an H200; a tile that isn't full; fewer tiles than stages.
TILED = [
    ("float16", 1_000_003, 1),
    ("float16", 2_000_001, 3),
    ("float16", 300_001, 16),
    ("float16", 150_001, 49),
    ("float16", 110_003, 64),
    ("float16", 30_001, 197),
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
]
# Too few rows, or too long ones; rows of both that aren't whole packs; none at all.
SPREAD = [
    *(("float16", *shape) for shape in [(8, 131_072), (131, 16_384), (9, 50_257), (77, 262_144), (0, 1024)]),
    *(("float32", *shape) for shape in [(9, 262_144), (5, 262_145)]),
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
    case = trial(op, "tuned", dtype, "cuda", M=rows, N=columns)
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
    """Each tensor by itself, and all; nothing around the outputs is written."""
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
    (shape,) = declared.shapes(case.ctx.case.symbols)
    made = placed(shape, declared.dtype_of(case.ctx.case.dtype), offset)
    if hasattr(case.inputs, name):
        made.tensor.copy_(getattr(case.inputs, name))
    return made


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [24, 49, 1000, 2048])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "variant"), CASES)
def test_special_values(trial, op, variant, dtype, columns):
    """Rows of equal values, near the type's limits, and with what isn't finite; dgamma and dbeta without the latter."""
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
    after, want = case.call(), grad.reference(case.ctx, case.inputs)
    for output in case.ctx.op.outputs:
        got = getattr(after, output.name)
        assert torch.equal(got.isnan(), want[output.name].isnan()), output.name


def statistics(case, x):
    """The statistics of rows that hold anything, as the op's inputs have them."""
    wide = x.double()
    mean = wide.mean(1, keepdim=True) if hasattr(case.inputs, "mean") else wide.new_zeros(len(x), 1)
    equal = (wide == wide[:, :1]).all(1, keepdim=True)
    mean = mean.where(~equal, wide[:, :1]) if hasattr(case.inputs, "mean") else mean
    rstd = ((wide - mean).square().mean(1) + 1e-5).rsqrt().float()
    return {"rstd": rstd} | ({"mean": mean[:, 0].float()} if hasattr(case.inputs, "mean") else {})


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2**21 + 3, 1024), (2**31 // 3 + 5, 3)], ids=str)
@pytest.mark.parametrize(("op", "variant"), CASES)
def test_more_than_2_to_31_elements(launch, catalogue, op, variant, shape):
    """Zeros, but for the first and the last rows; a matrix of them takes 4 GB."""
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
    want = grad.reference(SimpleNamespace(op=catalogue[op]), few)
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


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (300, 7), (64, 1000)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_eager_passes_the_check(trial, op, dtype, shape):
    assert trial(op, "eager", dtype, M=shape[0], N=shape[1]).complaint_after_call() is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_check_sees_what_is_wrong(monkeypatch, trial, op, dtype):
    monkeypatch.setattr(grad, "_CHECKED", 4096)
    case = trial(op, "eager", dtype, M=200, N=100)
    assert case.complaint_after_call() is None

    def scale(after):
        after.dx[150, 3] *= 1.02

    def leave_out_a_row(after):
        after.dgamma -= (case.inputs.dy * case.inputs.x)[7].to(after.dgamma.dtype)

    assert "dx from row 120 on: 1 of" in case.complaint_after_call(scale)
    assert "dgamma: " in case.complaint_after_call(leave_out_a_row)


@pytest.mark.parametrize("elements", [2**10, 2**17])
def test_the_check_sees_that_an_element_was_left_out(trial, elements):
    case = trial("layer_norm_grad", "eager", "float32", M=2, N=elements)
    t = case.inputs
    exact = grad._Exact.of(t)
    without = exact.mean_gx - (exact.g * exact.xhat)[:, :1] / elements
    wrong = exact.rstd * (exact.g - exact.mean_g - exact.xhat * without)
    sums = {name: total.float() for name, (total, _) in exact.column_sums().items()}
    assert case.complaint(dx=exact.dx.float(), **sums) is None
    assert "dx from row 0 on" in case.complaint(dx=wrong.float(), **sums)


@pytest.fixture(params=itertools.product((2, 4), (1, 2), (H200, A100)), ids=str)
def plans(request):
    """(rows, columns, elements a pack, sums, device, plan) for all that have one."""
    itemsize, sums, device = request.param
    every = [(r, c, Plan.of(r, c, itemsize, sums, device)) for r, c in itertools.product(ROWS, COLUMNS)]
    return [(rows, columns, 16 // itemsize, sums, device, plan) for rows, columns, plan in every if plan is not None]


def worth(rows, columns, itemsize, sums=2, device=H200):
    """The plan, if there is one that is worth it with all its teams."""
    plan = Plan.of(rows, columns, itemsize, sums, device)
    return plan if plan is not None and plan.worth(plan.teams) else None


def test_many_rows_have_a_plan_up_to_a_length(plans):
    """Longer where rows are whole packs, since single elements take more registers."""
    planned = {columns for rows, columns, *_ in plans if rows == max(ROWS)}
    size, device = plans[0][2], plans[0][4]
    packs, singles = (131_072, 98_304) if device.clusters else (8192, 8192)
    assert planned >= {columns for columns in COLUMNS if columns <= (singles if columns % size else packs)}


def test_threads_have_all_of_a_row_and_miss_only_last_chunks(plans):
    for rows, columns, size, _, _, plan in plans:
        team = plan.team
        chunk = 1 if plan.singles else size
        threads = team.lanes or team.threads
        last = columns - (team.cluster - 1) * plan.piece
        assert plan.piece * team.cluster >= columns, (rows, columns, plan)
        assert plan.piece % chunk == 0
        assert (team.kept - 1) * threads * chunk < last <= plan.piece, (rows, columns, plan)
        assert plan.piece <= team.kept * threads * chunk, (rows, columns, plan)
        assert team.lanes or plan.tile_rows == team.at_once


def test_stages_fit_into_a_multiprocessor(plans):
    for rows, columns, size, sums, device, plan in plans:
        team, itemsize = plan.team, 16 // size
        stage = 2 * plan.tile_bytes + sums * plan.row_bytes
        before = size - 1 if plan.singles else 0
        assert plan.tile_bytes >= (plan.tile_rows * plan.piece + before) * itemsize
        assert plan.row_bytes >= (plan.tile_rows + 3) * 4
        assert plan.tile_bytes % 16 == plan.row_bytes % 16 == 0
        assert plan.stages == 3 or plan.team.lanes or plan.team.at_once == 1
        assert plan.stages * stage <= plan.shared <= device.shared
        # As what an H200 or an A100 has: a KB more than a block may use, of which each block takes one.
        blocks = team.resident
        assert blocks * (plan.shared + 1024) <= device.shared + 1024, (rows, columns, plan)
        warps = team.threads // 32
        assert not team.lanes or plan.shared >= warps * columns * 4


def test_what_a_compilation_takes_stays_within_registers(plans):
    """Of which a thread has 128: two floats a column and gamma are what it keeps from row to row."""
    for rows, columns, size, sums, _, plan in plans:
        width = 1 if plan.singles else size
        assert plan.team.kept * width <= 32, (rows, columns, plan)
        assert 32 <= plan.team.threads <= (1024 if plan.team.kept * width <= 8 else 512)
        assert plan.team.threads % 32 == 0
        assert plan.team.at_once * sums <= 32


@pytest.mark.parametrize("sums", [1, 2])
def test_an_h200_takes_the_tests_shapes_as_they_say(sums):
    sizes = {"float32": 4, "float16": 2, "bfloat16": 2}
    for dtype, rows, columns in TILED:
        assert worth(rows, columns, sizes[dtype], sums) is not None, (dtype, rows, columns)
    for dtype, rows, columns in SPREAD:
        assert worth(rows, columns, sizes[dtype], sums) is None, (dtype, rows, columns)


def test_few_rows_are_not_worth_it_unless_one_team_is_enough():
    for rows, columns in itertools.product((1, 8, 132), (1024, 16_384, 131_072)):
        plan = worth(rows, columns, 2)
        if rows == 1 or (rows, columns) == (8, 1024):
            assert plan is not None
            assert plan.teams == 1
    assert worth(8, 16_384, 2) is None
    assert worth(132, 1024, 2) is None
    assert Plan.of(512, 262_144, 2, 2, H200) is None
    assert Plan.of(0, 1024, 2, 2, H200) is None


class FakeKernel:
    facts = None

    def __init__(self, resident):
        self.resident = resident

    def resident_clusters(self, *_):
        return self.resident


@pytest.mark.parametrize(("rows", "resident", "entry"), [(1000, 0, "rows"), (1000, 3, "tuned"), (8, 8, "rows")])
def test_what_runs_depends_on_the_clusters_that_find_room(monkeypatch, catalogue, rows, resident, entry):
    """None of them would write anything where there is room for none."""
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)
    monkeypatch.setattr(cuda, "has_clusters", lambda: True)
    monkeypatch.setattr(cuda, "shared_memory", lambda: H200.shared)
    monkeypatch.setattr(cuda, "load", lambda *_: FakeKernel(resident))
    monkeypatch.setattr(grad._Case, "floats", lambda *_: None)
    asked = []
    kernel = grad._Case.kernel
    monkeypatch.setattr(grad._Case, "kernel", lambda case, name, **macros: asked.append(name) or kernel(case, name))
    case = Case("layer_norm_grad", "tuned", "float16", (("M", rows), ("N", 131_072)))
    grad.tuned(Context(case, None, None, None, catalogue["layer_norm_grad"]))
    assert asked[0] == entry


@pytest.mark.parametrize("op", OPS)
def test_tuned_says_what_it_moves(monkeypatch, catalogue, op):
    """As on an H200, where there is no device."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    tuned = catalogue[op].variants["tuned"]
    for (rows, columns), matrices in {(2**17, 1024): 3, (1000, 131_072): 3, (8, 131_072): 5, (512, 2**18): 5}.items():
        assert tuned.traffic({"M": rows, "N": columns}, 2).moved == matrices * rows * columns * 2


@pytest.mark.parametrize(("op", "variant"), CASES)
def test_rows_whose_elements_can_not_be_counted_are_refused(catalogue, op, variant):
    unsupported = catalogue[op].variants[variant].unsupported
    assert unsupported(Case(op, variant, "float16", (("M", 1), ("N", 2**31)))) is not None
    if variant != "fused":
        assert unsupported(Case(op, variant, "float16", (("M", 1), ("N", 2**31 - 1)))) is None
