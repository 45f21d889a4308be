"""The plans of cross_entropy_in_place: few rows take no cluster whose blocks few multiprocessors have room for."""

from __future__ import annotations

import itertools

from harness.collection.ops.chip import MOST_BLOCKS, WARP, Chip
from harness.collection.ops.llm.cross_entropy_in_place import OP
from harness.collection.ops.rows._row_tuning import row_plan
from harness.collection.ops.rows._rows import RowPlan
from harness.cuda import assuming
from harness.cuda.assumed import KNOWN
from harness.model import Case
from tests.one_test import one_test

TUNING = OP.variants["tuned"].tuning
ITEMSIZE = {"float32": 4, "bfloat16": 2}
COLUMNS = (
    *range(1, 300, 7),
    *(2**k + d for k in range(9, 19) for d in (-1, 0, 1, 8) if 2**k + d <= 2**18),
    *(1000, 17_000, 25_000, 30_522, 32_000, 41_000, 50_257, 57_000, 128_256, 151_936, 200_000),
)


def case_of(rows: int, columns: int, dtype: str) -> Case:
    return Case("cross_entropy_in_place", "tuned", dtype, (("M", rows), ("V", columns)))


@one_test("arch", KNOWN)
def test_every_plan_can_be_launched_and_covers_its_row(arch: str) -> None:
    gpu = KNOWN[arch]
    with assuming(gpu):
        for rows, columns, dtype in itertools.product((1, 128, 1000, 8192), COLUMNS, ITEMSIZE):
            case, packs = case_of(rows, columns, dtype), columns * ITEMSIZE[dtype] // 16
            plan = TUNING.rule(case)
            if plan is None:
                continue
            assert TUNING.obstacle(case, plan) is None, (case.id, plan)
            made = row_plan(plan, columns, ITEMSIZE[dtype])
            assert made.threads in range(WARP, 1025, WARP), (case.id, made)
            assert made.cluster <= (MOST_BLOCKS if gpu.clusters else 1), (case.id, made)
            assert made.count * (made.lanes or made.threads * made.cluster) >= packs, (case.id, made)


def test_few_rows_are_shared_by_a_power_of_two_of_blocks() -> None:
    with assuming(KNOWN["sm_90"]):
        for rows, columns, dtype in itertools.product((1, 2, 66, 128, 1000), COLUMNS, ITEMSIZE):
            plan = TUNING.rule(case_of(rows, columns, dtype))
            assert plan is None or plan["cluster"] in (1, 2, 4, MOST_BLOCKS), (rows, columns, dtype, plan)
        large = TUNING.rule(case_of(128, 151_936, "bfloat16"))
        assert row_plan(large, 151_936, 2) == RowPlan(8, 0, 320, 8)


def test_many_rows_are_shared_as_other_ops_share_them() -> None:
    with assuming(KNOWN["sm_90"]):
        for columns in (50_257, 128_256, 151_936):
            plan = row_plan(TUNING.rule(case_of(8192, columns, "bfloat16")), columns, 2)
            assert plan == RowPlan.of(8192, columns, 2, Chip.current())
