"""Batch norm, a residual and ReLU: statistics, y and its bits, at the sizes and addresses that break kernels."""

from __future__ import annotations

import math

import pytest

from harness import check, cuda
from harness.model import Case
from harness.ops import Context, Tensors
from harness.ops._bits import pack
from harness.ops.batch_norm._batch_norm import EPSILON, MOMENTUM, Layout, as_user_has_it, images
from harness.ops.batch_norm._batch_norm_cut import Cut, Pieces
from harness.ops.batch_norm.bn_add_relu import OP, Statistics

COMPILED = [
    {"N": 2, "C": 3, "H": 7, "W": 7, "L": 0},
    {"N": 2**16, "C": 64, "H": 32, "W": 17, "L": 1},  # indexes of 64 bits
]
SPILLED = 8  # of bn_apply_two_rows in bfloat16, on sm_100 alone
OURS = ["unfused", "fused_apply", "tuned"]
MULTIPROCESSORS = 132
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
]


def symbols(shape, last):
    return dict(zip("NCHW", shape, strict=True)) | {"L": int(last)}


def context(variant, dtype, shape, last=False, device="cpu", seed=1):
    import torch

    case = Case("bn_add_relu", variant, dtype, tuple(symbols(shape, last).items()), device)
    place = torch.device(device)
    return Context(case, getattr(torch, dtype), place, torch.Generator(place).manual_seed(seed), OP)


def call(ctx, launch, placed, inputs, offset=0):
    """All tensors after a call with poisoned outputs; fails if anything around them was written."""
    shapes = {tensor.name: tensor.shapes(ctx.case.symbols)[0] for tensor in OP.outputs}
    outputs = {
        "y": placed(shapes["y"], ctx.case.dtype, offset),
        "mask": placed(shapes["mask"], "int32", offset % 4),
        **{name: placed(shapes[name], "float32", offset % 3) for name in ("mean", "invstd")},
    }
    updated = {name: getattr(inputs, name).clone() for name in ("running_mean", "running_var")}
    given = vars(inputs) | updated | outputs
    return launch("bn_add_relu", ctx.case.variant, ctx.case.dtype, ctx.case.symbols, **given)


def complaint(ctx, inputs, after):
    return check.complaint(ctx, OP.variants[ctx.case.variant], inputs, after)


def moved(tensor, offset):
    """The same values `offset` elements past an aligned address."""
    import torch

    buffer = torch.empty(tensor.numel() + offset, device=tensor.device, dtype=tensor.dtype)
    return buffer[offset:].view(tensor.shape).copy_(tensor)


@pytest.mark.gpu
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, variant, dtype, last):
    for shape in SHAPES:
        ctx = context(variant, dtype, shape, last, "cuda")
        inputs = check.make_inputs(ctx)
        assert complaint(ctx, inputs, call(ctx, launch, placed, inputs)) is None, shape


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for shape in ((3, 5, 7, 7), (2, 1, 5, 7), (20, 8, 4, 8), (5, 9, 1, 3), (1, 1, 1, 9), (2, 2, 128, 130)):
        for x_offset, z_offset, y_offset in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 3, 3), (4, 2, 5), (7, 6, 3)):
            for last in (False, True):
                ctx = context(variant, dtype, shape, last, "cuda")
                inputs = check.make_inputs(ctx)
                inputs.x, inputs.z = moved(inputs.x, x_offset), moved(inputs.z, z_offset)
                found = complaint(ctx, inputs, call(ctx, launch, placed, inputs, y_offset))
                assert found is None, (shape, last, x_offset, z_offset, y_offset)


@pytest.mark.gpu
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("variant", OURS)
def test_special_values(launch, placed, special, variant, dtype, last):
    """A value that isn't finite spoils its channel and no other; the largest ones and equal ones spoil nothing."""
    import torch

    shape = (6, 20, 5, 5)
    ctx = context(variant, dtype, shape, last, "cuda")
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
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
def test_statistics_of_ten_million_elements(launch, placed, variant, shape, last):
    """Within 1e-5 of float64, also where the mean is 100 standard deviations, and the same each time."""
    import torch

    ctx = context(variant, "float32", shape, last, "cuda")
    inputs = check.make_inputs(ctx)
    deviation = Statistics.of(inputs.x).variance.sqrt().view(1, -1, 1)
    inputs.x += (deviation * torch.tensor([100.0, -100.0, 0.0, 30.0], device="cuda").view(1, -1, 1)).float()
    after = call(ctx, launch, placed, inputs)
    assert complaint(ctx, inputs, after) is None
    found = Statistics.of(inputs.x)
    assert bool(((after.mean - found.mean).abs() <= 1e-5 * found.variance.sqrt()).all())
    torch.testing.assert_close(after.invstd.double(), found.invstd, rtol=1e-5, atol=0)
    again = call(ctx, launch, placed, inputs)
    assert all(torch.equal(getattr(again, name), getattr(after, name)) for name in ("y", "mask", "mean", "invstd"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("variant", "shape", "last"),
    [
        ("unfused", (342393, 128, 7, 7), False),
        ("fused_apply", (421410, 104, 7, 7), True),
        ("tuned", (342393, 128, 7, 7), False),  # rows
        ("tuned", (44, 3, 4080, 4081), False),  # pieces
        ("tuned", (421410, 104, 7, 7), True),  # columns
        ("tuned", (442587, 99, 7, 8), True),
    ],
    ids=str,
)
def test_more_than_2_to_31_elements(launch, placed, variant, shape, last):
    assert math.prod(shape) > 2**31
    ctx = context(variant, "float16", shape, last, "cuda")
    inputs = check.make_inputs(ctx)
    assert complaint(ctx, inputs, call(ctx, launch, placed, inputs)) is None


def written(variant, dtype, shape, last=False):
    """A context, the inputs, and all tensors after the reference has written its outputs, rounded."""
    ctx = context(variant, dtype, shape, last)
    inputs = check.make_inputs(ctx)
    wanted = OP.reference(ctx, inputs)
    wanted["y"] = wanted["y"].to(ctx.dtype)
    wanted["mask"] = pack(wanted["y"].view(-1) > 0)
    floats = {name: value.float() for name, value in wanted.items() if name not in ("y", "mask")}
    return ctx, inputs, Tensors(**vars(inputs) | wanted | floats)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", [(16, 8, 14, 14), (9, 3, 5, 7), (64, 33, 1, 1), (2, 1, 1, 1)], ids=str)
def test_eager_passes_the_check(dtype, shape, last):
    ctx = context("eager", dtype, shape, last)
    variant, inputs = OP.variants["eager"], check.make_inputs(ctx)
    tensors = check.clone(inputs)
    after = check.collect(OP, variant, tensors, variant.prepare(ctx)(tensors))
    assert check.complaint(ctx, variant, inputs, after) is None


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
def test_eager_is_a_layer_of_torch(last):
    import torch

    ctx = context("eager", "float32", (4, 6, 5, 3), last)
    t = check.make_inputs(ctx)
    x, z = (as_user_has_it(ctx.case.symbols, tensor) for tensor in (t.x, t.z))
    if last:
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
    assert torch.equal(as_user_has_it(ctx.case.symbols, y), wanted)
    assert torch.equal(t.running_mean, layer.running_mean)
    assert torch.equal(t.running_var, layer.running_var)


def test_what_torch_refuses_is_said():
    refused, given = (context("eager", "float32", (n, 3, 1, 1)).case for n in (1, 2))
    assert "single value" in OP.variants["eager"].unsupported(refused)
    assert OP.variants["eager"].unsupported(given) is None


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", [(16, 8, 14, 14), (9, 3, 5, 7), (1, 5, 1, 1)], ids=str)
def test_the_rounded_reference_passes_the_check(dtype, shape, last):
    ctx, inputs, after = written("tuned", dtype, shape, last)
    assert complaint(ctx, inputs, after) is None


@pytest.mark.parametrize(
    ("variant", "found"),
    [("eager", None), ("compile", None), ("unfused", None), ("fused_apply", "y: "), ("tuned", "y: ")],
)
def test_who_may_round_before_the_addition(variant, found):
    """Variants of several steps: z is added to what was stored as bfloat16. Where both cancel, that is far off."""
    import torch

    ctx, inputs, after = written(variant, "bfloat16", (16, 4, 14, 14))
    statistics = Statistics.of(inputs.x)
    scale, mean, beta = (v.view(1, -1, 1) for v in (inputs.gamma * statistics.invstd, statistics.mean, inputs.beta))
    normal = ((inputs.x.double() - mean) * scale + beta).bfloat16()
    inputs.z = (-normal.float() + 0.01 * inputs.z.float()).bfloat16()
    after.y = torch.relu(normal + inputs.z)
    after.mask = pack(after.y.view(-1) > 0)
    complained = complaint(ctx, inputs, after)
    assert complained is None if found is None else complained.startswith(found)


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("y", lambda y: y.view(-1)[700:701].add_(0.05), "y: 1 are wrong; element 700 "),
        ("mask", lambda mask: mask[3:4].bitwise_xor_(16), "mask: 1 of 25 words aren't those of y > 0, the first is 3"),
        ("mean", lambda mean: mean[1:2].add_(1e-4), "mean: 1 are wrong; element 1 "),
        ("invstd", lambda invstd: invstd[0:1].mul_(1.0001), "invstd: 1 are wrong; element 0 "),
        ("running_mean", lambda mean: mean[1:2].mul_(1.001), "running_mean: 1 are wrong"),
        ("running_var", lambda var: var[0:1].mul_(1.001), "running_var: 1 are wrong"),
        ("running_var", lambda var: var[0:1].fill_(math.nan), "running_var: 1 are wrong"),
    ],
)
def test_what_is_wrong_is_noticed(dtype, name, change, found):
    ctx, inputs, after = written("tuned", dtype, (16, 2, 5, 5))
    change(getattr(after, name))
    assert found in complaint(ctx, inputs, after)


def test_statistics_that_miss_a_piece_are_noticed():
    """Of a channel of 10^6 elements, a piece of a thousandth."""
    ctx, inputs, after = written("tuned", "float32", (1000, 1, 25, 40))
    whole = inputs.x.clone()
    missing = Statistics.of(whole[1:])
    after.invstd = missing.invstd.float()
    assert "invstd: 1 are wrong" in complaint(ctx, inputs, after)


def test_statistics_are_those_of_torch():
    import torch

    x = torch.randn(7, 3, 11, generator=torch.Generator().manual_seed(1)) * 2 + 5
    variance, mean = torch.var_mean(x.double(), (0, 2), correction=0)
    found = Statistics.of(x)
    torch.testing.assert_close((found.mean, found.variance), (mean, variance))


@pytest.mark.parametrize("last", [0, 1])
def test_layouts_are_the_same_memory(last):
    import torch

    sizes = symbols((2, 3, 4, 5), last)
    shape = images("x").shapes(sizes)[0]
    assert shape == ((40, 3, 1) if last else (2, 3, 20))
    memory = torch.arange(120).view(shape)
    user = as_user_has_it(sizes, memory)
    assert user.shape == (2, 3, 4, 5)
    assert user.data_ptr() == memory.data_ptr()
    channel = memory.view(-1) // shape[2] % 3
    assert torch.equal(as_user_has_it(sizes, channel.view(shape))[1, 2], torch.full((4, 5), 2))


def test_traffic():
    sizes = symbols((16, 64, 32, 32), last=False)
    n = 2**20
    own = {name: OP.traffic(variant, sizes, "float16") for name, variant in OP.variants.items()}
    vectors = 4 * 64
    assert own["tuned"].read == 3 * 2 * n + 4 * vectors
    assert own["tuned"].written == 2 * n + n // 8 + 4 * vectors
    assert own["unfused"].moved == own["tuned"].moved + 4 * 2 * n
    assert own["eager"].moved == 8 * 2 * n + 6 * vectors


@pytest.fixture
def h200(monkeypatch):
    monkeypatch.setattr(cuda, "multiprocessors", lambda: MULTIPROCESSORS)


@pytest.mark.parametrize("per_pack", [4, 8])
@pytest.mark.parametrize("multiprocessors", [1, MULTIPROCESSORS])
def test_cuts(monkeypatch, per_pack, multiprocessors):
    """Periods repeat their channels and packs and cover the tensor; rows lie in as many tiles as they have slots."""
    monkeypatch.setattr(cuda, "multiprocessors", lambda: multiprocessors)
    for outer in (1, 2, 7, 96, 1000):
        for channels in (1, 2, 3, 64, 100):
            for inner in (1, 3, 4, 5, 8, 49, 196, 1024, 2048, 2049, 5000):
                cut = Cut.of(Layout(outer, channels, inner), per_pack)
                covers(cut)
                if inner >= per_pack:
                    rows_have_slots(cut)


def covers(cut):
    assert cut.rounds == 1 or cut.period % cut.per_pack == 0
    assert (cut.rounds - 1) * cut.period < cut.layout.elements <= cut.rounds * cut.period
    assert (cut.stacked - 1) * cut.rounds_a_block < cut.rounds <= cut.stacked * cut.rounds_a_block
    assert cut.rounds_a_block % cut.along == 0
    assert cut.tiles * cut.tile >= cut.period
    assert cut.across * cut.along <= 256
    assert cut.slots == cut.stacked * cut.samples * cut.slots_a_row
    if cut.layout.inner < cut.per_pack:
        assert cut.across <= 8
    else:
        assert (cut.across, cut.along) == (256, 1)
        assert cut.lanes in {1, 2, 4, 8, 16, 32}


def rows_have_slots(cut):
    in_tiles = set()
    for row in range(min(cut.samples * cut.layout.channels, 3000)):
        first = row * cut.layout.inner
        last = first + cut.layout.inner - 1
        in_tiles.add(last // cut.tile - first // cut.tile + 1)
    assert in_tiles <= {cut.slots_a_row, cut.slots_a_row - 1}


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    "layout", [(656, 64, 3136), (5376, 512, 49), (334, 512, 784), (2**21, 64, 1), (2**16, 2048, 1)]
)
def test_cuts_of_large_tensors(layout):
    """Enough blocks, little of which is idle, and slots that are little next to the tensor."""
    for per_pack in (4, 8):
        cut = Cut.of(Layout(*layout), per_pack)
        waves = cut.tiles * cut.stacked / (4 * 132)
        assert waves <= 4
        assert waves > 0.9 * math.ceil(waves)
        assert cut.tiles * cut.tile < 1.05 * cut.period
        assert 16 * cut.slots * cut.layout.channels < 0.012 * cut.layout.elements * (16 // per_pack)


def test_what_has_no_cut():
    assert Cut.of(Layout(2, 1, 2**31), 8) is None
    assert Cut.of(Layout(3, 3, 2**29 + 1), 8) is None
    assert Cut.of(Layout(2**31, 3, 1), 8).period == 24


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    "layout", [(2, 3, 2048 * 8), (1, 1, 2**27), (1, 3, 4096**2 + 1), (1, 1, 2**36), (4, 64, 20001)]
)
def test_pieces(layout):
    layout = Layout(*layout)
    pieces = Pieces.of(layout, 8)
    assert (pieces.count - 1) * pieces.length < layout.inner <= pieces.count * pieces.length
    assert pieces.length % 8 == 0
    assert pieces.length <= 2**24, "counts are floats"
