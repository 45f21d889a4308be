"""layer_norm_window_partition: its plans, its check, and its kernels on a GPU."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest

from harness.collection.ops.elementwise import CUDA_TYPE
from harness.collection.ops.layouts import _windows as windows
from harness.collection.ops.layouts.layer_norm_window_partition import OP, WindowRowPlan, WindowTilePlan, fused_lanes
from harness.model import Traffic
from harness.ops import comparer
from tests.one_test import one_test

# Lanes of a warp with few chunks and with many, with and without missing ones, chunks of each width, blocks, and rows
# that are too long for a block.
COMPILED = [
    {"B": 2, "H": 2, "W": 2, "C": c, "window": 2, "shift": 1}
    for c in (
        *(1, 3, 4, 8, 49, 96, 97, 98, 100, 128, 180, 192, 255, 384, 511, 768, 1000, 1023, 1536, 2047, 3072, 8191),
        *(8192, 2**15, 2**17),
    )
]
OURS = ["unfused", "fused", "tuned"]
# B, H, W, C, window, shift.
SHAPES = [
    (1, 1, 1, 1, 1, 0),
    (1, 1, 1, 96, 1, 0),
    (2, 7, 7, 96, 7, 3),
    (3, 14, 21, 96, 7, 3),  # 3 * 14 * 21 rows aren't a multiple of a block's
    (3, 14, 21, 96, 7, 0),
    (2, 24, 12, 128, 12, 6),
    (2, 16, 8, 192, 8, 4),
    (2, 16, 8, 384, 8, 20),
    (2, 14, 14, 768, 7, 3),
    (1, 14, 14, 1536, 7, 3),
    (5, 7, 7, 1, 7, 3),  # other numbers of channels
    (5, 7, 7, 3, 7, 3),
    (5, 7, 7, 8, 7, 3),
    (5, 7, 7, 49, 7, 3),
    (5, 7, 7, 97, 7, 3),
    (5, 7, 7, 98, 7, 3),
    (5, 7, 7, 100, 7, 3),
    (3, 14, 14, 33, 7, 3),  # tiles: of one lane, two, four and a warp a row, the last of them with few rows
    (3, 14, 21, 97, 7, 3),
    (1, 8, 8, 97, 8, 4),
    (1, 8, 8, 97, 1, 0),
    (2, 60, 60, 49, 30, 11),
    (3, 14, 14, 127, 7, 3),
    (3, 14, 14, 129, 7, 3),
    (3, 14, 14, 180, 7, 3),
    (3, 14, 14, 255, 7, 3),
    (3, 14, 14, 257, 7, 3),
    (3, 14, 14, 258, 7, 3),
    (3, 14, 14, 511, 7, 3),
    (3, 14, 14, 513, 7, 3),
    (1, 14, 14, 2047, 7, 3),
    (2, 6, 6, 1000, 3, 1),
    (2, 6, 6, 1023, 3, 1),
    (1, 4, 4, 3072, 2, 1),
    (1, 4, 4, 8191, 2, 1),
    (1, 4, 4, 8192, 2, 1),
    (1, 2, 2, 2**15, 2, 1),
    (1, 2, 2, 2**17 + 1, 2, 1),
    (0, 14, 14, 96, 7, 3),
]
ROWS = sorted(
    {*range(1, 200), *(c * size // 16 for c in (96, 128, 192, 384, 768, 1024, 1536, 8192) for size in (2, 4))}
)


def sizes_of(shape):
    return dict(zip(windows.SYMBOLS, shape, strict=True))


# ---- Plans.


@one_test("width", [16, 8, 4, 2])
def test_the_threads_of_a_team_have_each_chunk_of_a_row_once(width):
    for row in [*ROWS, 385, 1000, 4096, 4097, 8192, 16_384]:
        plan = WindowRowPlan.of(row, width)
        if plan is None:
            assert row > 8 * 1024
            continue
        team = plan.lanes or plan.threads
        had = [rank + j * team for rank, j in itertools.product(range(team), range(plan.count))]
        assert sorted(chunk for chunk in had if chunk < row) == list(range(row))
        # Only a thread's last chunk may be missing.
        assert (plan.count - 1) * team < row
        assert plan.whole == (len(had) == row)
        assert plan.threads % 32 == 0
        assert plan.macros["RESIDENT"] >= plan.threads


def test_lanes_of_fused_have_each_element_of_a_row_once():
    """Only the last element of a lane may be missing."""
    for channels in (*range(1, 600), 768, 1000, 1023, 1024, 1536, 2047, 2048):
        lanes, each = fused_lanes(channels)
        assert 32 % lanes == 0
        assert (each - 1) * lanes < channels <= each * lanes
    assert [fused_lanes(channels) for channels in (3, 96, 97, 2049)] == [(16, 1), (16, 6), (16, 7), (32, 0)]


def test_a_grid_has_a_team_for_each_row():
    for row in ROWS:
        plan = WindowRowPlan.of(row, 16)
        a_block = plan.threads // plan.lanes * plan.together if plan.lanes else 1
        for rows in (0, 1, a_block - 1, a_block, a_block + 1, 1000):
            assert plan.grid(rows) == -(-rows // a_block)


def test_teams_move_whole_sectors():
    """Two neighbouring packs lie in one sector of 32 bytes."""
    assert [row for row in ROWS if WindowRowPlan.of(row, 16).lanes == 1] == [1]


@one_test("dtype", ["float16", "float32"])
@one_test("channels", [96, 128, 192, 256, 384, 512, 768, 1024, 1536])
def test_no_lane_is_idle_in_the_rows_of_swin(channels, dtype):
    plan = WindowRowPlan.of(channels * {"float16": 2, "float32": 4}[dtype] // 16, 16)
    assert plan.whole
    assert plan.lanes


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_kernels_with_64_bit_indexes_do_not_spill(compiled, dtype):
    plan = WindowRowPlan.of(96 * {"bfloat16": 2, "float32": 4}[dtype] // 16, 16)
    macros = {"SCALAR": CUDA_TYPE[dtype], "INDEX": "unsigned long long", **plan.macros}
    assert {kernel.local_bytes for kernel in compiled("layer_norm_window_partition.cu", macros).values()} == {0}


# ---- Tiles, by a twin of layer_norm_tiles.cuh.


TILED = [(c, size) for c in (*range(16, 140), 180, 255, 257, 258, 511, 513, 1023, 2047, 3071) for size in (2, 4)]
TILE_PLANS = [plan for c, size in TILED if (plan := WindowTilePlan.of(c, size, 7))]


def rows_of_lanes(plan, warp):
    """Row and rank of each lane, as Tile::row() has them."""
    apart = (1 if plan.channels * plan.itemsize % 4 == 0 else 2) * plan.team
    group, lanes = warp // apart, range(32)
    return [(group * apart * (32 // plan.team) + lane // plan.team * apart + warp % apart, lane) for lane in lanes]


def test_rows_that_have_tiles():
    assert {plan.team for plan in TILE_PLANS} == {1, 2, 4, 8, 32}
    assert {(plan.words, plan.itemsize) for plan in TILE_PLANS} == {(1, 2), (1, 4), (2, 2)}
    assert WindowTilePlan.of(96, 2, 7) is None  # whole packs
    assert WindowTilePlan.of(3, 2, 7) is None
    assert WindowTilePlan.of(8191, 2, 7) is None
    assert WindowTilePlan.of(98, 4, 7) is None  # whole chunks of 8 bytes
    for plan in TILE_PLANS:
        assert plan.rows * plan.channels * plan.itemsize % 16 == 0  # tiles begin on packs
        assert plan.rows <= plan.threads  # a thread finds the place of a row


def test_teams_of_tiles_have_each_element_once_and_no_bank_twice():
    for plan in TILE_PLANS:
        row_bytes, unit = plan.channels * plan.itemsize, plan.words * 4
        units, single = row_bytes // unit, row_bytes % unit
        assert row_bytes % 4 == single
        rows = []
        for warp in range(plan.warps):
            lanes = rows_of_lanes(plan, warp)
            rows += [row for row, lane in lanes if lane % plan.team == 0]
            starts = [row * row_bytes + (row % 2 * plan.itemsize if single else 0) for row, _ in lanes]
            assert not any(start % unit for start in starts)
            together = 32 // plan.words  # lanes whose units the banks give at once
            for lane in range(0, 32, together):
                some = range(lane, lane + together)
                words = [
                    starts[lane] // 4 + lane % plan.team * plan.words + w for lane in some for w in range(plan.words)
                ]
                assert len({word % 32 for word in words}) == 32
        assert sorted(rows) == list(range(plan.rows))
        # Units and the single half are the row: from its beginning, or from its second half on.
        assert units * unit + single == row_bytes


def pieces_of(shape, pixel):
    """For how many pixels the windows go on side by side, as Windows::in_windows() says."""
    _, _, width, _, window, shift = shape
    in_row = pixel % width
    return min(window - (in_row - shift) % width % window, width - in_row)


@pytest.mark.parametrize(
    "shape",
    [
        (3, 14, 21, 97, 7, 3),
        (1, 8, 8, 97, 1, 0),
        (2, 60, 60, 49, 30, 11),
        (3, 14, 14, 258, 7, 3),
        (1, 14, 14, 513, 7, 3),
    ],
    ids=str,
)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_pieces_bring_each_element_of_a_tile_to_its_place(shape, itemsize):
    import numpy
    import torch

    channels, pixels = shape[3], math.prod(shape[:3])
    plan = WindowTilePlan.of(channels, itemsize, shape[4])
    if plan is None:
        pytest.skip("this row has no tiles")
    values = SimpleNamespace(**sizes_of(shape))
    from_pixel = windows.pixels_of_windows(values, torch.device("cpu"))
    at = torch.argsort(from_pixel).numpy()
    x, y = numpy.arange(pixels * channels), numpy.full(pixels * channels, -1)
    size = 16 // itemsize
    for first in range(0, pixels, plan.rows):
        rows = min(pixels - first, plan.rows)
        tile = numpy.full(plan.shared // itemsize, -2)
        tile[: rows * channels] = x[first * channels : (first + rows) * channels]
        r = 0
        while r < rows:
            left = min(pieces_of(shape, first + r), rows - r, plan.step)
            put_piece(plan, y, int(at[first + r]) * channels, tile, r * channels, left * channels, size)
            r += left
    wanted = x.reshape(pixels, channels)[from_pixel.numpy()].reshape(-1)
    assert (y == wanted).all()


def put_piece(plan, y, at, tile, start, elements, size):
    """What put_piece() does, with its shifts by whole elements."""
    head = min(elements, -at % size)
    packs = (elements - head) // size
    middle = start + head
    # The unrolled loop has room for all packs, and threads for all single elements.
    most = plan.step * plan.channels // size
    assert packs <= -(-most // plan.group) * plan.group
    assert elements - packs * size <= plan.group
    for i in range(packs):
        to, around = at + head + i * size, (middle // size + i) * size
        assert to % size == 0
        assert around + 2 * size <= len(tile)
        y[to : to + size] = tile[around : around + 2 * size][middle % size : middle % size + size]
    for rank in range(elements - packs * size):
        element = rank if rank < head else rank + packs * size
        assert y[at + element] == -1
        y[at + element] = tile[start + element]


@one_test(
    ("dtype", "channels", "index"),
    [
        ("bfloat16", 97, "unsigned"),
        ("bfloat16", 257, "unsigned"),
        ("bfloat16", 1023, "unsigned long long"),
        ("float16", 100, "unsigned"),
        ("float16", 180, "unsigned long long"),
        ("float32", 97, "unsigned long long"),
        ("float32", 1023, "unsigned"),
    ],
)
def test_kernels_of_tiles_do_not_spill(compiled, dtype, channels, index):
    plan = WindowTilePlan.of(channels, {"float32": 4}.get(dtype, 2), 7)
    assert plan
    macros = {"SCALAR": CUDA_TYPE[dtype], "INDEX": index, **plan.macros}
    assert {kernel.local_bytes for kernel in compiled("layer_norm_window_partition.cu", macros).values()} == {0}


# ---- Torch's code and the check.


@one_test("shape", [shape for shape in SHAPES if math.prod(shape[:4]) < 60_000], ids=str)
def test_eager_is_right_on_the_cpu(trial, shape, dtype):
    assert trial(OP.name, "eager", dtype, **sizes_of(shape)).complaint_after_call() is None


def test_compile_is_right_on_the_cpu(trial):
    assert trial(OP.name, "compile", "float32", **sizes_of((2, 14, 14, 5, 7, 3))).complaint_after_call() is None


def test_the_check_sees_a_wrong_element(trial):
    made = trial(OP.name, "eager", "float32", **sizes_of((2, 14, 14, 10, 7, 3)))
    found = made.complaint_after_call(lambda t: t.y.view(-1)[1234].add_(1e-3))
    assert found is not None
    assert "; element 1234 is " in found


def test_the_check_sees_another_shift(trial):
    made = trial(OP.name, "eager", "float32", **sizes_of((2, 14, 14, 10, 7, 3)))
    other = trial(OP.name, "eager", "float32", **sizes_of((2, 14, 14, 10, 7, 2)))
    assert made.complaint(y=other.call().y) is not None


def test_traffic():
    values = sizes_of((2, 14, 14, 8, 7, 3))
    size, vectors = 2 * 14 * 14 * 8 * 2, 2 * 8 * 2
    moved = {name: OP.traffic_of(variant, values, "float16") for name, variant in OP.variants.items()}
    assert moved["tuned"] == moved["fused"] == Traffic(size + vectors, size)
    assert moved["unfused"] == Traffic(2 * size + vectors, 2 * size)
    assert moved["eager"] == Traffic(3 * size + vectors, 3 * size)


# ---- The kernels.


def complaint(before, y, shape):
    """What the op's check says of y."""
    ctx = SimpleNamespace(op=OP, s=SimpleNamespace(**sizes_of(shape)))
    return comparer.complaint(OP.check(ctx, SimpleNamespace(before=SimpleNamespace(**before), y=y)))


def run_and_check(launch, placed, variant, dtype, shape, offsets=(0, 0, 0, 0), scale=1.0, mean=0.0):
    import torch

    values = sizes_of(shape)
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    before = {}
    for name, extent, offset in zip(("x", "gamma", "beta"), (shape[:4], shape[3], shape[3]), offsets, strict=False):
        made = placed(extent, dtype, offset)
        made.tensor.normal_(generator=generator)
        before[name] = made.tensor
    before["x"].mul_(scale).add_(mean)
    y = placed(windows.windows_shape(values), dtype, offsets[3])
    launch(OP.name, variant, dtype, values, **before, y=y)
    assert complaint(before, y.tensor, shape) is None, (shape, offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, variant, dtype):
    for shape in SHAPES:
        run_and_check(launch, placed, variant, dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for channels in (1, 96, 97, 100, 768):
        for offsets in (
            (1, 0, 0, 0),
            (0, 1, 0, 0),
            (0, 0, 1, 0),
            (0, 0, 0, 1),
            (3, 3, 3, 3),
            (2, 4, 6, 4),
            (0, 3, 5, 0),
            (8, 1, 1, 16),
        ):
            run_and_check(launch, placed, variant, dtype, (2, 7, 14, channels, 7, 3), offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(("scale", "mean"), [(0.0, 1.5), (1e-3, 8.0), (1.0, 1000.0), (100.0, 0.0)])
def test_means_that_are_far_larger_than_deviations(launch, placed, variant, scale, mean, dtype):
    for channels in (96, 97, 300, 513, 768, 8192):
        run_and_check(launch, placed, variant, dtype, (2, 4, 4, channels, 2, 1), scale=scale, mean=mean)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("channels", [96, 97, 129])
def test_a_row_with_a_nan_spoils_no_other(launch, variant, channels, dtype):
    import torch

    shape = (2, 7, 7, channels, 7, 3)
    kind = getattr(torch, dtype)
    x = torch.randn(shape[:4], device="cuda").to(kind)
    x[1, 2, 3, 5] = math.nan
    before = {
        "x": x,
        "gamma": torch.ones(channels, device="cuda", dtype=kind),
        "beta": torch.ones(channels, device="cuda", dtype=kind),
    }
    y = torch.zeros(windows.windows_shape(sizes_of(shape)), device="cuda", dtype=kind)
    launch(OP.name, variant, dtype, sizes_of(shape), **before, y=y)
    assert complaint(before, y, shape) is None
    assert int(y.isnan().any(-1).sum()) == 1


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("channels", [96, 97])
def test_more_than_2_to_31_elements(launch, variant, channels):
    import torch

    shape = (2**31 // (14 * 14 * channels) + 1, 14, 14, channels, 7, 3)
    x = torch.empty(shape[:4], device="cuda", dtype=torch.float16).normal_()
    gamma, beta = (torch.randn(channels, device="cuda").half() for _ in range(2))
    y = torch.full(windows.windows_shape(sizes_of(shape)), math.nan, device="cuda", dtype=torch.float16)
    launch(OP.name, variant, "float16", sizes_of(shape), x=x, gamma=gamma, beta=beta, y=y)
    # Images at the start, in the middle and at the end stand for the rest.
    for image in (0, shape[0] // 2, shape[0] - 100):
        part = {"x": x[image : image + 100], "gamma": gamma, "beta": beta}
        assert complaint(part, y[4 * image : 4 * (image + 100)], (100, *shape[1:])) is None, image
    assert not bool(y.isnan().any())
