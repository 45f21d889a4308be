"""Parts of rows: each unit has a thread, whose block has few other threads."""

from __future__ import annotations

import pytest

from harness.collection.ops.row_parts import RowParts
from tests.one_test import one_test

JUMP = 0x947
"""The code of BRA in machine code of sm_90."""
KERNELS = {
    "bias_residual_words": {"SCALAR": "__half"},
    "permute_heads": {"ELEMENT": "uint4"},
    "quantize_tuned": {"SCALAR": "__half", "INDEX": "unsigned", "CHANNEL": 1, "WHOLE": 1},
    "dequantize_bias_tuned": {"SCALAR": "float", "INDEX": "unsigned", "CHANNEL": 0, "WHOLE": 1},
}


@pytest.mark.parametrize("most", [64, 128, 256])
@pytest.mark.parametrize("units", [1, 31, 64, 65, 192, 250, 256, 257, 1000, 2752])
def test_each_unit_has_a_thread_and_few_threads_have_none(units, most):
    parts = RowParts.of(3, units, most)
    assert parts.grid == (parts.blocks, 3)
    assert parts.threads <= most
    assert parts.threads % 32 == 0
    # As in row_part.cuh: threads behind the end do the last unit again.
    done = [min(thread, units - 1) for thread in range(parts.blocks * parts.threads)]
    assert sorted({*done}) == list(range(units))
    assert len(done) - units < 32 * parts.blocks


def test_nothing_has_no_blocks():
    assert RowParts.of(0, 0, 256).grid == (0, 0)


@one_test("kernel", KERNELS)
def test_no_jump_comes_before_the_loads(machine_code, kernel):
    """There is one jump, behind the end, to itself."""
    code = machine_code(f"{kernel.rpartition('_')[0]}.cu", {**KERNELS[kernel], "ROW_THREADS": 96})[kernel]
    jumps = [at for at in range(0, len(code), 16) if int.from_bytes(code[at : at + 2], "little") & 0xFFF == JUMP]
    assert len(jumps) == 1
