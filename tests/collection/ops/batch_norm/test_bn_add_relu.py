"""Batch norm, a residual and ReLU: statistics, y and its bits, at the sizes and addresses that break kernels."""

from __future__ import annotations

import math

import pytest

from harness import check
from harness.collection.ops.batch_norm import _bn_add_relu_check
from harness.collection.ops.batch_norm._batch_norm import EPSILON, MOMENTUM, as_user_has_it, images
from harness.collection.ops.batch_norm._bn_add_relu_check import ChannelStatistics
from harness.collection.ops.batch_norm.bn_add_relu import OP
from harness.collection.ops.bits import pack
from harness.model import Case
from harness.ops import Context, Tensors
from tests.one_test import one_test

COMPILED = [
    {"N": 2, "C": 3, "H": 7, "W": 7, "layout": "nchw"},
    {"N": 2**16, "C": 64, "H": 32, "W": 17, "layout": "nhwc"},  # indexes of 64 bits
    # one kernel, whose threads keep 1 pack, 2, 2 of halves or 4, 4 of halves, 8
    {"N": 1, "C": 512, "H": 28, "W": 28, "layout": "nchw"},
    {"N": 1, "C": 1024, "H": 14, "W": 14, "layout": "nhwc"},
    {"N": 1, "C": 64, "H": 56, "W": 56, "layout": "nchw"},
    {"N": 32, "C": 512, "H": 7, "W": 7, "layout": "nchw"},
    {"N": 32, "C": 2048, "H": 7, "W": 7, "layout": "nchw"},
]
SPILLED = 8  # bytes of bn_apply_two_rows in bfloat16, on sm_100 alone
OURS = ["unfused", "fused_apply", "tuned"]
LAYOUTS = ["nchw", "nhwc"]
SHAPES = [
    (1, 1, 1, 1),  # one element, and a channel of one
    (2, 5, 1, 1),  # fewer elements than a pack
    (3, 1, 5, 7),  # one channel
    (2, 64, 8, 8),  # packs within a row; whole packs of channels
    (13, 3, 7, 7),  # packs over two rows, odd total
    (3, 7, 1, 8),  # rows of one half pack, or two float packs
    (40, 9, 1, 5),  # rows shorter than a half pack
    (33, 129, 1, 1),  # rows of one element
    (7, 11, 1, 2),  # rows of two
    (50, 24, 2, 2),  # rows of a float pack, or half a half pack
    (9, 2, 64, 32),  # rows of one tile of halves, two of floats
    (9, 2, 64, 33),  # rows of one tile and a bit
    (1, 3, 151, 111),  # odd rows of several tiles
    (2, 2, 128, 130),  # long rows
    (700, 40, 7, 7),  # many rounds of rows
    (70, 264, 14, 14),  # rows of packs and a half
    (64, 104, 28, 28),  # many blocks
    (2, 3, 1031, 1033),  # several pieces a row
    # Small layers, which one kernel makes. Groups of one channel in a block, and in a cluster (2, 4, 1, 64 above, too):
    (1, 64, 56, 56),
    (3, 6, 112, 112),
    # Groups of two and of eight channels in rows of several packs, and of two packs or four; a cluster of such:
    (2, 8, 14, 14),
    (33, 24, 7, 7),
    (1, 512, 7, 7),
    (2, 16, 5, 3),
    (400, 8, 7, 7),
    # Channels last: groups of a sector and of half of one, in a block and in a cluster; a mask that ends inside a word:
    (1, 8, 1, 1),
    (9, 40, 3, 3),
    (64, 16, 14, 14),
    (100, 24, 14, 14),
]


def context(variant, dtype, shape, layout="nchw", device="cpu", seed=1):
    import torch

    sizes = tuple(zip("NCHW", shape, strict=True))
    case = Case("bn_add_relu", variant, dtype, sizes, choices=(("layout", layout),), device=device)
    place = torch.device(device)
    return Context(case, getattr(torch, dtype), place, torch.Generator(place).manual_seed(seed), OP)


def call(ctx, launch, placed, inputs, offset=0):
    """All tensors after a call with poisoned outputs; fails if anything around them was written."""
    shapes = {tensor.name: tensor.shapes(ctx.case.values)[0] for tensor in OP.outputs}
    outputs = {
        "y": placed(shapes["y"], ctx.case.dtype, offset),
        "mask": placed(shapes["mask"], "int32", offset % 4),
        **{name: placed(shapes[name], "float32", offset % 3) for name in ("mean", "invstd")},
    }
    updated = {name: getattr(inputs, name).clone() for name in ("running_mean", "running_var")}
    given = vars(inputs) | updated | outputs
    return launch("bn_add_relu", ctx.case.variant, ctx.case.dtype, ctx.case.values, **given)


def complaint(ctx, inputs, after):
    return check.complaint(ctx, OP.variants[ctx.case.variant], inputs, after)


def moved(tensor, offset):
    """The same values `offset` elements past an aligned address."""
    import torch

    buffer = torch.empty(tensor.numel() + offset, device=tensor.device, dtype=tensor.dtype)
    return buffer[offset:].view(tensor.shape).copy_(tensor)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, variant, dtype, layout):
    for shape in SHAPES:
        ctx = context(variant, dtype, shape, layout, "cuda")
        inputs = check.make_inputs(ctx)
        assert complaint(ctx, inputs, call(ctx, launch, placed, inputs)) is None, shape


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for shape in ((3, 5, 7, 7), (2, 1, 5, 7), (20, 8, 4, 8), (5, 9, 1, 3), (1, 1, 1, 9), (2, 2, 128, 130)):
        for x_offset, z_offset, y_offset in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 3, 3), (4, 2, 5), (7, 6, 3)):
            for layout in LAYOUTS:
                ctx = context(variant, dtype, shape, layout, "cuda")
                inputs = check.make_inputs(ctx)
                inputs.x, inputs.z = moved(inputs.x, x_offset), moved(inputs.z, z_offset)
                found = complaint(ctx, inputs, call(ctx, launch, placed, inputs, y_offset))
                assert found is None, (shape, layout, x_offset, z_offset, y_offset)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("channels", [20, 24])  # three kernels, and one
def test_special_values(launch, placed, special, variant, dtype, layout, channels):
    """A value that isn't finite spoils its channel and no other. Large values and equal values spoil nothing."""
    import torch

    shape = (6, channels, 5, 5)
    ctx = context(variant, dtype, shape, layout, "cuda")
    inputs = check.make_inputs(ctx)
    values = special(dtype)
    for channel, value in enumerate(values):
        inputs.x[-1, channel, -1] = value if value.abs() < 1e4 or not value.isfinite() else value.sign() * 1e4
    inputs.x[:, 12] = 3.0
    inputs.x[:, 13] = 0.0
    inputs.z[0, 14:18, 0] = torch.tensor([math.inf, -math.inf, math.nan, 0.0], device="cuda")
    after = call(ctx, launch, placed, inputs)
    assert complaint(ctx, inputs, after) is None
    assert bool(after.y[:, :3].isnan().all()), "a NaN passes ReLU"
    assert after.y[0, 14:17, 0].tolist()[0] == math.inf
    assert after.y[0, 15, 0].item() == 0
    assert after.y[0, 16, 0].isnan()
    assert not bool(after.y[:, 3:14].isnan().any())


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("shape", [(40, 4, 500, 500), (2000, 4, 70, 72)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_statistics_of_ten_million_elements(launch, placed, variant, shape, layout):
    """Within 1e-5 of float64, also where the mean is 100 standard deviations, and the same each time."""
    import torch

    ctx = context(variant, "float32", shape, layout, "cuda")
    inputs = check.make_inputs(ctx)
    deviation = ChannelStatistics.of(inputs.x).variance.sqrt().view(1, -1, 1)
    inputs.x += (deviation * torch.tensor([100.0, -100.0, 0.0, 30.0], device="cuda").view(1, -1, 1)).float()
    after = call(ctx, launch, placed, inputs)
    assert complaint(ctx, inputs, after) is None
    found = ChannelStatistics.of(inputs.x)
    assert bool(((after.mean - found.mean).abs() <= 1e-5 * found.variance.sqrt()).all())
    torch.testing.assert_close(after.invstd.double(), found.invstd, rtol=1e-5, atol=0)
    again = call(ctx, launch, placed, inputs)
    assert all(torch.equal(getattr(again, name), getattr(after, name)) for name in ("y", "mask", "mean", "invstd"))


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize(
    ("variant", "shape", "layout"),
    [
        ("unfused", (342393, 128, 7, 7), "nchw"),
        ("fused_apply", (421410, 104, 7, 7), "nhwc"),
        ("tuned", (342393, 128, 7, 7), "nchw"),  # rows
        ("tuned", (44, 3, 4080, 4081), "nchw"),  # pieces
        ("tuned", (421410, 104, 7, 7), "nhwc"),  # columns
        ("tuned", (442587, 99, 7, 8), "nhwc"),
    ],
    ids=str,
)
def test_more_than_2_to_31_elements(launch, placed, variant, shape, layout):
    assert math.prod(shape) > 2**31
    ctx = context(variant, "float16", shape, layout, "cuda")
    inputs = check.make_inputs(ctx)
    assert complaint(ctx, inputs, call(ctx, launch, placed, inputs)) is None


def written(variant, dtype, shape, layout="nchw"):
    """A context, the inputs, and all tensors after the reference has written its outputs, rounded."""
    ctx = context(variant, dtype, shape, layout)
    inputs = check.make_inputs(ctx)
    wanted = OP.reference(ctx, inputs)
    wanted["y"] = wanted["y"].to(ctx.dtype)
    wanted["mask"] = pack(wanted["y"].view(-1) > 0)
    floats = {name: value.float() for name, value in wanted.items() if name not in ("y", "mask")}
    return ctx, inputs, Tensors(**vars(inputs) | wanted | floats)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(16, 8, 14, 14), (9, 3, 5, 7), (64, 33, 1, 1), (2, 1, 1, 1)], ids=str)
def test_eager_passes_the_check(dtype, shape, layout):
    ctx = context("eager", dtype, shape, layout)
    variant, inputs = OP.variants["eager"], check.make_inputs(ctx)
    tensors = check.clone(inputs)
    after = check.collect(OP, variant, tensors, variant.prepare(ctx)(tensors))
    assert check.complaint(ctx, variant, inputs, after) is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_eager_is_a_layer_of_torch(layout):
    import torch

    ctx = context("eager", "float32", (4, 6, 5, 3), layout)
    t = check.make_inputs(ctx)
    x, z = (as_user_has_it(ctx.case.values, tensor) for tensor in (t.x, t.z))
    if layout == "nhwc":
        assert x.is_contiguous(memory_format=torch.channels_last)
    layer = torch.nn.BatchNorm2d(6)
    assert (layer.eps, layer.momentum) == (EPSILON, MOMENTUM)
    with torch.no_grad():
        for name in ("running_mean", "running_var"):
            getattr(layer, name).copy_(getattr(t, name))
        layer.weight.copy_(t.gamma)
        layer.bias.copy_(t.beta)
        wanted = torch.relu(layer(x) + z)
    (y,) = OP.variants["eager"].prepare(ctx)(t)
    assert torch.equal(as_user_has_it(ctx.case.values, y), wanted)
    assert torch.equal(t.running_mean, layer.running_mean)
    assert torch.equal(t.running_var, layer.running_var)


def test_what_torch_refuses_is_said():
    refused, given = (context("eager", "float32", (n, 3, 1, 1)).case for n in (1, 2))
    assert "single value" in OP.variants["eager"].unsupported(refused)
    assert OP.variants["eager"].unsupported(given) is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(16, 8, 14, 14), (9, 3, 5, 7), (1, 5, 1, 1)], ids=str)
def test_the_rounded_reference_passes_the_check(dtype, shape, layout):
    ctx, inputs, after = written("tuned", dtype, shape, layout)
    assert complaint(ctx, inputs, after) is None


@one_test(
    ("variant", "found"),
    [("eager", None), ("compile", None), ("unfused", None), ("fused_apply", "y: "), ("tuned", "y: ")],
)
def test_who_may_round_before_the_addition(variant, found):
    """Variants of several steps add z to what they stored as bfloat16. Where the two cancel, the sum is far off."""
    import torch

    ctx, inputs, after = written(variant, "bfloat16", (16, 4, 14, 14))
    statistics = ChannelStatistics.of(inputs.x)
    scale, mean, beta = (v.view(1, -1, 1) for v in (inputs.gamma * statistics.invstd, statistics.mean, inputs.beta))
    normal = ((inputs.x.double() - mean) * scale + beta).bfloat16()
    inputs.z = (-normal.float() + 0.01 * inputs.z.float()).bfloat16()
    after.y = torch.relu(normal + inputs.z)
    after.mask = pack(after.y.view(-1) > 0)
    complained = complaint(ctx, inputs, after)
    assert complained is None if found is None else complained.startswith(found)


@pytest.mark.parametrize(
    ("name", "change", "element"),
    [
        ("y", lambda y: y.view(-1)[700:701].add_(0.05), 700),
        ("mask", lambda mask: mask[3:4].bitwise_xor_(16), 3),
        ("mean", lambda mean: mean[1:2].add_(1e-4), 1),
        ("invstd", lambda invstd: invstd[0:1].mul_(1.0001), 0),
        ("running_mean", lambda mean: mean[1:2].mul_(1.001), 1),
        ("running_var", lambda var: var[0:1].mul_(1.001), 0),
        ("running_var", lambda var: var[0:1].fill_(math.nan), 0),
    ],
)
def test_what_is_wrong_is_noticed(monkeypatch, dtype, name, change, element):
    monkeypatch.setattr(_bn_add_relu_check, "_CHUNK", 100)  # y is checked in several parts
    ctx, inputs, after = written("tuned", dtype, (16, 2, 5, 5))
    assert complaint(ctx, inputs, after) is None
    change(getattr(after, name))
    found = complaint(ctx, inputs, after)
    assert found.startswith(f"{name}: 1 of ")
    assert f"; element {element} is " in found


def test_a_channel_that_is_not_finite_may_be_so_in_any_way():
    """Kernels get a NaN or an infinity, which depends on the order of their sums. A finite value is wrong."""
    ctx, inputs, _ = written("tuned", "float32", (4, 3, 5, 5))
    inputs.x[1, 1, 7] = math.inf
    wanted = OP.reference(ctx, inputs)
    after = Tensors(**vars(inputs) | {name: value.float() for name, value in wanted.items() if name != "mask"})
    after.mask = pack(after.y.view(-1) > 0)
    assert complaint(ctx, inputs, after) is None
    after.mean[1] = after.running_mean[1] = math.nan
    assert complaint(ctx, inputs, after) is None
    after.y[2, 1, 3] = 0.5
    assert complaint(ctx, inputs, after).startswith("y: 1 of 300 ")


def test_statistics_that_miss_a_piece_are_noticed():
    """A thousandth of a channel of 10^6 elements is missing."""
    ctx, inputs, after = written("tuned", "float32", (1000, 1, 25, 40))
    whole = inputs.x.clone()
    missing = ChannelStatistics.of(whole[1:])
    after.invstd = missing.invstd.float()
    assert "invstd: 1 of " in complaint(ctx, inputs, after)


def test_statistics_are_those_of_torch():
    import torch

    x = torch.randn(7, 3, 11, generator=torch.Generator().manual_seed(1)) * 2 + 5
    variance, mean = torch.var_mean(x.double(), (0, 2), correction=0)
    found = ChannelStatistics.of(x)
    torch.testing.assert_close((found.mean, found.variance), (mean, variance))


@pytest.mark.parametrize(("layout", "declared"), [("nchw", (2, 3, 20)), ("nhwc", (40, 3, 1))])
def test_layouts_are_the_same_memory(layout, declared):
    import torch

    sizes = {"N": 2, "C": 3, "H": 4, "W": 5, "layout": layout}
    (shape,) = images("x").shapes(sizes)
    assert shape == declared
    memory = torch.arange(120).view(shape)
    user = as_user_has_it(sizes, memory)
    assert user.shape == (2, 3, 4, 5)
    assert user.data_ptr() == memory.data_ptr()
    channel = memory.view(-1) // shape[2] % 3
    assert torch.equal(as_user_has_it(sizes, channel.view(shape))[1, 2], torch.full((4, 5), 2))


def test_traffic():
    values = context("tuned", "float16", (16, 64, 32, 32)).case.values
    n = 2**20
    own = {name: OP.traffic_of(variant, values, "float16") for name, variant in OP.variants.items()}
    work = OP.work_of(values, "float16")
    vectors = 4 * 64
    assert (work.read, work.written) == (own["tuned"].read, own["tuned"].written)
    assert own["tuned"].read == 3 * 2 * n + 4 * vectors
    assert work.again == 2 * n
    assert own["tuned"].written == 2 * n + n // 8 + 4 * vectors
    assert own["unfused"].moved == own["tuned"].moved + 4 * 2 * n
    assert own["eager"].moved == 8 * 2 * n + 6 * vectors


@pytest.mark.parametrize(
    ("entry", "parameter"), [("bn_add_relu:bn_apply_two_rows", 1), ("bn_add_relu_grad:bn_add_relu_grad_apply_rows", 5)]
)
def test_without_a_residual_it_is_not_touched(ptx, entry, parameter):
    file, entry = entry.split(":")
    text = ptx(f"{file}.cu", entry, {"SCALAR": "__half", "INDEX": "unsigned", "RESIDUAL": 0})
    assert f"[{entry}_param_{parameter}]" not in text
    assert f"[{entry}_param_0]" in text
