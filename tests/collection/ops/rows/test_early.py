"""Few rows of whole packs: what is needed after the sums is loaded with the row, for one wait in place of two."""

from __future__ import annotations

from harness.collection.ops.chip import H200, Chip
from harness.collection.ops.rows._rows import RowPlan
from harness.cuda.assumed import KNOWN, assuming
from harness.model import Case
from harness.ops import Catalogue
from tests.one_test import one_test

LOAD, SHUFFLE = 0x981, 0xF89
"""Codes of LDG and SHFL.BFLY in machine code of sm_90."""
BLOCK = {"COUNT": 1, "LANES": 0, "CLUSTER": 0, "RAGGED": 0, "TILE": 0, "TOGETHER": 1, "WHOLE": 1, "THREADS": 512}
NORMS = {
    "rms_norm": BLOCK,
    "layer_norm": BLOCK,
    "layer_norm of a cluster": BLOCK | {"CLUSTER": 1},
    "layer_norm of packs that threads lack": BLOCK | {"WHOLE": 0},
    "add_rms_norm": BLOCK,
    "add_rms_norm_quantize": BLOCK | {"OF_ROW": 0},
    "add_rms_norm_quantize of rows": BLOCK | {"OF_ROW": 1},
    "dequantize_bias_residual_layer_norm_quantize": {
        "WIDTH": 4, "COUNT": 2, "LANES": 0, "THREADS": 512, "TOGETHER": 1, "FULL": 1, "RESIDENT": 512, "CHANNEL": 1
    },
}  # fmt: skip


@one_test("dtype", ["float", "__half"])
@one_test("norm", NORMS)
def test_no_load_comes_after_the_first_exchange_of_sums(machine_code, norm, dtype):
    """The compiler may move a load behind the wait for another one, and did so. Nothing in PTX forbids that."""
    op = norm.partition(" ")[0]
    late = {}
    for early in (0, 1):
        code = machine_code(f"{op}.cu", {"SCALAR": dtype, **NORMS[norm], "EARLY": early})[f"{op}_tuned"]
        kinds = [int.from_bytes(code[at : at + 2], "little") & 0xFFF for at in range(0, len(code), 16)]
        late[early] = kinds[kinds.index(SHUFFLE) :].count(LOAD)
    assert late[1] == 0
    assert late[0] > 0, "else this test would pass whatever EARLY is"


def early(plan: RowPlan, rows: int, chip: Chip = H200) -> bool:
    made = plan.with_few_early(rows, chip)
    assert made.macros.get("EARLY", 0) == made.early
    return made.early


def test_rows_are_few_while_multiprocessors_have_threads_for_them_at_once():
    assert [early(RowPlan(1, 0, 512), rows) for rows in (1, 132, 133)] == [True, True, False]
    assert [early(RowPlan(1, 0, 128), rows) for rows in (132 * 4, 132 * 4 + 1)] == [True, False]
    assert [early(RowPlan(1, 0, 1024), rows) for rows in (132, 133)] == [True, False]
    assert [early(RowPlan(1, 0, 512, 4), rows) for rows in (33, 34)] == [True, False], "a row has four blocks"
    assert [early(RowPlan(1, 0, 512), 100, chip=Chip(count, True, 0)) for count in (99, 100)] == [False, True]


def test_threads_that_keep_much_lack_registers_and_other_rows_have_another_reason():
    assert [early(RowPlan(count, 0, 512), 8) for count in (4, 5)] == [True, False]
    assert [early(RowPlan(count, 0, 1024), 8) for count in (2, 3)] == [True, False]
    assert [early(RowPlan(2, 0, 512, together=together), 8) for together in (2, 3)] == [True, False]
    assert not early(RowPlan(1, 16, 128), 8)
    assert not early(RowPlan(1, 0, 512, ragged=True), 8)
    assert not early(RowPlan(8, 16, 128, tile_rows=16), 8)


@one_test("columns", [768, 2048, 4096, 5120, 8192, 11_008, 14_336, 16_384, 32_768])
def test_decoding_loads_early(columns):
    for rows in (1, 8, 16):
        for vectors in (1, 2):
            plan = RowPlan.with_vectors(rows, columns, 2, H200, vectors, norm=True)
            assert plan is not None
            assert early(plan, rows)


def test_a_search_tries_both_where_it_may() -> None:
    tuning = Catalogue()["layer_norm"].variants["tuned"].tuning
    assert tuning

    def case(rows: int, columns: int) -> Case:
        return Case("layer_norm", "tuned", "float16", (("M", rows), ("N", columns)))

    with assuming(KNOWN["sm_90"]):
        rules = {rows: tuning.rule(case(rows, 4096)) for rows in (8, 2**15)}
        assert {rows: rule and rule["early"] for rows, rule in rules.items()} == {8: 1, 2**15: 0}
        for rows, rule in rules.items():
            assert rule
            assert tuning.obstacle(case(rows, 4096), {**rule, "early": 1 - int(rule["early"])}) is None
            (built,) = tuning.kernels(case(rows, 4096), rule) if tuning.kernels else ()
            assert built.macros.get("EARLY", 0) == rule["early"]
        lanes = tuning.rule(case(2**15, 256))
        assert lanes
        assert lanes["lanes"]
        assert "registers" in str(tuning.obstacle(case(2**15, 256), {**lanes, "early": 1}))
        assert tuning.parameters(case(8, 5001))["early"] == (0,)
