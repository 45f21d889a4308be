"""The plans of cross_entropy: each one that is taken, or may be tried, can be launched, and few rows are shared."""

from __future__ import annotations

import itertools

from harness.collection.ops.chip import MOST_BLOCKS, WARP
from harness.collection.ops.llm._cross_entropy_plan import grid, lanes_of
from harness.collection.ops.llm.cross_entropy import OP
from harness.cuda import assuming
from harness.cuda.assumed import KNOWN, Gpu
from harness.model import Case
from harness.ops import Plan
from harness.tune.candidates import legal_plans
from tests.one_test import one_test

TUNING = OP.variants["tuned"].tuning
ROWS = (1, 2, 5, 66, 128, 132, 264, 300, 528, 529, 1024, 8192, 65_536, 2**31 - 1)
COLUMNS = (
    *range(1, 70),
    *(2**k + d for k in range(7, 19) for d in (-1, 0, 1, 8)),
    *(1000, 30_522, 32_000, 50_257, 128_256, 151_936, 600_000, 2**31 - 1),
)
DTYPES = ("float32", "bfloat16")
MOST_RESIDENT_BLOCKS = 32  # of a multiprocessor; fewer on some GPUs, where the compiler drops the wish for more


def case_of(rows: int, columns: int, dtype: str = "bfloat16") -> Case:
    return Case("cross_entropy", "tuned", dtype, (("M", rows), ("V", columns)))


def assert_can_be_launched(gpu: Gpu, rows: int, plan: Plan) -> None:
    threads, resident, cluster = plan["threads"], plan["resident"], plan["cluster"]
    assert threads in range(WARP, 1025, WARP)
    assert resident <= gpu.resident_threads
    assert 1 <= resident // threads <= MOST_RESIDENT_BLOCKS
    assert cluster in ((1, 2, 4, MOST_BLOCKS) if gpu.clusters else (1,))
    assert rows * cluster < 2**31


@one_test("arch", KNOWN)
def test_every_vocabulary_has_a_plan_that_can_be_launched(arch: str) -> None:
    gpu = KNOWN[arch]
    with assuming(gpu):
        for rows, columns, dtype in itertools.product(ROWS, COLUMNS, DTYPES):
            plan = TUNING.rule(case_of(rows, columns, dtype))
            assert TUNING.obstacle(case_of(rows, columns, dtype), plan) is None, (rows, columns, dtype, plan)
            assert_can_be_launched(gpu, rows, plan)
            assert plan["resident"] == gpu.resident_threads
            assert plan["cluster"] == 1 or rows * plan["cluster"] * 1024 <= gpu.multiprocessors * gpu.resident_threads


@one_test("arch", KNOWN)
def test_every_plan_that_may_be_tried_can_be_launched(arch: str) -> None:
    gpu, counts = KNOWN[arch], []
    with assuming(gpu):
        for rows, columns in ((1, 128_256), (8192, 50_257), (128, 1000), (9, 5)):
            plans = list(legal_plans(TUNING, case_of(rows, columns)))
            counts.append(len(plans))
            for plan in plans:
                assert_can_be_launched(gpu, rows, plan)
    assert counts[0] >= counts[1] > 20
    assert counts[2] > 5
    assert counts[3] > 0


def clusters(columns: int, *rows: int) -> list[int]:
    """Blocks that share a row, by the rule."""
    return [int(TUNING.rule(case_of(count, columns))["cluster"]) for count in rows]


def test_few_rows_are_shared_until_half_of_the_threads_that_run_at_a_time_are_taken() -> None:
    with assuming(KNOWN["sm_90"]):  # 264 blocks of 512 threads are half
        for columns in (128_256, 151_936, 262_144):
            assert clusters(columns, 1, 33, 34, 64, 66, 67, 128, 132) == [8, 8, 4, 4, 4, 2, 2, 2], columns
            assert clusters(columns, 133, 4096, 8192) == [1, 1, 1], columns


def test_a_row_is_shared_by_no_more_blocks_than_have_256_packs_each() -> None:
    with assuming(KNOWN["sm_90"]):
        assert [*clusters(4095, 1), *clusters(4096, 1), *clusters(16_383, 1), *clusters(16_384, 1)] == [1, 2, 4, 8]


def test_long_rows_take_whole_blocks_and_short_rows_small_ones() -> None:
    with assuming(KNOWN["sm_90"]):
        for columns in (32_000, 50_257, 128_256, 262_144):
            plan = {"threads": 512, "units": 4, "resident": 2048, "cluster": 1}
            assert TUNING.rule(case_of(8192, columns)) == plan
        assert TUNING.rule(case_of(8192, 2000))["threads"] == 64
        assert TUNING.rule(case_of(8192, 2000))["units"] == 4


def test_a_block_has_several_short_rows() -> None:
    for columns, dtype, lanes, units, rows in (
        (1, "bfloat16", 16, 1, 8),
        (256, "bfloat16", 16, 2, 8),
        (257, "float32", 32, 2, 4),
        (1000, "bfloat16", 32, 4, 4),
        (1032, "bfloat16", 0, 3, 1),
    ):
        with assuming(KNOWN["sm_90"]):
            case = case_of(65_537, columns, dtype)
            plan = TUNING.rule(case)
        assert (lanes_of(case), plan["units"]) == (lanes, units), columns
        assert grid(case, plan) == -(-65_537 // rows), columns


def test_sizes_that_32_bits_cannot_number_have_no_plan() -> None:
    with assuming(KNOWN["sm_90"]):
        assert TUNING.rule(case_of(1, 2**31)) is None
        assert TUNING.rule(case_of(2**31, 1000)) is None


def test_a_plan_that_leaves_threads_without_work_is_refused() -> None:
    with assuming(KNOWN["sm_90"]):
        case = case_of(8192, 2000)  # 250 packs
        plan = dict(TUNING.rule(case))
        for bad in ({"threads": 512}, {"units": 6}):
            assert "nothing to do" in TUNING.obstacle(case, {**plan, **bad}), bad
        short = case_of(8192, 500)  # 63 packs for a warp's lanes
        own = dict(TUNING.rule(short))
        assert "nothing to do" in TUNING.obstacle(short, {**own, "units": 3})
        assert "512 threads at most" in TUNING.obstacle(short, {**own, "threads": 1024})
        assert "don't fill 1536" in TUNING.obstacle(case_of(8192, 50_257), {**plan, "threads": 1024, "resident": 1536})
        assert "cluster can't be 4" in TUNING.obstacle(short, {**own, "cluster": 4})
        assert "fewer blocks" in TUNING.obstacle(case_of(2**30, 50_257), {**plan, "cluster": 2})
