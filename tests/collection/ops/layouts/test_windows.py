"""Windows of images: the map that kernels compute, torch's code for it, and the kernels of both ops on a GPU."""

from __future__ import annotations

import math
import re
from dataclasses import astuple
from types import SimpleNamespace

import pytest

from harness.collection.ops.layouts import _windows as windows
from harness.collection.ops.layouts.window_partition import OP as PARTITION
from harness.collection.ops.layouts.window_reverse import OP as REVERSE
from harness.cuda import fast_divisor
from harness.expressions import ExpressionError
from harness.model import Traffic
from harness.ops import ITEMSIZE
from tests.one_test import one_test
from tests.rare import rare

OPS = {op.name: op for op in (PARTITION, REVERSE)}
WAYS = [(op, direction) for op in OPS for direction in ("forward", "backward")]
OURS = ["index_map", "tuned"]
# B, H, W, C, window, shift.
SHAPES = [
    (1, 1, 1, 1, 1, 0),
    (2, 7, 7, 96, 7, 3),  # one window
    (2, 7, 7, 96, 7, 0),
    (3, 14, 21, 96, 7, 3),  # 16 bytes
    (2, 24, 12, 100, 12, 6),  # of halves 8
    (2, 16, 24, 3, 8, 4),  # several pixels in a unit
    (2, 16, 24, 1, 8, 4),
    (2, 16, 24, 2, 8, 0),
    (2, 14, 28, 97, 7, 3),  # no units
    (3, 14, 14, 49, 7, 0),
    (3, 21, 14, 3, 7, 3),
    (3, 21, 14, 3, 7, 1),  # pieces shorter than a pack
    (5, 14, 14, 1, 7, 3),
    (5, 14, 14, 2, 7, 6),
    (2, 6, 9, 5, 3, 2),
    (3, 4, 6, 17, 1, 0),
    (2, 14, 21, 11, 7, 20),  # shifts of more than a window and more than an image
    (2, 14, 21, 11, 7, 45),
    (2, 16, 16, 10, 8, 8),
    (2, 14, 14, 769, 7, 3),  # windows too large for a tile
    (1, 200, 400, 1, 200, 3),  # and pieces shorter than a pack
    (1, 14, 1400, 3, 7, 3),  # several tiles beside each other
    (2, 14, 42, 41, 7, 15),
    (9, 14, 7, 3, 7, 10),  # several images in a tile
    (5, 56, 56, 3, 7, 3),
    (0, 14, 14, 96, 7, 3),
    (0, 14, 14, 97, 7, 3),
]
# Shapes that are moved at addresses that aren't multiples of 16, too.
UNALIGNED = [
    (2, 14, 21, 96, 7, 3),
    (2, 14, 14, 97, 7, 3),
    (3, 14, 14, 1, 7, 3),
    (9, 14, 7, 3, 7, 10),
    (1, 14, 1400, 3, 7, 3),
    (2, 14, 14, 769, 7, 3),
]


def sizes_of(shape):
    return dict(zip(windows.SYMBOLS, shape, strict=True))


# ---- The map, as the kernels compute it, with the same names as in windows.cuh.


class Divisor:
    def __init__(self, size, bits):
        multiplier, shift = fast_divisor(size, bits)
        self.size, self.multiplier, self.shift, self.bits = size, multiplier.value, shift.value, bits

    def quotient(self, n):
        assert (n >= 0).all()
        assert (n < 2 ** (self.bits - 1)).all()
        return (((n * self.multiplier) >> self.bits) + n) >> self.shift


def mapped(made, to_windows, units):
    """(at, left) of each unit, by the arithmetic of in_images() or in_windows() of windows.cuh."""
    import torch

    run, side, across, height, row = (Divisor(size, 32) for size in astuple(made)[:5])
    if to_windows:
        runs = run.quotient(units)
        in_run = units - runs * run.size
        window = side.quotient(runs)
        in_window = runs - window * side.size
        window_row = across.quotient(window)
        column = window - window_row * across.size
        rolled = window_row * side.size + in_window
        below = rolled - height.quotient(rolled) * height.size + made.rows_shifted
        image_row = rolled + made.rows_shifted - torch.where(below < height.size, 0, height.size)
        shifted = column * run.size + in_run + made.units_shifted
        in_row = shifted - torch.where(shifted < row.size, 0, row.size)
        return image_row * row.size + in_row, torch.minimum(run.size - in_run, row.size - in_row)
    image_row = row.quotient(units)
    in_row = units - image_row * row.size
    above = image_row - height.quotient(image_row) * height.size < made.rows_shifted
    rolled = image_row - made.rows_shifted + torch.where(above, height.size, 0)
    shifted = in_row - made.units_shifted + torch.where(in_row < made.units_shifted, row.size, 0)
    column = run.quotient(shifted)
    in_run = shifted - column * run.size
    window_row = side.quotient(rolled)
    in_window = rolled - window_row * side.size
    runs = (window_row * across.size + column) * side.size + in_window
    return runs * run.size + in_run, torch.minimum(run.size - in_run, row.size - in_row)


def places(shape, to_windows):
    """Where each element of y is in x, by torch's code on the numbers of the elements."""
    import torch

    s = SimpleNamespace(**sizes_of(shape))
    numbers = torch.arange(s.B * s.H * s.W * s.C)
    if to_windows:
        return windows.to_windows(numbers.view(s.B, s.H, s.W, s.C), s).reshape(-1)
    return windows.to_image(numbers.view(windows.windows_shape(sizes_of(shape))), s).reshape(-1)


@pytest.mark.parametrize("to_windows", [True, False])
@pytest.mark.parametrize(
    "shape", [rare(shape) if math.prod(shape[:4]) > 50_000 else shape for shape in SHAPES if shape[0]], ids=str
)
def test_the_map_of_elements_is_what_torch_does(shape, to_windows):
    import torch

    s, wanted = SimpleNamespace(**sizes_of(shape)), places(shape, to_windows)
    at, left = mapped(windows.WindowMap.of(s, 1), to_windows, torch.arange(len(wanted)))
    assert torch.equal(at, wanted)
    assert (left >= 1).all()
    # `left` elements from there on are neighbours in both layouts, and no piece is shorter than it is said to be.
    for ahead in {1, 2, 7, int(left.max()) // 2, int(left.max()) - 1} - {0}:
        near = (left > ahead)[: len(at) - ahead]
        assert torch.equal(at[ahead:][near], at[:-ahead][near] + ahead)
    begins = torch.cat([torch.ones(1, dtype=torch.bool), left[:-1] == 1])
    assert int(left[begins].min()) >= windows.shortest_piece(s) * s.C


@one_test("to_windows", [True, False])
@one_test("unit", [2, 4, 8])
@one_test("shape", [shape for shape in SHAPES if shape[0] and shape[3] % 96 == 0], ids=str)
def test_the_map_of_units_is_what_torch_does(shape, unit, to_windows):
    import torch

    s, wanted = SimpleNamespace(**sizes_of(shape)), places(shape, to_windows)
    made = windows.WindowMap.of(s, unit)
    assert made.units * unit == len(wanted)
    at, _ = mapped(made, to_windows, torch.arange(made.units))
    assert torch.equal((at[:, None] * unit + torch.arange(unit)).reshape(-1), wanted)


@one_test("to_windows", [True, False])
@one_test("offset", [0, 1, 5])
@one_test("shape", [(2, 14, 28, 97, 7, 3), (3, 21, 14, 3, 7, 3), (3, 14, 14, 49, 7, 0)], ids=str)
def test_packs_of_two_pieces_have_all_elements(shape, offset, to_windows):
    """gather_pack() of windows.cuh, where pieces aren't short: of each pack, all elements come from two addresses."""
    import torch

    s, wanted, pack = SimpleNamespace(**sizes_of(shape)), places(shape, to_windows), 8
    assert windows.shortest_piece(s) * s.C >= pack - 1
    made = windows.WindowMap.of(s, 1)
    first = torch.arange(offset, len(wanted) - pack + 1, pack)
    at, left = mapped(made, to_windows, first)
    left = left.clamp(max=pack)
    next_at, _ = mapped(made, to_windows, (first + left).clamp(max=len(wanted) - 1))
    j = torch.arange(pack)
    found = torch.where(j < left[:, None], at[:, None] + j, (next_at - left)[:, None] + j)
    assert torch.equal(found, wanted[first[:, None] + j])


@pytest.mark.parametrize("to_windows", [True, False])
def test_the_map_of_units_of_several_pixels_is_what_torch_does(to_windows):
    import torch

    shape = (2, 16, 24, 3, 8, 4)
    s, wanted, unit = SimpleNamespace(**sizes_of(shape)), places(shape, to_windows), 4
    assert windows.unit_bytes(s, 2) == 2 * unit > s.C
    at, _ = mapped(windows.WindowMap.of(s, unit), to_windows, torch.arange(len(wanted) // unit))
    assert torch.equal((at[:, None] * unit + torch.arange(unit)).reshape(-1), wanted)


@one_test(
    ("shape", "itemsize", "width"),
    [
        ((1, 56, 56, 96, 7, 3), 2, 16),
        ((1, 56, 56, 96, 7, 0), 4, 16),
        ((1, 56, 56, 100, 7, 3), 2, 8),
        ((1, 56, 56, 98, 7, 3), 2, 0),
        ((1, 56, 56, 98, 7, 3), 4, 8),
        ((1, 64, 64, 3, 8, 0), 2, 16),
        ((1, 64, 64, 3, 8, 4), 2, 8),
        ((1, 64, 64, 3, 8, 1), 2, 0),
        ((1, 64, 64, 60, 8, 4), 2, 16),
        ((1, 64, 64, 5, 8, 8), 2, 16),
    ],
)
def test_units_are_as_wide_as_the_pieces_allow(shape, itemsize, width):
    assert windows.unit_bytes(SimpleNamespace(**sizes_of(shape)), itemsize) == width


@pytest.mark.parametrize(("images", "bits"), [(2**19, 32), (2**20, 64)])
def test_indexes_have_64_bits_only_where_they_need_them(images, bits):
    assert windows.WindowMap.of(SimpleNamespace(**sizes_of((images, 16, 16, 64, 8, 4))), 8).bits == bits


@one_test("op", OPS)
@one_test("to_windows", [0, 1])
@one_test(("width", "unroll", "vector"), [(16, 2, "v4"), (8, 4, "v2")])
def test_all_units_of_a_thread_are_in_flight_at_once(ptx, op, to_windows, width, unroll, vector):
    """A condition around a load or a store would put the second load after the first store."""
    macros = {"SCALAR": "unsigned short", "INDEX": "unsigned", "TO_WINDOWS": to_windows}
    text = ptx(f"{op}.cu", f"{op}_units", macros | {"WIDTH": width, "UNROLL": unroll, "BLOCK": 256})
    found = re.findall(rf"\b(ld|st)\.global(?:\.nc)?\.{vector}", text)
    assert found == ["ld"] * unroll + ["st"] * unroll
    assert not re.search(r"\bbra\b", text)


# ---- Sizes, torch's code and the check.


@one_test("op", OPS.values(), ids=list(OPS))
@one_test(("height", "width", "named"), [(15, 14, "H = 15"), (14, 13, "W = 13")])
def test_windows_must_tile_the_image(op, height, width, named):
    values = sizes_of((2, height, width, 8, 7, 3)) | {"direction": "forward"}
    with pytest.raises(ExpressionError, match=f"{named} isn't a multiple of window = 7; pad"):
        op.work_of(values, "float16")


@one_test(("op", "direction"), WAYS)
@one_test("shape", [shape for shape in SHAPES if math.prod(shape[:4]) < 25_000], ids=str)
def test_eager_is_the_reference(trial, op, direction, shape):
    made = trial(op, "eager", "float16", **sizes_of(shape), direction=direction)
    assert made.complaint_after_call() is None
    if math.prod(shape[:4]) > 1:
        assert made.complaint_after_call(lambda t: t.y.view(-1)[-1:].add_(1)) is not None


@pytest.mark.parametrize(("op", "direction"), [WAYS[0], *(rare(*way) for way in WAYS[1:])])
def test_compile_is_the_reference(trial, op, direction):
    made = trial(op, "compile", "float32", **sizes_of((2, 14, 14, 5, 7, 3)), direction=direction)
    assert made.complaint_after_call() is None


@pytest.mark.parametrize("shift", [0, 3])
def test_the_backward_is_what_autograd_computes(trial, shift):
    import torch

    sizes = sizes_of((2, 14, 21, 6, 7, shift))
    s = SimpleNamespace(**sizes)
    for op, move in (("window_partition", windows.to_windows), ("window_reverse", windows.to_image)):
        forward = trial(op, "eager", "float32", **sizes)
        x = forward.inputs.x.requires_grad_()
        backward = trial(op, "eager", "float32", **sizes, direction="backward")
        (wanted,) = torch.autograd.grad(move(x, s), x, backward.inputs.x)
        assert torch.equal(backward.call().y, wanted)


def test_work_and_traffic():
    values = sizes_of((2, 14, 14, 8, 7, 3)) | {"direction": "forward"}
    size = 2 * 14 * 14 * 8 * 2
    assert PARTITION.traffic_of(PARTITION.variants["tuned"], values, "float16") == Traffic(size, size)
    assert PARTITION.traffic_of(PARTITION.variants["eager"], values, "float16") == Traffic(2 * size, 2 * size)
    unshifted = values | {"shift": 0}
    assert PARTITION.traffic_of(PARTITION.variants["eager"], unshifted, "float16") == Traffic(size, size)


# ---- The kernels.


def moved(op, direction, shape, x):
    s = SimpleNamespace(**sizes_of(shape))
    forward = (op == "window_partition") == (direction == "forward")
    return (windows.to_windows if forward else windows.to_image)(x, s)


def run_and_check(launch, placed, op, variant, dtype, way, offsets=(0, 0)):
    import torch

    direction, shape = way
    values = sizes_of(shape) | {"direction": direction}
    (declared,), (made,) = OPS[op].inputs, OPS[op].outputs
    x, y = placed(declared.shape(values), dtype, offsets[0]), placed(made.shape(values), dtype, offsets[1])
    bits = {2: torch.int16, 4: torch.int32}[ITEMSIZE[dtype]]
    source = x.tensor.view(bits)
    source.copy_(torch.arange(source.numel(), device="cuda").view(source.shape))
    launch(op, variant, dtype, values, x=x, y=y)
    assert torch.equal(y.tensor.view(bits), moved(op, direction, shape, source)), (way, offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(("op", "direction"), WAYS)
def test_shapes(launch, placed, op, direction, variant, dtype):
    for shape in SHAPES:
        run_and_check(launch, placed, op, variant, dtype, (direction, shape))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(("op", "direction"), WAYS)
def test_unaligned_addresses(launch, placed, op, direction, variant, dtype):
    for shape in (*UNALIGNED, (1, 1, 1, 1, 1, 0)):
        for offset in (1, 2, 4, 7):
            for offsets in ((offset, 0), (0, offset), (offset, offset), (offset, 8 - offset)):
                run_and_check(launch, placed, op, variant, dtype, (direction, shape), offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("shift", [0, 3])
def test_reverse_undoes_partition(launch, placed, variant, shift, dtype):
    import torch

    for channels in (96, 97, 768):
        values = sizes_of((3, 28, 14, channels, 7, shift))
        x = torch.randn(windows.image_shape(values), device="cuda").to(getattr(torch, dtype))
        cut = placed(windows.windows_shape(values), dtype)
        back = placed(x.shape, dtype)
        launch("window_partition", variant, dtype, values, x=x, y=cut)
        launch("window_reverse", variant, dtype, values, x=cut.tensor, y=back)
        assert torch.equal(back.tensor, x)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(("op", "direction"), WAYS[:3])
@pytest.mark.parametrize("channels", [96, 97, 1, 769], ids=str)
def test_more_than_2_to_31_elements(launch, op, direction, variant, channels):
    import torch

    shape = (2**31 // (14 * 14 * channels) + 1, 14, 14, channels, 7, 3)
    assert math.prod(shape[:4]) > 2**31
    values = sizes_of(shape) | {"direction": direction}
    (declared,), (made,) = OPS[op].inputs, OPS[op].outputs
    x = torch.empty(declared.shape(values), device="cuda", dtype=torch.float16).normal_()
    y = torch.full(made.shape(values), math.nan, device="cuda", dtype=torch.float16)
    launch(op, variant, "float16", values, x=x, y=y)
    # Images at the start, in the middle and at the end stand for the rest.
    few = min(100, shape[0])
    for image in (0, shape[0] // 2, shape[0] - few):
        ends = [image * len(part) // shape[0] for part in (x, y)]
        counts = [few * len(part) // shape[0] for part in (x, y)]
        (source, target) = (part[end : end + count] for part, end, count in zip((x, y), ends, counts, strict=True))
        assert torch.equal(target, moved(op, direction, (few, *shape[1:]), source)), image
    assert not bool(y.isnan().any())


@one_test("shape", [*SHAPES, (2, 14, 7, 3, 7, 0), (2, 14, 7, 3, 7, 14), (2, 14, 7, 3, 7, 7)], ids=str)
def test_only_what_keeps_its_place_is_a_copy(shape):
    s = SimpleNamespace(**sizes_of(shape))
    pixels = windows.pixels_of_windows(s, "cpu")
    kept = bool((pixels == pixels.sort().values).all())
    assert windows.is_copy(s) <= kept
    if s.B and s.window > 1:
        assert windows.is_copy(s) == kept
