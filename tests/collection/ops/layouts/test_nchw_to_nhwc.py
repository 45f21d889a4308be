"""Changes of memory format on a GPU, bit by bit, in both directions, at the sizes and addresses that break kernels."""

from __future__ import annotations

import math

import pytest

from harness.collection.ops.layouts.nchw_to_nhwc import OP
from harness.model import Case
from tests.one_test import one_test

DIRECTIONS = ["to_nhwc", "to_nchw"]
COMPILED = [
    {"N": images, "C": channels, "H": height, "W": width, "direction": direction}
    for direction in DIRECTIONS
    for images, channels, height, width in [(256, 64, 56, 56), (256, 3, 224, 224), (64, 512, 7, 7), (9, 256, 14, 14)]
]
OURS = ["naive", "tiled", "packed", "tuned"]
SHAPES = [
    (0, 3, 5, 5),
    (3, 0, 5, 5),
    (1, 1, 1, 1),
    (7, 1, 5, 3),  # the same order
    (7, 12, 1, 1),
    (2, 2, 1, 2),
    (1000, 3, 2, 2),  # several images a block
    (301, 8, 2, 4),
    (301, 7, 3, 3),
    (33, 3, 32, 32),  # few channels
    (2, 3, 224, 224),
    (5, 4, 100, 101),
    (9, 512, 7, 7),  # small images
    (5, 2048, 7, 7),
    (5, 256, 14, 14),
    (5, 255, 14, 14),
    (3, 64, 56, 56),  # whole packs
    (3, 96, 28, 28),
    (4, 64, 16, 16),  # register blocks of halves
    (9, 256, 28, 28),
    (2, 768, 197, 1),
    (2, 131, 33, 31),
    (1, 1000, 50, 40),
    (2, 1535, 33, 41),  # tiles of packs
    (3, 2048, 33, 31),
    (3, 515, 47, 47),
]


def unsupported(variant, dtype, shape, direction):
    reason = OP.variants[variant].unsupported
    choices = (("direction", direction),)
    return reason and reason(Case(OP.name, variant, dtype, tuple(zip("NCHW", shape, strict=True)), choices))


def run_and_check(launch, placed, any_bits, variant, dtype, shape, direction, x_offset=0, y_offset=0):
    import torch

    values = dict(zip("NCHW", shape, strict=True)) | {"direction": direction}
    (x_shape,), (y_shape,) = (tensor.shapes(values) for tensor in (OP.inputs[0], OP.outputs[0]))
    x = any_bits(math.prod(shape), dtype, x_offset).view(x_shape)
    y = placed(y_shape, dtype, y_offset)
    launch(OP.name, variant, dtype, values, x=x, y=y)
    order = (0, 2, 3, 1) if direction == "to_nhwc" else (0, 3, 1, 2)
    assert torch.equal(y.tensor.view(x.dtype), x.permute(order)), (shape, x_offset, y_offset)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, any_bits, variant, dtype, direction):
    for shape in SHAPES:
        if not unsupported(variant, dtype, shape, direction):
            run_and_check(launch, placed, any_bits, variant, dtype, shape, direction)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, any_bits, variant, dtype, direction):
    for shape in [(1, 2, 1, 2), (70, 8, 4, 4), (3, 64, 16, 16), (3, 66, 10, 13), (2, 3, 33, 31), (2, 300, 7, 7)]:
        if unsupported(variant, dtype, shape, direction):
            continue
        for offsets in [(1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (3, 5), (8, 8)]:
            run_and_check(launch, placed, any_bits, variant, dtype, shape, direction, *offsets)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(
    "shape", [(6000, 3, 345, 347), (6000, 3, 346, 348), (21_403, 64, 56, 28), (43_900, 999, 7, 7)], ids=str
)
def test_more_than_2_to_31_elements(launch, placed, any_bits, variant, shape, direction):
    assert math.prod(shape) > 2**31
    if unsupported(variant, "float16", shape, direction):
        pytest.skip("not for odd sizes")
    run_and_check(launch, placed, any_bits, variant, "float16", shape, direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_eager_gives_the_reference_on_the_cpu(trial, dtype, direction):
    for shape in [(2, 3, 5, 7), (2, 1, 5, 7), (2, 3, 1, 1)]:
        eager = trial(OP.name, "eager", dtype, direction=direction, **dict(zip("NCHW", shape, strict=True)))
        assert eager.complaint_after_call() is None
    eager = trial(OP.name, "eager", dtype, direction=direction, N=2, C=6, H=6, W=6)
    assert eager.complaint(y=eager.inputs.x)


def test_eager_is_what_the_memory_format_makes(trial):
    """The memory of x in channels_last, element by element."""
    import torch

    eager = trial(OP.name, "eager", "float32", N=2, C=3, H=5, W=7)
    of_user = eager.inputs.x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(eager.call().y.flatten(), of_user.as_strided((of_user.numel(),), (1,)))


def test_there_and_back_is_the_same(trial):
    import torch

    sizes = {"N": 2, "C": 3, "H": 5, "W": 7}
    there = trial(OP.name, "eager", "float32", **sizes)
    y = there.call().y
    back = trial(OP.name, "eager", "float32", direction="to_nchw", **sizes)
    back.inputs.x.copy_(y)
    assert torch.equal(back.call().y, there.inputs.x)


@one_test(
    ("dtype", "shape", "reason"),
    [
        ("float32", (2, 64, 8, 8), "float"),
        ("float16", (2, 3, 8, 8), "even"),
        ("float16", (2, 64, 7, 7), "even"),
        ("bfloat16", (1, 64, 8, 7), None),
    ],
)
def test_packs_are_for_pairs_of_halves(dtype, shape, reason):
    for direction in DIRECTIONS:
        found = unsupported("packed", dtype, shape, direction)
        assert found is None if reason is None else reason in found


def test_naive_divides_once_for_each_dimension_but_the_first(ptx):
    text = ptx("nchw_to_nhwc.cu", "nchw_to_nhwc_naive", {"ELEMENT": "unsigned", "INDEX": "unsigned"})
    assert text.count("div.u32") == 3
    assert text.count("rem.u32") == 0
