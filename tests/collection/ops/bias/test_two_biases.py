"""Biases of rows and of columns, against exact sums; and what the compiler makes of / and % by the same number."""

from __future__ import annotations

import math
import re

import pytest

from harness.collection.ops.bias.two_biases import OP, two_passes
from harness.collection.ops.elementwise import CUDA_TYPE
from harness.model import Case, Traffic
from tests.one_test import one_test

# Rows of whole packs and other rows, below and from 2^31 elements on.
COMPILED = [{"R": r, "C": c} for r in (8, 2**28) for c in (64, 63)]
OURS = ["divmod", "divmod64", "twice", "twice64", "divmul", "divmul64", "tuned"]
SHAPES = [
    (0, 8),  # empty, in each way
    (8, 0),
    (1, 1),  # one element
    (1, 5),  # fewer elements than a pack
    (1, 8),
    (7, 24),  # whole packs, odd rows
    (33, 64),
    (333, 1),  # rows shorter than a pack
    (333, 2),
    (333, 3),
    (65, 12),  # whole packs of floats, not of halves
    (65, 15),  # packs over the ends of rows
    (65, 9),
    (333, 49),
    (65, 1023),  # most warps have packs in one row each alone
    (33, 130),
    (331, 337),  # many blocks, odd everything
    (409, 1024),
]
MUFU = 0x308  # the low 12 bits of an instruction: a division begins with a reciprocal


def expected(x, rows, columns):
    """In float, rounded once."""
    return (x.float() + rows.float().unsqueeze(1) + columns.float()).to(x.dtype)


def unsupported(variant, shape):
    reason = OP.variants[variant].unsupported
    return reason and reason(Case("two_biases", variant, "float16", tuple(zip("RC", shape, strict=True))))


def check(launch, placed, variant, dtype, shape, offsets=(0, 0, 0, 0)):
    import torch

    sizes = shape, shape[0], shape[1], shape
    x, rows, columns, y = (placed(size, dtype, offset) for size, offset in zip(sizes, offsets, strict=True))
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    inputs = {"x": x.tensor, "rows": rows.tensor, "columns": columns.tensor}
    for tensor in inputs.values():
        tensor.normal_(generator=generator)
    launch("two_biases", variant, dtype, dict(zip("RC", shape, strict=True)), **inputs, y=y)
    assert torch.equal(y.tensor, expected(**inputs)), (shape, offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, variant, dtype):
    for shape in SHAPES:
        check(launch, placed, variant, dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for shape in ((5, 40), (5, 13), (3, 6), (17, 1)):
        for offset in (1, 2, 3, 4, 5, 7):
            for which in range(4):
                offsets = tuple(offset if place == which else 0 for place in range(4))
                check(launch, placed, variant, dtype, shape, offsets)
            check(launch, placed, variant, dtype, shape, (offset,) * 4)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_special_values(launch, special, variant, dtype):
    import torch

    # Each value meets each pair of other values, twice: two times 12 are rows of whole packs.
    columns = special(dtype).repeat(2)
    values, rows = torch.cartesian_prod(special(dtype), special(dtype)).T.contiguous()
    x = values.view(-1, 1).expand(-1, len(columns)).contiguous()
    y = torch.full_like(x, 7)
    launch("two_biases", variant, dtype, dict(zip("RC", x.shape, strict=True)), x=x, rows=rows, columns=columns, y=y)
    wanted = expected(x, rows, columns)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(y.signbit() & (y == 0), wanted.signbit() & (wanted == 0))


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", ["divmod64", "twice64", "divmul64", "tuned"])
@pytest.mark.parametrize("shape", [(2**21 + 1, 1024), (2**21 + 1, 1025)], ids=str)
def test_more_than_2_to_31_elements(launch, variant, shape):
    import torch

    assert math.prod(shape) > 2**31
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.empty(shape, device="cuda", dtype=torch.float16).normal_(generator=generator)
    rows, columns = (torch.randn(size, generator=generator, device="cuda", dtype=torch.float16) for size in shape)
    y = torch.full_like(x, math.nan)
    symbols = dict(zip("RC", shape, strict=True))
    launch("two_biases", variant, "float16", symbols, x=x, rows=rows, columns=columns, y=y)
    # Slices at the start, around 2**31 elements and at the end stand for the rest.
    for first in (0, 2**31 // shape[1] - 50, shape[0] - 100):
        part = slice(first, first + 100)
        assert torch.equal(y[part], expected(x[part], rows[part], columns)), first
    assert not bool(y.isnan().any())


@one_test("variant", OURS)
def test_indexes_of_32_bits_count_fewer_than_2_to_31_elements(variant):
    assert unsupported(variant, (2**21 - 1, 1024)) is None
    if variant in ("divmod", "twice", "divmul"):
        assert "fewer than 2^31" in unsupported(variant, (2**21, 1024))
    else:
        assert unsupported(variant, (2**21, 1024)) is None


def test_eager_is_within_the_tolerance_and_a_missing_bias_is_not(trial, dtype):
    eager = trial("two_biases", "eager", dtype, R=3000, C=300)
    assert eager.complaint_after_call() is None
    assert eager.complaint(y=eager.inputs.x + eager.inputs.columns)
    assert eager.complaint(y=eager.inputs.x + eager.inputs.rows.unsqueeze(1))


def test_eager_moves_four_tensors_where_two_would_do():
    symbols = {"R": 1000, "C": 10}
    assert two_passes(symbols, 2) == Traffic(read=2 * 20_000 + 2020, written=2 * 20_000)
    assert OP.work_of(symbols, "float16").moved == 2 * 20_000 + 2020


# What the text's step is worth depends on the compiler, so this must be seen to.


def divisions(text):
    """Divisions and remainders in a kernel's PTX, by their width in bits."""
    found = re.findall(r"\b(?:div|rem)\.u(32|64)\b", text)
    return {width: found.count(width) for width in dict.fromkeys(found)}


@pytest.mark.parametrize(("variant", "count"), [("divmod", 1), ("twice", 2), ("divmul", 1)])
def test_the_compiler_puts_two_divisions_by_one_number_together(ptx, variant, count):
    macros = {"SCALAR": "float"}
    assert divisions(ptx("two_biases.cu", f"two_biases_{variant}", macros)) == {"32": count}
    # Each division of 64 bits has a way for numbers that fit into 32 bits beside it.
    assert divisions(ptx("two_biases.cu", f"two_biases_{variant}64", macros)) == {"64": count, "32": count}


ACCESS = r"\b((?:ld|st)\.global)(?:\.nc)?(?:\.L\w+)*(\.v\d)?\.\w\d+"


def test_all_biases_are_asked_for_before_x_is_waited_for(accesses_of_packs):
    found = accesses_of_packs("two_biases.cu", "two_biases_any", {"SCALAR": "float", "INDEX": "unsigned"})
    assert found == ["ld.nc.v4", *["ld.nc"] * 8, "st.v4"]


@pytest.mark.parametrize("scalar", ["__half", "__nv_bfloat16"])
def test_a_pack_of_halves_in_long_rows_has_few_loads(ptx, scalar):
    """After the pack of x and the row's bias comes the next row's, and then columns: 8, or in one row 4 or 5.

    In rows shorter than a pack come 15 loads. Where these meet, no load is left.
    """
    code = ptx("two_biases.cu", "two_biases_any", {"SCALAR": scalar, "INDEX": "unsigned"})
    pieces = [re.findall(ACCESS, piece) for piece in re.split(r"\n\$L\w+:|\bbra[^\n]*", code)]
    loads, packs = ([piece for piece in pieces if piece and (".v4" in str(piece)) == wide] for wide in (False, True))
    one_by_one = 4  # the tail: x, row, column and y of an element
    assert sorted(map(len, loads)) == [1, one_by_one, 4, 5, 8, 15]
    assert packs == [[("ld.global", ".v4"), ("ld.global", "")], [("st.global", ".v4")]]
    assert "vote.sync.any" in code, "a warp goes one way"


@pytest.mark.slow  # what divisions cost is no result, and compiled.csv has the registers
def test_the_machine_code_has_as_many(machine_code, dtype):
    every = machine_code("two_biases.cu", {"SCALAR": CUDA_TYPE[dtype]})
    code = {name.removeprefix("two_biases_"): instructions for name, instructions in every.items()}
    assert code["divmod"] == code["divmul"]
    reciprocals = {name: count_instructions(instructions, MUFU) for name, instructions in code.items()}
    assert reciprocals == {"divmod": 1, "twice": 2, "divmul": 1, "divmod64": 2, "twice64": 4, "divmul64": 2}


def count_instructions(code, opcode):
    """The instructions of 16 bytes that have this opcode."""
    return sum(int.from_bytes(code[at : at + 2], "little") & 0xFFF == opcode for at in range(0, len(code), 16))
