"""Plans of the norms' gradients as parameters: as they were without a table; every plan that may be tried has room."""

from __future__ import annotations

import itertools

import pytest

from harness.collection.ops.chip import WARP, Chip
from harness.collection.ops.rows import _norm_grad_plan
from harness.collection.ops.rows._norm_grad_plan import NormGradPlan
from harness.collection.ops.rows._norm_grad_tuning import beside_plan, narrower, tiles_plan
from harness.cuda import assuming
from harness.cuda.assumed import KNOWN
from harness.model import Case
from harness.ops import Catalogue
from harness.tune.candidates import legal_plans
from tests.rare import rare

OPS = {"layer_norm_grad": 2, "rms_norm_grad": 1}
"""Sums of a row and of a column."""
LARGEST = {"sm_80": 1, "sm_90": 16, "sm_120": 8}
"""Blocks of a cluster that a GPU allows."""
ROWS = (1, 2, 4, 5, 8, 16, 64, 132, 1000, 2**17)
COLUMNS = (
    *range(1, 300, 7),
    *(2**k + d for k in range(9, 19) for d in (-1, 0, 1, 8)),
    *(320, 768, 1000, 5120, 7168, 11008, 14336, 28672, 30_522, 50_257, 128_256),
)
ITEMSIZE = {"float32": 4, "bfloat16": 2}


def case_of(op: str, rows: int, columns: int, dtype: str) -> Case:
    return Case(op, "tuned", dtype, (("M", rows), ("N", columns)))


@pytest.mark.slow  # the next test has all plans that may be tried
@pytest.mark.parametrize(
    ("arch", "op"),
    [(pytest.param if arch == "sm_90" else rare)(arch, op) for arch, op in zip(KNOWN, itertools.cycle(OPS))],
)
def test_without_a_table_plans_are_as_they_were(op: str, arch: str) -> None:
    tuning, sums = Catalogue()[op].variants["tuned"].tuning, OPS[op]
    with assuming(KNOWN[arch]):
        for rows, columns, dtype in itertools.product(ROWS, COLUMNS, ITEMSIZE):
            case = case_of(op, rows, columns, dtype)
            want = NormGradPlan.of(rows, columns, ITEMSIZE[dtype], sums, Chip.current())
            plan = tuning.rule(case)
            assert tuning.obstacle(case, plan) is None, (case.id, plan)
            if plan["way"] == "beside":
                continue
            assert (plan["way"] == "spread") == (want is None or not want.worth(want.teams)), case.id
            assert plan["way"] == "spread" or tiles_plan(case, sums, plan) == want, (case.id, plan)


@pytest.mark.parametrize("arch", [rare("sm_80"), "sm_90", rare("sm_120")])
@pytest.mark.parametrize("op", OPS)
def test_every_plan_that_may_be_tried_covers_the_rows_within_what_the_gpu_has(op: str, arch: str) -> None:
    tuning, sums, gpu = Catalogue()[op].variants["tuned"].tuning, OPS[op], KNOWN[arch]
    ways = set()
    with assuming(gpu):
        lengths = (8, 49, 320, 768, 4097, 8192, 30_522, 131_072)
        for rows, columns, dtype in itertools.product((1, 64, 4096), lengths, ITEMSIZE):
            case = case_of(op, rows, columns, dtype)
            for plan in legal_plans(tuning, case):
                ways.add(plan["way"])
                for built in tuning.kernels(case, plan) if tuning.kernels else ():
                    assert built.shared <= gpu.shared, (case.id, plan)
                    most = min(8, LARGEST[arch]) if plan["way"] == "beside" else LARGEST[arch]
                    assert built.cluster <= most, (case.id, plan)
                if plan["way"] in ("spread", "beside"):
                    continue
                made = tiles_plan(case, sums, plan)
                assert made.team.at_once * sums * made.team.cluster <= WARP, (case.id, plan)
                team, chunk = made.team, 1 if made.singles else 16 // ITEMSIZE[dtype]
                assert team.threads in range(WARP, 1025, WARP), (case.id, plan)
                assert made.piece * team.cluster >= columns, (case.id, plan)
                assert made.piece <= team.kept * (team.lanes or team.threads) * chunk, (case.id, plan)
                last = columns - (team.cluster - 1) * made.piece
                assert (team.kept - 1) * (team.lanes or team.threads) * chunk < last <= made.piece, (case.id, plan)
                assert made.teams >= 1
    assert ways == {"auto", "tiles", "spread", "beside"}


@pytest.mark.parametrize("op", OPS)
def test_the_plan_for_narrower_clusters_is_the_rule_s_where_there_are_no_wide_ones(monkeypatch, op: str) -> None:
    with assuming(KNOWN["sm_90"]):
        cases = [case_of(op, 2**12, columns, dtype) for columns in (65_536, 128_256, 131_072) for dtype in ITEMSIZE]
        found = [narrower(case, OPS[op]) for case in cases]
        monkeypatch.setattr(_norm_grad_plan, "most_blocks", lambda _: 8)
        want = [NormGradPlan.of(2**12, one.symbols["N"], ITEMSIZE[one.dtype], OPS[op], Chip.current()) for one in cases]
    assert found == want


@pytest.mark.parametrize("arch", [rare("sm_80"), "sm_90", rare("sm_120")])
def test_blocks_beside_each_other_have_all_rows_and_all_columns(arch: str) -> None:
    gpu, clusters = KNOWN[arch], set()
    with assuming(gpu):
        for rows, columns, dtype, cluster in itertools.product(ROWS, COLUMNS, ITEMSIZE, (1, 2, 4, 8)):
            plan = beside_plan(case_of("rms_norm_grad", rows, columns, dtype), cluster)
            if plan is None:
                continue
            clusters.add(plan.cluster)
            size = columns * ITEMSIZE[dtype]
            assert size % 16 == 0
            assert plan.threads in range(4 * WARP, 16 * WARP + 1, WARP)
            assert plan.count * plan.threads * cluster * 16 >= size
            assert plan.grid % cluster == 0
            if rows == 1:  # it has the sums of its columns
                assert (plan.wide, plan.grid) == (0, cluster)
                continue
            assert (plan.grid - rows * cluster) * plan.wide * 16 >= size
            assert plan.wide in (4, 8, 16, 32)
    assert clusters == ({1, 2, 4, 8} if gpu.clusters else {1})


@pytest.mark.parametrize(
    ("rows", "columns", "want"),
    [
        *[(1, 1024, (1, 1, 128, 0)), (64, 896, (1, 1, 128, 4)), (64, 4096, (1, 1, 512, 8))],
        *[(256, 1024, (1, 1, 512, 4)), (16, 16_384, (4, 1, 512, 32)), (16, 128_256, (8, 4, 512, 32))],
        *[(64, 50_257, None), (257, 1024, None), (256, 16_384, None), (0, 1024, None)],
    ],
)
def test_the_rule_takes_rows_beside_columns_where_both_are_few(rows, columns, want) -> None:
    tuning = Catalogue()["layer_norm_grad"].variants["tuned"].tuning
    with assuming(KNOWN["sm_90"]):
        case = case_of("layer_norm_grad", rows, columns, "bfloat16")
        plan = tuning.rule(case)
        assert (plan["way"] == "beside") == (want is not None)
        if want:
            made = beside_plan(case, plan["cluster"])
            assert (made.cluster, made.count, made.threads, made.wide) == want


def test_few_rows_may_be_taken_by_one_team_in_one_kernel() -> None:
    tuning = Catalogue()["rms_norm_grad"].variants["tuned"].tuning
    with assuming(KNOWN["sm_90"]):
        few, many = (case_of("rms_norm_grad", rows, 4096, "bfloat16") for rows in (64, 4096))
        assert any(plan["alone"] for plan in legal_plans(tuning, few))
        assert not any(plan["alone"] for plan in legal_plans(tuning, many))
        [alone] = {tiles_plan(few, 1, plan).teams for plan in legal_plans(tuning, few) if plan["alone"]}
        assert alone == 1
