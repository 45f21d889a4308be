"""The transpose on a GPU, bit by bit, at the sizes and addresses that break kernels; what each variant can't do."""

from __future__ import annotations

import pytest

from harness.collection.ops.layouts._pack_plan import _PACK_TILES, PackTiles
from harness.collection.ops.layouts._transpose_plan import Matrices, RegisterBlocks
from harness.collection.ops.layouts._transpose_tuning import packs_are_best
from harness.collection.ops.layouts.transpose import OP
from harness.model import Case
from tests.one_test import one_test

COMPILED = [
    {"M": rows, "N": columns}
    for rows, columns in [
        (8192, 8192),
        (8191, 8193),
        (100_000, 3),
        (3, 100_001),
        (2048, 3001),
        (1000, 196),
        (60, 44),
        (768, 768),
        (1408, 1408),
        (2**16, 2**16),
    ]
]
OURS = ["naive", "tiled", "packed", "tuned"]
SHAPES = [
    (0, 5),  # empty, both ways
    (5, 0),
    (1, 1),
    (1, 1000),  # the same order
    (1001, 1),
    (2, 2),
    (8, 8),
    (31, 33),  # around the textbook's tile
    (32, 32),
    (64, 64),
    (66, 130),
    (128, 256),  # whole tiles of packs
    (136, 264),  # whole packs, and no whole tiles
    (16, 32),  # register blocks: a warp
    (16, 128),
    (48, 80),
    (640, 1280),
    (768, 752),
    (1024, 1024),
    (1408, 1424),
    (1440, 1456),
    (1000, 768),
    (196, 392),  # whole words of halves, and no whole packs
    (197, 64),
    (64, 197),
    (1000, 3),  # narrow
    (3, 1001),
    (2, 5000),
    (4999, 4),
    (40_001, 3),
    (3, 40_000),
    (2048, 7),  # narrow, in whole packs
    (5, 1600),
    (777, 49),
    (3000, 63),
    (4097, 17),
    (1023, 1025),
    (2047, 1531),  # many tiles, odd everything
    (2048, 1536),
    (257, 12_345),
    (2049, 4097),  # tiles of packs, odd everything
    (4111, 1003),
    (2048, 3001),  # rows of y are whole sectors
    (3001, 2048),
    (2056, 2056),  # whole packs, and no whole sectors
    (4099, 8195),  # the largest tiles of packs, odd everything
    (100_003, 49),  # flat tiles
    (8192, 4352),  # whole sectors
    (2049, 8192),
    (1536, 1201),  # small tiles, rows of y are whole sectors
    (8192, 2049),
]
LARGE = [(2049, 4097), (2048, 3001), (2048, 2048)]
OFFSETS = [(1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (3, 5), (8, 8), (7, 11)]


def unsupported(variant, dtype, shape):
    reason = OP.variants[variant].unsupported
    return reason and reason(Case("transpose", variant, dtype, tuple(zip("MN", shape, strict=True))))


def run_and_check(launch, placed, any_bits, variant, dtype, shape, x_offset=0, y_offset=0):
    import torch

    rows, columns = shape
    x = any_bits(rows * columns, dtype, x_offset).view(rows, columns)
    y = placed((columns, rows), dtype, y_offset)
    launch("transpose", variant, dtype, {"M": rows, "N": columns}, x=x, y=y)
    assert torch.equal(y.tensor.view(x.dtype), x.t()), (shape, x_offset, y_offset)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, any_bits, variant, dtype):
    for shape in SHAPES:
        if not unsupported(variant, dtype, shape):
            run_and_check(launch, placed, any_bits, variant, dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, any_bits, variant, dtype):
    for shape in [
        (1, 5),
        (2, 2),
        (64, 64),
        (130, 66),
        (256, 512),
        (255, 301),
        (1000, 3),
        (3, 1000),
        (3, 1001),
        (4, 1000),
        (1000, 49),
        *LARGE,
    ]:
        for offsets in OFFSETS:
            if not unsupported(variant, dtype, shape):
                run_and_check(launch, placed, any_bits, variant, dtype, shape, *offsets)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(
    "shape",
    [(65_552, 32_784), (65_544, 32_776), (65_539, 32_771), (3, 715_827_899), (715_827_899, 3), (1, 2**31 + 5)],
    ids=str,
)
def test_more_than_2_to_31_elements(launch, placed, variant, shape):
    import torch

    if unsupported(variant, "float16", shape):
        pytest.skip("not for odd sizes")
    rows, columns = shape
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randint(-(2**15), 2**15, shape, generator=generator, device="cuda", dtype=torch.int16)
    y = placed((columns, rows), "float16")
    launch("transpose", variant, "float16", {"M": rows, "N": columns}, x=x, y=y)
    assert torch.equal(y.tensor.view(torch.int16), x.t())


def test_eager_gives_the_reference_on_the_cpu(trial, dtype):
    for rows, columns in [(50, 30), (1, 30), (50, 1)]:
        eager = trial("transpose", "eager", dtype, M=rows, N=columns)
        assert eager.complaint_after_call() is None
    eager = trial("transpose", "eager", dtype, M=30, N=30)
    assert eager.complaint(y=eager.inputs.x)


@one_test(
    ("dtype", "shape", "reason"),
    [
        ("float32", (64, 64), "float"),
        ("float16", (64, 63), "even"),
        ("bfloat16", (63, 64), "even"),
        ("float16", (62, 66), None),
    ],
)
def test_packs_are_for_pairs_of_halves(dtype, shape, reason):
    found = unsupported("packed", dtype, shape)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(("shape", "possible"), [((2**32, 2), False), ((2, 2**32), False), ((2, 2**31), True)])
def test_sizes_of_32_bits(shape, possible):
    for variant in ("tiled", "packed", "tuned"):
        assert (unsupported(variant, "float16", shape) is None) == possible
    assert unsupported("naive", "float16", shape) is None


def test_naive_divides_once(ptx):
    text = ptx("transpose.cu", "transpose_naive", {"ELEMENT": "unsigned", "INDEX": "unsigned"})
    assert text.count("div.u32") == 1
    assert text.count("rem.u32") == 0


@pytest.mark.parametrize(("element", "words", "joined"), [("unsigned", 4, 0), ("unsigned short", 2, 8)])
def test_all_loads_of_a_register_block_are_under_way_before_a_store(ptx, element, words, joined):
    """joined: words of two halves that a thread makes."""
    macros = {"ELEMENT": element, "THREADS": 128, "WARPS_ACROSS": 2}
    text = ptx("transpose.cu", "transpose_register_blocks", macros)
    load, store = f"ld.global.nc.L1::no_allocate.v{words}", f"st.global.cs.v{words}"
    assert (text.count("ld.global"), text.count("st.global")) == (4, 4)
    assert (text.count(load), text.count(store), text.count("prmt.b32")) == (4, 4, joined)
    assert text.rindex(load) < text.index(store)
    assert "local" not in text


@pytest.mark.slow  # test_pack_tiles.py has the tiles
def test_shapes_take_every_kind_of_tiles_of_packs():
    """What the tests above run on a GPU like an H200."""
    found, wanted = set(), set()
    for itemsize in (2, 4):
        grain = 32 // itemsize
        for rows, cols in SHAPES:
            shape = Matrices(1, rows, cols, itemsize)
            plan = PackTiles.of(shape, 132, aligned=True) if rows > 1 and cols > 1 else None
            if plan and packs_are_best(shape, 132):
                found.add((itemsize, plan.packs_across, plan.packs_down, plan.flat, rows % grain == 0))
        wanted |= {(itemsize, *packs, False, alike) for packs in _PACK_TILES[itemsize] for alike in (False, True)}
        wanted.add((itemsize, 1, 16, True, False))
    assert wanted <= found


def test_shapes_take_every_kind_of_register_blocks():
    plans = [RegisterBlocks.of(Matrices(1, rows, cols, itemsize)) for rows, cols in SHAPES for itemsize in (2, 4)]
    found = {(plan.shape.itemsize, plan.warps_across) for plan in plans if plan}
    assert found == {(itemsize, warps) for itemsize in (2, 4) for warps in (1, 2, 4)}
    assert any(plan and (plan.shape.rows % plan.rows or plan.shape.cols % plan.cols) for plan in plans)
