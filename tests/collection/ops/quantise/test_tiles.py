"""Tiles: each element is one thread's, and a thread's units have the same columns."""

from __future__ import annotations

import pytest

from harness import cuda
from harness.collection.ops.elementwise import CUDA_TYPE
from harness.collection.ops.quantise import dequantize_bias, quantize
from harness.collection.ops.quantise._tiles import _EVERY_THREADS, _EVERY_UNITS, RepeatingTiles, _tile_macros
from harness.cuda import fast_divisor
from harness.model import Case
from tests.one_test import one_test
from tests.rare import rare

MATRICES = [
    (0, 8),
    (1, 1),
    (1, 3),
    (3, 1),
    (5000, 1),
    (700, 2),
    (333, 3),
    (77, 96),
    (77, 97),
    (500, 97),
    (65, 98),
    (40, 768),
    (33, 1023),
    (9, 1024),
    (9, 4096),
    (5, 4097),
    (1, 40001),
    (3, 40001),
]


def divided(values, divisor, bits):
    """What the kernel's fast division gives."""
    multiplier, shift = (int(part.value) for part in fast_divisor(divisor, bits))
    return [((value * multiplier >> bits) + value) >> shift for value in values]


@pytest.mark.parametrize(
    ("size", "most", "block"), [rare(4, 4, 256), rare(8, 4, 256), rare(4, 1, 64), (8, 2, 128), (2, 1, 256), (2, 2, 256)]
)
@pytest.mark.parametrize(("rows", "columns"), MATRICES)
def test_each_element_is_one_threads_and_columns_repeat(rows, columns, size, most, block):
    """The arithmetic of in_tiles, thread by thread."""
    elements = rows * columns
    tiles = RepeatingTiles.of(elements, columns, size)
    assert most in _EVERY_UNITS
    assert block in _EVERY_THREADS
    whole, threads = elements // size, -(-tiles.threads(most) // block) * block
    tile_of = divided(range(threads), tiles.period, 32)
    seen = []
    for thread, tile in zip(range(threads), tile_of, strict=True):
        place = thread - tile * tiles.period if most > 1 else thread
        assert most == 1 or 0 <= place < tiles.period
        first = tile * most * tiles.period + place if most > 1 else thread
        if first > whole:
            continue
        (row,) = divided([place * size], max(1, columns), 32)
        column = place * size - row * max(1, columns)
        if first + (most - 1) * tiles.period < whole:
            units = [first + u * tiles.period for u in range(most)]
            rest = []
        else:
            units = list(range(first, whole, tiles.period))
            following = first + len(units) * tiles.period
            rest = [whole * size + j for j in range(size)] if following == whole else []
        assert len(units) <= most
        for unit in units:
            assert unit * size % columns == column
            seen += range(unit * size, unit * size + size)
        assert not rest or whole * size % columns == column
        seen += [element for element in rest if element < elements]
    assert sorted(seen) == list(range(elements))


def test_small_matrices_have_small_units_and_few_of_them_a_thread(monkeypatch):
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)

    def plan(op, rows, columns):
        case = Case(op.name, "tuned", "float16", (("M", rows), ("C", columns)), (("scales", "channel"),))
        tuning = op.variants["tuned"].tuning
        assert tuning.obstacle(case, tuning.rule(case)) is None
        return tuning.rule(case)

    def parts(elements, threads):
        return {"elements": elements, "units": 1, "threads": threads, "row_part": 1}

    # Long rows are cut into parts; short rows, and rows that aren't whole units, go through tiles.
    some = (1, 4096), (16, 768), (64, 4096)
    assert [plan(quantize.OP, *few) for few in some] == [parts(2, 64)] * 2 + [parts(4, 256)]
    assert [plan(dequantize_bias.OP, *few) for few in some] == [parts(4, 256)] * 3
    for op, elements in ((quantize.OP, 8), (dequantize_bias.OP, 4)):
        few = {"elements": 2, "units": 1, "threads": 256, "row_part": 0}
        assert [plan(op, 333, 3), plan(op, 16, 767), plan(op, 900, 100)] == [few] * 3
        assert plan(op, 256, 1023) == {**few, "units": 2}
        assert plan(op, 2**17, 1024) == {"elements": elements, "units": 4, "threads": 256, "row_part": 0}


def test_a_matrix_without_numbers_of_columns_is_one_row(monkeypatch):
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)
    tuning = quantize.OP.variants["tuned"].tuning
    found = {}
    for scales in ("tensor", "channel"):
        case = Case("quantize", "tuned", "float16", (("M", 40), ("C", 100)), (("scales", scales),))
        found[scales] = tuning.rule(case)["row_part"]
    assert found == {"tensor": 1, "channel": 0}


def test_parts_of_rows_are_refused_where_a_block_cannot_have_one():
    tuning = dequantize_bias.OP.variants["tuned"].tuning

    def refused(rows, columns, **other):
        case = Case("dequantize_bias", "tuned", "float16", (("M", rows), ("C", columns)), (("scales", "channel"),))
        return tuning.obstacle(case, {"elements": 4, "units": 1, "threads": 64, "row_part": 1} | other)

    assert refused(2**16 - 1, 4) is None
    assert "whole units" in refused(4, 30)
    assert "nothing" in refused(0, 64)
    assert "one unit" in refused(4, 64, units=2)
    assert "so many rows" in refused(2**16, 4)
    assert "row_part can't be 1" in refused(2**12, 4096)


def test_only_a_matrix_that_ends_inside_a_unit_has_a_rest():
    plans = [{"elements": elements, "units": units, "row_part": 0} for elements in (2, 4) for units in (1, 2, 4)]
    found = {count: [_tile_macros(count, 4, 3, plan).get("REST", 1) for plan in plans] for count in (12, 6, 9)}
    assert found == {12: [0, 0, 1, 0, 0, 1], 6: [0, 0, 1, 1, 1, 1], 9: [1] * 6}


@one_test("op", ["quantize", "dequantize_bias", "dequantize_bias_residual", "dequantize_bias_gelu_quantize"])
@one_test("more", [{"TILE_UNITS": 1}, {"TILE_UNITS": 2}, {"TILE_UNITS": 2, "WHOLE": 0}, {"ROW_THREADS": 96}], ids=str)
def test_the_kernel_of_a_small_matrix_has_no_jumps(machine_code, op, more):
    """It takes little more time than its instructions. Accesses to a unit that isn't there have a condition."""
    macros = {"SCALAR": "__half", "INDEX": "unsigned", "CHANNEL": 1, "WHOLE": 1, "UNIT_ELEMENTS": 2} | more

    def jumps(macros):
        code = machine_code(f"{op}.cu", macros)[f"{op}_tuned"]
        return sum(int.from_bytes(code[at : at + 2], "little") & 0xFFF == 0x947 for at in range(0, len(code), 16))

    assert jumps(macros | {"REST": 0}) == 1, "the one behind the end of each kernel, to itself"
    if "ROW_THREADS" not in more:
        assert jumps(macros) > 1


@pytest.mark.parametrize("size", [4, 8])
def test_a_warp_begins_on_a_line_and_takes_neighbours(size):
    for columns in (1, 96, 97, 768, 1023, 4096, 4097):
        tiles = RepeatingTiles.of(2**27, columns, size)
        assert tiles.period % 32 == 0
        assert tiles.period >= 256
        assert tiles.period * size % columns == 0


@one_test("columns", [1, 97, 2**20 + 1, 2**31 - 1])
def test_indexes_of_32_bits_do_not_overflow(columns):
    """Up to 2^31 - 1 elements: threads are divided, so they stay below 2^31, and units below 2^32."""
    for elements in (2**31 - 1, 2**31 - columns, columns):
        tiles = RepeatingTiles.of(elements, columns, 4)
        assert tiles.period * 4 <= max(4, elements + 3)
        for units in _EVERY_UNITS:
            threads = -(-tiles.threads(units) // 256) * 256
            assert threads < 2**31
            last = (threads - 1) // tiles.period
            assert last * units * tiles.period + units * tiles.period < 2**32


@one_test("op", ["quantize", "dequantize_bias", "dequantize_bias_residual", "dequantize_bias_gelu_quantize"])
def test_kernels_with_64_bit_indexes_do_not_spill(compiled, op):
    macros = {"SCALAR": CUDA_TYPE["bfloat16"], "INDEX": "unsigned long long", "CHANNEL": 1}
    for more in ({}, {"WHOLE": 0}, {"WHOLE": 1}, {"STEPS": 1}):
        assert {kernel.local_bytes for kernel in compiled(f"{op}.cu", macros | more).values()} == {0}


@one_test("whole", [0, 1])
@one_test(
    ("op", "wide"),
    [
        ("quantize", 4),
        ("dequantize_bias", 4),
        ("dequantize_bias_residual", 8),
        ("dequantize_bias_gelu_quantize", 4),
    ],
)
def test_all_wide_loads_of_a_thread_are_in_one_piece_of_code(ptx, op, wide, whole):
    """A load behind a branch would wait for the one before it."""
    import re

    macros = {"SCALAR": "float", "INDEX": "unsigned", "CHANNEL": 0, "WHOLE": whole}
    pieces = re.split(r"\n\$L\w+:|\bbra[^\n]*", ptx(f"{op}.cu", f"{op}_tuned", macros))
    loads = [len(re.findall(r"ld\.global\.nc\.v4", piece)) for piece in pieces]
    assert max(loads) >= wide
