"""Plans as parameters: without a table every plan is what the rule gives, and every plan that may be tried can run."""

from __future__ import annotations

import itertools

import pytest

from harness.collection.ops.chip import MOST_BLOCKS, WARP, Chip
from harness.collection.ops.rows._norm_plan import InTurn
from harness.collection.ops.rows._row_tuning import row_plan
from harness.collection.ops.rows._rows import RowPlan
from harness.cuda import assuming
from harness.cuda.assumed import KNOWN
from harness.model import Case
from harness.ops import Catalogue
from harness.tune.candidates import legal_plans
from tests.one_test import one_test

OPS = {"softmax": (1, 0), "softmax_grad": (2, 0), "layer_norm": (1, 2), "rms_norm": (1, 1)}
"""Matrices of which a thread keeps a row, and vectors that rows share."""
ROWS = (1, 2, 8, 64, 132, 1000, 2**20)
COLUMNS = (
    *range(1, 300, 7),
    *(2**k + d for k in range(9, 20) for d in (-1, 0, 1, 8)),
    *(320, 768, 1000, 5120, 7168, 11008, 14336, 28672, 30_522, 50_257, 128_256, 151_936),
)
ITEMSIZE = {"float32": 4, "bfloat16": 2}


def case_of(op: str, rows: int, columns: int, dtype: str) -> Case:
    return Case(op, "tuned", dtype, (("M", rows), ("N", columns)))


def ruled(op: str, rows: int, columns: int, itemsize: int) -> RowPlan | InTurn | None:
    """The plan that the op took before plans had parameters, but that few rows load vectors early now."""
    matrices, vectors = OPS[op]
    chip = Chip.current()
    if columns == 1:
        return None
    if op == "layer_norm" and (turn := InTurn.of(rows, columns, itemsize, chip)):
        return turn
    if vectors:
        plan = RowPlan.with_vectors(rows, columns, itemsize, chip, vectors, norm=True)
        return plan and plan.with_few_early(rows, chip)
    return RowPlan.of(rows, columns, itemsize, chip, matrices)


@one_test(("arch", "op"), [*zip(KNOWN, itertools.cycle(OPS))])
def test_without_a_table_plans_are_as_they_were(op: str, arch: str) -> None:
    tuning = Catalogue()[op].variants["tuned"].tuning
    with assuming(KNOWN[arch]):
        for rows, columns, dtype in itertools.product(ROWS, COLUMNS, ITEMSIZE):
            case, itemsize = case_of(op, rows, columns, dtype), ITEMSIZE[dtype]
            want, plan = ruled(op, rows, columns, itemsize), tuning.rule(case)
            if plan is None or want is None:
                assert plan is want, case.id
                continue
            assert bool(plan.get("in_turn")) == isinstance(want, InTurn), case.id
            assert isinstance(want, InTurn) or row_plan(plan, columns, itemsize) == want, case.id
            assert tuning.obstacle(case, plan) is None, (case.id, plan)


@one_test(("op", "alone"), [("layer_norm", False), ("rms_norm", False), ("softmax", True), ("add_rms_norm", True)])
def test_two_rows_that_begin_inside_of_packs_are_tried_together_only_by_kernels_that_take_every_eighth(op, alone):
    tuning = Catalogue()[op].variants["tuned"].tuning
    plan = {"lanes": 0, "count": 2, "cluster": 1, "together": 2, "block": 0, "tile": 0}
    with assuming(KNOWN["sm_90"]):
        case = case_of(op, 4096, 4097, "bfloat16")
        plan |= {name: 0 for name in tuning.parameters(case) if name not in plan}
        assert (tuning.obstacle(case, plan) is not None) is alone
        assert tuning.parameters(case)["together"] == ((1,) if alone else (1, 2))
        assert tuning.obstacle(case, plan | {"together": 4, "count": 1}) is not None


@pytest.mark.slow  # the first test has the plans of rules
@one_test("arch", ["sm_80", "sm_90", "sm_120"])
@one_test("op", OPS)
def test_every_plan_that_may_be_tried_covers_the_rows_within_what_the_gpu_has(op: str, arch: str) -> None:
    tuning = Catalogue()[op].variants["tuned"].tuning
    gpu = KNOWN[arch]
    counts = []
    with assuming(gpu):
        for columns, dtype in itertools.product((4, 100, 197, 768, 4096, 50_257, 131_072), ITEMSIZE):
            case, itemsize = case_of(op, 4096, columns, dtype), ITEMSIZE[dtype]
            if tuning.rule(case) is None:
                continue
            plans = list(legal_plans(tuning, case))
            counts.append(len(plans))
            for plan in plans:
                [built] = tuning.kernels(case, plan) if tuning.kernels else []
                assert built.threads in range(WARP, 1025, WARP), (case.id, plan)
                assert built.shared <= gpu.shared, (case.id, plan)
                assert built.cluster <= (MOST_BLOCKS if gpu.clusters else 1), (case.id, plan)
                if plan.get("in_turn"):
                    continue
                made = row_plan(plan, columns, itemsize)
                team = made.lanes or made.threads * made.cluster
                assert made.count * team >= (columns if made.tile_rows else columns * itemsize // 16), (case.id, plan)
    assert max(counts) > 5


def test_a_plan_that_leaves_a_thread_without_work_is_refused() -> None:
    tuning = Catalogue()["softmax"].variants["tuned"].tuning
    with assuming(KNOWN["sm_90"]):
        case = case_of("softmax", 4096, 264, "float32")  # 66 packs
        plan = dict(tuning.rule(case))
        assert "nothing to do" in tuning.obstacle(case, {**plan, "count": 8})
        assert "can't be 9" in tuning.obstacle(case, {**plan, "cluster": 9})
        assert "has the parameters" in tuning.obstacle(case, {"lanes": 1})
    with assuming(KNOWN["sm_80"]):
        long = case_of("softmax", 4096, 4096, "float32")
        assert "cluster can't be 2" in tuning.obstacle(long, {**plan, "cluster": 2, "count": 1})
