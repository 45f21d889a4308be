"""A linear layer for few rows: what its kernels are compiled for, its plan and its check."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.collection.ops.chip import H200, Chip
from harness.collection.ops.llm import _few_rows
from harness.collection.ops.llm._few_rows import FewRows, FewRowsProduct
from harness.cuda.assumed import KNOWN, assuming
from tests.collection.conftest import case_of
from tests.one_test import one_test

FORMS = ("plain", "norm", "add", "gates")
COMPILED = [
    *({"M": m, "K": 2048, "N": 2048, "form": form} for form in FORMS for m in (1, 16)),
    {"M": 1, "K": 8192, "N": 2048, "form": "add"},
    {"M": 16, "K": 8192, "N": 2048, "form": "add"},
    {"M": 1, "K": 2048, "N": 128_256, "form": "norm"},
    {"M": 2, "K": 77, "N": 100, "form": "gates"},
]
LLAMA = {
    "qkv": FewRowsProduct(1, 2048, 1536, norm=True),
    "o": FewRowsProduct(1, 2048, 1024, norm=False),
    "gates": FewRowsProduct(1, 2048, 8192, norm=True),
    "down": FewRowsProduct(1, 8192, 1024, norm=False),
    "head": FewRowsProduct(1, 2048, 64_128, norm=True),
}
"""The products of Llama 1B for one sequence."""


@one_test("form", FORMS)
@one_test("dtype", ["bfloat16", "float16"])
def test_eager_is_right(trial, dtype, form):
    assert trial("linear_few_rows", "eager", dtype, M=3, K=40, N=17, form=form).complaint_after_call() is None


@one_test("form", FORMS)
def test_the_check_sees_a_row_of_weights_that_is_left_out(trial, form):
    made = trial("linear_few_rows", "eager", "bfloat16", M=3, K=40, N=17, form=form)
    assert made.complaint_after_call(lambda t: t.y[:, 16].copy_(t.y[:, 15])) is not None


@one_test("name", LLAMA)
def test_multiprocessors_read_about_as_many_weights_each(name):
    product = LLAMA[name]
    made = FewRows.of(product, _few_rows.rule(product, H200), H200)
    (started, parts), tiles = made.grid(product, H200), -(-product.pairs // _few_rows.PAIRS)
    assert (started, parts) == (min(tiles, H200.multiprocessors * made.blocks), 1)
    is_small = tiles <= 3 * H200.multiprocessors  # and leaves room for the next kernel's blocks
    assert tiles / (-(-tiles // started) * started) > (0.7 if is_small else 0.85)


@pytest.mark.parametrize("name", LLAMA)
@pytest.mark.parametrize("rows", [1, 4, 8, 16])
def test_enough_bytes_are_under_way(name, rows):
    """Little's law asks for 36 KB on each multiprocessor of an H200; a block that has fewer has all of its own."""
    given = LLAMA[name]
    product = FewRowsProduct(rows, given.columns, given.pairs, given.norm)
    made = FewRows.of(product, _few_rows.rule(product, H200), H200)
    bytes_of_row = given.columns * 2
    own = -(-product.pairs // made.grid(product, H200)[0]) * 2 * bytes_of_row
    of_stage = 8 * min((made.columns or made.threads * 8) * 2, bytes_of_row)
    assert made.blocks * made.stages * of_stage >= min(own, 60 * 1024)


@one_test("name", LLAMA)
@one_test("rows", [1, 8])
def test_a_multiprocessor_has_two_blocks_or_more_at_a_time(name, rows):
    """They belong to one kernel, or to it and the next one: one is under way while the other one waits."""
    product = replace(LLAMA[name], rows=rows)
    made = FewRows.of(product, _few_rows.rule(product, H200), H200)
    assert max(2, made.blocks) * (made.shared(product) + made.fixed + 1024) <= 228 * 1024 or product.columns > 2048


@one_test("arch", KNOWN)
@one_test("rows", [1, 8, 9, 40])
@one_test("columns", [8, 1000, 2048, 8192])
def test_the_rules_plan_can_be_launched_on_every_gpu_or_there_is_none(arch, rows, columns):
    with assuming(KNOWN[arch]):
        chip, product = Chip.current(), FewRowsProduct(rows, columns, 500, norm=True)
        plan = _few_rows.rule(product, chip)
        if plan is None:
            assert columns * min(rows, 8) * 2 > 64 * 1024
        else:
            made = FewRows.of(product, plan, chip)
            assert made
            assert made.shared(product) + made.fixed <= KNOWN[arch].shared


def test_rows_that_are_not_whole_packs_have_no_plan():
    assert _few_rows.rule(FewRowsProduct(1, 77, 100, norm=False), H200) is None


@one_test(("rows", "at_once"), [(1, 1), (2, 2), (3, 4), (4, 4)])
def test_threads_with_columns_of_their_own_multiply_up_to_four_rows(rows, at_once):
    product = FewRowsProduct(rows, 2048, 500, norm=True)
    made = FewRows.of(product, {"warps": 8, "columns": 0, "stages": 3, "blocks": 1}, H200)
    assert made
    assert (made.rows, made.macros["COLUMNS"]) == (at_once, 0)
    # Stages of eight rows, 16 bytes a thread; rows of x and the norm's weights, with half a unit behind each.
    assert made.shared(product) == 3 * 8 * 256 * 16 + (rows + 1) * (2048 + 32) * 2


def tuning_of(catalogue, rows, columns):
    op = catalogue["linear_few_rows"]
    return op.variants["tuned"].tuning, case_of(op, "tuned", "bfloat16", {"M": rows, "K": columns, "N": 64})


@one_test(
    ("rows", "columns"), [(1, 1024), (1, 1600), (1, 2048), (1, 8192), (2, 1600), (4, 1024), (4, 8192), (16, 2048)]
)
@one_test("arch", KNOWN)
def test_a_search_may_try_what_the_rule_takes(catalogue, arch, rows, columns):
    tuning, case = tuning_of(catalogue, rows, columns)
    with assuming(KNOWN[arch]):
        assert tuning.obstacle(case, tuning.rule(case)) is None


@one_test(("rows", "warps", "columns", "most"), [
    (1, 4, 0, 6), (2, 8, 0, 3), (1, 16, 0, 2), (4, 4, 0, 4), (4, 8, 0, 2), (4, 16, 0, 1), (8, 8, 512, 3),
])  # fmt: skip
def test_a_search_tries_as_many_blocks_as_a_multiprocessor_has_room_for(catalogue, rows, warps, columns, most):
    tuning, case = tuning_of(catalogue, rows, 512)
    plan = {"warps": warps, "columns": columns, "stages": 1}
    with assuming(KNOWN["sm_90"]):
        found = [tuning.obstacle(case, plan | {"blocks": count}) is None for count in range(1, 7)]
    assert found == [count <= most for count in range(1, 7)]


def test_a_search_tries_no_blocks_that_shared_memory_is_too_small_for(catalogue):
    tuning, case = tuning_of(catalogue, 1, 2048)
    plan = {"warps": 8, "columns": 0, "stages": 3}
    with assuming(KNOWN["sm_90"]):
        assert [tuning.obstacle(case, plan | {"blocks": count}) is None for count in (1, 2, 3)] == [True, True, False]


def test_more_rows_have_no_columns_of_their_own():
    plan = {"warps": 8, "columns": 0, "stages": 3, "blocks": 1}
    assert FewRows.of(FewRowsProduct(5, 2048, 500, norm=True), plan, H200) is None


@one_test(("rows", "columns", "plan"), [
    (1, 2048, (8, 0, 2, 2)), (1, 8192, (16, 0, 2, 1)), (4, 2048, (8, 0, 2, 2)), (4, 8192, None), (1, 57_344, None),
    (1, 1024, (4, 0, 2, 5)), (5, 2048, None), (4, 1024, (4, 0, 2, 4)), (2, 712, (4, 0, 2, 5)),
])  # fmt: skip
def test_few_rows_of_x_take_columns_apart_where_several_blocks_fit(rows, columns, plan):
    found = _few_rows.rule(FewRowsProduct(rows, columns, 500, norm=columns < 8192), H200)
    assert (tuple(found.values()) == plan) if plan else (found["columns"] > 0)


def test_a_small_product_of_one_row_leaves_room_for_the_next_kernel():
    small, large = (_few_rows.rule(LLAMA[name], H200) for name in ("qkv", "gates"))
    assert (small["blocks"], large["blocks"]) == (2, 3)
    assert _few_rows.rule(replace(LLAMA["down"], pairs=8192), H200)["blocks"] == 2
