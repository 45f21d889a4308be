"""The backward of RMSNorm with a residual: what its kernels are compiled for, its plan, and its check."""

from __future__ import annotations

import pytest

from harness.collection.ops.chip import H200
from harness.collection.ops.rows._add_norm_grad import AddNormGradPlan, few_macros
from harness.cuda.assumed import KNOWN, assuming
from harness.ops import Catalogue
from harness.tune.candidates import legal_plans
from tests.collection.conftest import case_of
from tests.one_test import one_test

COMPILED = [
    *({"M": 50_000, "N": columns} for columns in (77, 128, 1024, 2048, 4096, 5120, 8192, 9216, 14_336, 16_384, 32_768)),
    *({"M": 100, "N": columns} for columns in (4096, 8192)),
]
OP = Catalogue()["add_rms_norm_grad"]
TUNING = OP.variants["tuned"].tuning


@pytest.mark.parametrize("columns", [1, 3, 64, 1000])
def test_eager_is_right(trial, dtype, columns):
    assert trial("add_rms_norm_grad", "eager", dtype, M=50, N=columns).complaint_after_call() is None


def test_the_gradient_is_autograds(trial):
    import torch

    made = trial("add_rms_norm_grad", "eager", "float32", M=9, N=20)
    x, gamma = made.inputs.x.double().requires_grad_(), made.inputs.gamma.double().requires_grad_()
    y = torch.nn.functional.rms_norm(x, [20], gamma, 1e-5)
    dx, dgamma = torch.autograd.grad((y, x), (x, gamma), (made.inputs.dy.double(), made.inputs.dsum.double()))
    assert made.complaint(dx=dx.float(), dgamma=dgamma.float()) is None


@pytest.mark.parametrize("output", ["dx", "dgamma"])
def test_the_check_sees_a_wrong_element(trial, output):
    made = trial("add_rms_norm_grad", "eager", "float32", M=7, N=100)
    assert made.complaint_after_call(lambda t: getattr(t, output)[5:6].mul_(1.001).add_(1e-3)) is not None


def test_the_check_sees_a_residual_that_is_forgotten(trial):
    made = trial("add_rms_norm_grad", "eager", "bfloat16", M=7, N=100)
    assert made.complaint_after_call(lambda t: t.dx[3].sub_(made.inputs.dsum[3])) is not None


@one_test("itemsize", [2, 4])
@one_test("columns", [8, 128, 2048, 4096, 5120, 8192, 9216, 14_336, 16_384])
def test_plans_hold_rows_in_what_a_multiprocessor_has(itemsize, columns):
    plan = AddNormGradPlan.of(columns, itemsize, H200)
    packs = columns * itemsize // 16
    assert plan.kept * plan.threads >= packs > (plan.kept - 1) * plan.threads
    assert plan.kept * 16 // itemsize <= 32
    assert plan.threads * plan.resident <= 512
    assert plan.resident * (plan.shared + 2048) <= H200.shared + 1024 + plan.resident * 1024
    assert plan.stages >= (1 if itemsize * columns > 38_000 else 2)


@one_test(("columns", "itemsize"), [(77, 2), (16_392, 2), (32_768, 2), (2, 4)])
def test_rows_without_a_plan(columns, itemsize):
    assert AddNormGradPlan.of(columns, itemsize, H200) is None


def tuned(rows, columns, dtype="bfloat16"):
    return case_of(OP, "tuned", dtype, {"M": rows, "N": columns})


@one_test(
    ("rows", "columns", "dtype", "way"),
    [
        (128, 8192, "bfloat16", "few"),
        (512, 4096, "bfloat16", "few"),  # 12 MiB of three tensors
        (513, 4096, "bfloat16", "stages"),
        (256, 4096, "float32", "few"),
        (257, 4096, "float32", "stages"),
        (1024, 2048, "bfloat16", "few"),
        (1025, 128, "bfloat16", "stages"),  # a block would sum its columns over too many rows
        (5, 100_000, "bfloat16", "few"),  # rows that no plan has room for otherwise
        (0, 8, "float16", "few"),
        (8, 0, "float16", "few"),
        (8192, 4096, "bfloat16", "stages"),
    ],
)
def test_rows_that_fit_into_the_l2_are_few(rows, columns, dtype, way):
    case = tuned(rows, columns, dtype)
    with assuming(KNOWN["sm_90"]):
        assert TUNING.rule(case)["way"] == way
        plans = list(legal_plans(TUNING, case))
    assert sum(plan["way"] == "few" for plan in plans) == (way == "few")


@one_test(("columns", "itemsize"), [(4096, 2), (8192, 2), (2048, 4), (4096, 4)])
def test_few_rows_of_half_a_length_have_as_many_blocks(columns, itemsize):
    assert columns * itemsize / 16 / few_macros(columns, itemsize)["WIDE"] == 128


@one_test(("rows", "columns"), [(1, 77), (10_000, 32_768)])
def test_rows_without_any_plan(rows, columns):
    with assuming(KNOWN["sm_90"]):
        assert TUNING.rule(tuned(rows, columns)) is None


@one_test("arch", KNOWN)
@one_test("rows", [100, 50_000])
@one_test("columns", [128, 2048, 4096, 8192, 14_336])
def test_the_rules_plan_is_legal_on_each_gpu(arch, rows, columns):
    with assuming(KNOWN[arch]):
        case = tuned(rows, columns)
        plan = TUNING.rule(case)
        assert plan
        assert TUNING.obstacle(case, plan) is None


@one_test(("stages", "fetches"), [(1, 1), (2, 2), (3, 0)])
def test_a_row_is_fetched_to_the_l2_where_few_stages_are_under_way(ptx, stages, fetches):
    macros = {"SCALAR": "__nv_bfloat16", "THREADS": 448, "BLOCKS": 1, "KEPT": 4, "STAGES": stages}
    text = ptx("add_rms_norm_grad.cu", "add_rms_norm_grad_tuned", macros)
    assert text.count("cp.async.bulk.prefetch.L2") == 3 * fetches  # of dy, x and dsum


@one_test("kept", [1, 2])
def test_a_search_may_try_one_block_of_a_multiprocessor(kept):
    """Such a plan has half of the rule's partial sums."""
    with assuming(KNOWN["sm_90"]):
        case = tuned(8192, 4096)
        assert TUNING.rule(case) == {"way": "stages", "kept": 2, "resident": 2}
        assert {"way": "stages", "kept": kept, "resident": 1} in list(legal_plans(TUNING, case))
