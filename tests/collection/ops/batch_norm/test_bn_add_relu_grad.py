"""The backward of batch norm, addition and ReLU: sums exactly, dx closely, at what breaks kernels."""

from __future__ import annotations

import math

import pytest

from harness import check
from harness.collection.ops.batch_norm._batch_norm import ImageSizes
from harness.collection.ops.batch_norm._bn_add_relu_grad_cut import GradCut
from harness.collection.ops.batch_norm.bn_add_relu_grad import OP
from harness.collection.ops.bits import pack, unpack
from harness.model import Case
from harness.ops import Context, Tensors
from tests.one_test import one_test
from tests.rare import rare

COMPILED = [
    {"N": 2, "C": 3, "H": 7, "W": 7, "layout": "nchw"},
    {"N": 2**28, "C": 8, "H": 1, "W": 1, "layout": "nhwc"},
    # one kernel, whose threads keep 1 pack, 2, 2 of halves or 4, 4 of halves, 8
    {"N": 1, "C": 512, "H": 28, "W": 28, "layout": "nchw"},
    {"N": 1, "C": 1024, "H": 14, "W": 14, "layout": "nhwc"},
    {"N": 1, "C": 64, "H": 56, "W": 56, "layout": "nchw"},
    {"N": 32, "C": 512, "H": 7, "W": 7, "layout": "nchw"},
    {"N": 32, "C": 2048, "H": 7, "W": 7, "layout": "nchw"},
]
OURS = ["from_y", "from_bitset", "tuned"]
LAYOUTS = ["nchw", "nhwc"]
SHAPES = [
    (1, 1, 1, 1),  # one element
    (1, 5, 1, 1),  # fewer elements than a pack
    (3, 1, 5, 7),  # one channel, odd size
    (2, 64, 8, 8),  # packs within a row, or within the channels
    (5, 3, 7, 7),  # packs over two rows, odd total
    (3, 7, 1, 8),  # rows of one half pack, or two float packs
    (4, 9, 1, 5),  # rows shorter than a half pack
    (33, 129, 1, 1),  # a channel for each element, more than threads
    (7, 11, 1, 2),  # rows of two
    (9, 2, 64, 32),  # rows of one tile of halves, two of floats
    (9, 2, 64, 33),  # rows of one tile and a bit
    (2, 2041, 1, 1),  # a period of several tiles and outer places
    (3, 1001, 1, 3),  # the same of short rows
    (2, 2048, 1, 2),  # as many channels as a tile has elements
    (2, 3, 331, 337),  # many blocks, odd everything
    (0, 4, 3, 3),  # empty
    (3, 4, 0, 3),  # empty rows
    (300, 50, 7, 7),  # a tile has many rows
    # Small layers, which one kernel makes: groups of one channel, of few, and of many that are last; in a block (2, 64,
    # 8, 8 above, too) and in a cluster.
    (3, 6, 112, 112),
    (2, 8, 14, 14),
    (33, 24, 7, 7),
    (400, 8, 7, 7),
    (9, 40, 3, 3),
    (64, 16, 14, 14),
    (100, 24, 14, 14),
]
# Several rounds, in halves and floats, odd numbers of them, and a last one that lacks elements.
MANY = [(401, 64, 28, 28), (30_001, 3, 7, 31), (20_000, 512, 1, 3), (1203, 512, 7, 7), (4_000_037, 1, 1, 8)]
# Of dy, x, dx, dz, and what says where y > 0.
OFFSETS = [*(tuple(int(i == j) for j in range(5)) for i in range(5)), (3, 5, 2, 7, 1)]


def context(variant, dtype, shape, layout="nchw", device="cpu"):
    import torch

    sizes = tuple(zip("NCHW", shape, strict=True))
    case = Case("bn_add_relu_grad", variant, dtype, sizes, choices=(("layout", layout),), device=device)
    place = torch.device(device)
    return Context(case, getattr(torch, dtype), place, torch.Generator(place).manual_seed(7), OP)


def small_integers(ctx):
    """Inputs of -4 to 4, or halves of them: their products and sums are exact in float32."""
    import torch

    def integers(lowest, highest, *shape):
        return torch.randint(lowest, highest, shape, generator=ctx.generator, device=ctx.device, dtype=torch.int8)

    size, channels = next(tensor for tensor in OP.inputs if tensor.name == "x").shapes(ctx.case.values)[0], ctx.s.C
    images = {name: integers(-4, 5, *size).to(ctx.dtype) for name in ("dy", "x", "y")}
    vectors = {"gamma": integers(1, 5, channels), "mean": integers(-2, 3, channels), "invstd": integers(1, 3, channels)}
    inputs = Tensors(**images, **{name: value.float() / 2 for name, value in vectors.items()})
    inputs.y.relu_()
    return inputs


def moved(placed, tensor, offset):
    copy = placed(tensor.shape, str(tensor.dtype)[6:], offset).tensor
    return copy.copy_(tensor)


def run(launch, placed, ctx, inputs, offsets=(0, 0, 0, 0, 0)):
    """The outputs for these inputs. offsets: elements past aligned addresses."""
    values, variant, dtype = ctx.case.values, ctx.case.variant, ctx.case.dtype
    given = vars(inputs) | {"dy": moved(placed, inputs.dy, offsets[0]), "x": moved(placed, inputs.x, offsets[1])}
    given |= {"y": moved(placed, inputs.y, offsets[4])}
    if variant != "from_y":
        given["mask"] = moved(placed, pack((inputs.y > 0).view(-1)), offsets[4])
    outputs = {"dx": placed(inputs.x.shape, dtype, offsets[2]), "dz": placed(inputs.x.shape, dtype, offsets[3])}
    outputs |= {name: placed(ctx.s.C, "float32") for name in ("dgamma", "dbeta")}
    launch("bn_add_relu_grad", variant, dtype, values, **given, **outputs)
    return Tensors(**{name: value.tensor for name, value in outputs.items()})


def run_and_check(launch, placed, variant, dtype, shape, layout, offsets=(0, 0, 0, 0, 0)):
    import torch

    ctx = context(variant, dtype, shape, layout, "cuda")
    inputs = small_integers(ctx)
    outputs = run(launch, placed, ctx, inputs, offsets)
    wanted = OP.reference(ctx, inputs)
    assert torch.equal(outputs.dgamma.double(), wanted["dgamma"])
    assert torch.equal(outputs.dbeta.double(), wanted["dbeta"])
    assert check.complaint(ctx, OP.variants[variant], inputs, outputs) is None


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, variant, shape, layout, dtype):
    run_and_check(launch, placed, variant, dtype, shape, layout)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", MANY, ids=str)
def test_several_rounds(launch, placed, shape, layout, dtype):
    ctx = context("tuned", dtype, shape, layout)
    assert GradCut.of(ImageSizes.of(ctx), 4 if dtype == "float32" else 8).rounds > 1
    run_and_check(launch, placed, "tuned", dtype, shape, layout)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, layout, dtype):
    for shape in ((3, 5, 7, 7), (2, 4, 4, 8), (5, 9, 1, 3), (6, 16, 3, 3)):
        for offsets in OFFSETS:
            run_and_check(launch, placed, variant, dtype, shape, layout, offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", OURS)
def test_random_values(launch, placed, variant, layout, dtype):
    """A case of several rounds passes the check, and gives the same results when it is called again."""
    import torch

    ctx = context(variant, dtype, (301, 64, 28, 28), layout, "cuda")
    inputs = check.make_inputs(ctx)
    outputs = run(launch, placed, ctx, inputs)
    assert check.complaint(ctx, OP.variants[variant], inputs, outputs) is None
    again = run(launch, placed, ctx, inputs)
    assert torch.equal(again.dgamma, outputs.dgamma), "sums aren't added in a fixed order"
    assert torch.equal(again.dx, outputs.dx)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", OURS)
def test_special_values(launch, placed, special, variant, layout, dtype):
    """A gradient that ReLU drops counts for nothing, whatever it was. A NaN that ReLU keeps spoils only its channel."""
    import torch

    ctx = context(variant, dtype, (5, 24, 4, 4), layout, "cuda")
    inputs = small_integers(ctx)
    by_channel = inputs.dy.movedim(1, 0)  # a view
    dropped = (inputs.y <= 0).movedim(1, 0)
    by_channel[dropped] = special(dtype).repeat(dropped.numel() // 12)[: int(dropped.sum())]
    kept = (inputs.y[:, 3] > 0).nonzero()[0]
    inputs.dy[kept[0], 3, kept[1]] = math.nan
    outputs, wanted = run(launch, placed, ctx, inputs), OP.reference(ctx, inputs)
    for name in ("dz", "dgamma", "dbeta"):
        exact = wanted[name].to(getattr(outputs, name).dtype)
        torch.testing.assert_close(getattr(outputs, name), exact, rtol=0, atol=0, equal_nan=True)
    assert bool(outputs.dx[:, 3].isnan().all())
    relative = torch.finfo(ctx.dtype).eps
    torch.testing.assert_close(outputs.dx, wanted["dx"].to(ctx.dtype), rtol=relative, atol=1e-5, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_autograd_gets_the_same(launch, placed, layout):
    import torch

    ctx = context("tuned", "float32", (16, 24, 14, 14), layout, "cuda")
    inputs, wanted = by_autograd(ctx, "cuda")
    outputs = run(launch, placed, ctx, inputs)
    for name, value in wanted.items():
        torch.testing.assert_close(getattr(outputs, name), value, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(
    ("shape", "layout"),
    [((27_890_000, 7, 11, 1), "nchw"), ((2**28 + 3, 8, 1, 1), "nhwc"), ((306_784_000, 7, 1, 1), "nhwc")],
    ids=str,
)
def test_more_than_2_to_31_elements(launch, placed, variant, shape, layout):
    """Except at both ends x is its mean and y is 1, so that dx is dz minus the mean of dz, which rounds to dz."""
    import torch

    ctx = context(variant, "float16", shape, layout, "cuda")
    sizes = ImageSizes.of(ctx)
    n, size = sizes.elements, (sizes.outer, sizes.channels, sizes.inner)
    assert n > 2**31

    def integers(lowest, highest):
        return torch.randint(lowest, highest, size, generator=ctx.generator, device="cuda", dtype=torch.int8)

    # 2.5 to 3.25 or -3.25 to -2.5. Half's steps are 2e-3 there; of 3e8 such numbers the mean is about 2e-4.
    dy = integers(10, 14).mul_(integers(0, 2).mul_(2).sub_(1)).half().div_(4)
    x, y = torch.ones(size, device="cuda", dtype=torch.float16), torch.ones(n, device="cuda", dtype=torch.bool)
    vectors = {name: torch.ones(sizes.channels, device="cuda") for name in ("gamma", "mean", "invstd")}
    terms = torch.zeros(sizes.channels, device="cuda", dtype=torch.float64)
    ends = [slice(0, 50_000), slice(n - 50_000, n)]
    for end in ends:
        x.view(-1)[end] = torch.randint(-3, 6, (50_000,), generator=ctx.generator, device="cuda").half()
        y[end] = torch.rand(50_000, generator=ctx.generator, device="cuda") > 0.5
        products = (x.view(-1)[end] - 1).double() * dy.view(-1)[end].where(y[end], 0)
        elements = torch.arange(end.start, end.stop, device="cuda")
        terms.index_add_(0, elements // sizes.inner % sizes.channels, products)
    signs = {"y": y.half()} if variant == "from_y" else {"mask": pack(y)}
    dx, dz = placed(size, "float16"), placed(size, "float16")
    sums = {name: placed(sizes.channels, "float32") for name in ("dgamma", "dbeta")}
    given = {"dy": dy, "x": x, **signs, **vectors}
    launch("bn_add_relu_grad", variant, "float16", ctx.case.values, dx=dx, dz=dz, **given, **sums)
    del given, x, signs
    dropped = ~y.view(size)
    dy.masked_fill_(dropped, 0)
    assert torch.equal(dz.tensor, dy)
    for end in ends:
        assert bool((dx.tensor.view(-1)[end][~y[end]].abs() < 1e-3).all())
    assert torch.equal(dx.tensor.masked_fill_(dropped, 0), dy)
    assert torch.equal(sums["dbeta"].tensor.double(), dy.sum((0, 2), dtype=torch.float64))
    assert torch.equal(sums["dgamma"].tensor.double(), terms)


def by_autograd(ctx, device="cpu"):
    """Inputs of a whole layer, and their gradients as autograd gives them."""
    import torch

    def normal(*shape):
        return torch.randn(shape, generator=ctx.generator, device=device, dtype=ctx.dtype)

    n, c, h, w = ctx.case.symbols.values()
    last = ctx.s.layout == "nhwc"
    order = torch.channels_last if last else torch.contiguous_format
    x, z, dy = (normal(n, c, h, w).to(memory_format=order) for _ in range(3))
    gamma, beta = normal(c), normal(c)
    leaves = [leaf.requires_grad_() for leaf in (x, z, gamma, beta)]
    y = torch.relu(torch.nn.functional.batch_norm(x, None, None, gamma, beta, training=True) + z)
    wanted = dict(zip(("dx", "dz", "dgamma", "dbeta"), torch.autograd.grad(y, leaves, dy), strict=True))

    def declared(tensor):
        in_order = tensor.detach().permute(0, 2, 3, 1) if last else tensor.detach()
        return in_order.reshape((n * h * w, c, 1) if last else (n, c, h * w))

    variance, mean = torch.var_mean(x.detach(), (0, 2, 3), correction=0)
    inputs = {"dy": declared(dy), "x": declared(x), "y": declared(y), "gamma": gamma.detach(), "mean": mean}
    wanted |= {name: declared(wanted[name]) for name in ("dx", "dz")}
    return Tensors(**inputs, invstd=(variance + 1e-5).rsqrt()), wanted


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_reference_is_what_autograd_does(layout):
    import torch

    ctx = context("eager", "float64", (4, 3, 5, 7), layout)
    inputs, wanted = by_autograd(ctx)
    got = OP.reference(ctx, inputs)
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-9)


def by_eager(ctx):
    """(inputs, outputs) of a call of eager."""
    variant, inputs = OP.variants["eager"], check.make_inputs(ctx)
    tensors = check.merged(inputs, Tensors(**variant.encode(ctx, inputs)))
    return inputs, check.collect(OP, variant, tensors, variant.prepare(ctx)(tensors))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "shape", [rare((16, 8, 28, 28)), (4, 8, 14, 14), (9, 33, 1, 2), (64, 24, 1, 1), (2, 1, 5, 1)], ids=str
)
def test_eager_passes_the_check(shape, layout, dtype):
    ctx = context("eager", dtype, shape, layout)
    inputs, outputs = by_eager(ctx)
    assert check.complaint(ctx, OP.variants["eager"], inputs, outputs) is None
    assert outputs.dx.shape == inputs.x.shape
    assert outputs.dx.is_contiguous()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dx", lambda dx: dx.view(-1)[5].add_(1)),
        ("dx", lambda dx: dx.view(-1)[-1].fill_(math.nan)),
        ("dz", lambda dz: dz.view(-1)[dz.view(-1).argmax()].mul_(1.02)),
        ("dgamma", lambda dgamma: dgamma[3].add_(9)),
        ("dbeta", lambda dbeta: dbeta[3].add_(9)),
    ],
    ids=["dx", "NaN", "dz", "dgamma", "dbeta"],
)
def test_what_is_wrong_is_noticed(name, change, dtype):
    ctx = context("eager", dtype, (16, 8, 14, 14))
    inputs, outputs = by_eager(ctx)
    change(getattr(outputs, name))
    assert f"{name}: 1 of " in check.complaint(ctx, OP.variants["eager"], inputs, outputs)


@one_test(("variant", "allowed"), [("eager", True), ("compile", True), *((name, False) for name in OURS)])
def test_who_may_round_the_terms_of_sums(variant, allowed):
    """In torch the terms of dgamma may be rounded to bfloat16, which is much where they cancel."""
    import torch

    ctx = context(variant, "bfloat16", (16, 8, 14, 14))
    inputs = check.make_inputs(ctx)
    wanted = OP.reference(ctx, inputs)
    normalized = (inputs.x.double() - inputs.mean.double().view(1, -1, 1)) * inputs.invstd.double().view(1, -1, 1)
    terms = torch.linalg.vector_norm(wanted["dz"] * normalized, dim=(0, 2))
    # Sums of some channels are smaller than the root of the sum of their squared terms.
    assert (wanted["dgamma"].abs() < terms / 2).any()

    def complaint(roundings: float) -> str | None:
        dgamma = wanted["dgamma"] + roundings * torch.finfo(torch.bfloat16).eps * terms
        same = {name: wanted[name].bfloat16() for name in ("dx", "dz")}
        outputs = Tensors(**same, dgamma=dgamma.float(), dbeta=wanted["dbeta"].float())
        return check.complaint(ctx, OP.variants[variant], inputs, outputs)

    found = complaint(1.5)
    assert found is None if allowed else found.startswith("dgamma: ")
    assert complaint(10).startswith("dgamma: ")


@one_test(("variant", "allowed"), [("eager", True), ("compile", True), *((name, False) for name in OURS)])
def test_who_may_round_terms(variant, allowed):
    """In torch a term of dx may be rounded to bfloat16. Where terms cancel, that is far more than a rounding of dx."""
    ctx = context(variant, "bfloat16", (16, 8, 14, 14))
    inputs = check.make_inputs(ctx)
    wanted = OP.reference(ctx, inputs)
    scale = (inputs.gamma * inputs.invstd).double().view(1, -1, 1)
    rest = wanted["dz"] - wanted["dx"] / scale  # what dz loses of itself
    dx = (scale * (wanted["dz"].bfloat16() - rest.bfloat16().double())).bfloat16()
    sums = {name: wanted[name].float() for name in ("dgamma", "dbeta")}
    outputs = Tensors(dx=dx, dz=wanted["dz"].bfloat16(), **sums)
    complaint = check.complaint(ctx, OP.variants[variant], inputs, outputs)
    assert complaint is None if allowed else complaint.startswith("dx: ")


def test_the_bits_say_where_y_is_positive(dtype):
    import torch

    ctx = context("tuned", dtype, (3, 5, 7, 3), "nhwc")
    inputs = check.make_inputs(ctx)
    assert bool((inputs.y == 0).any())
    mask = OP.variants["tuned"].encode(ctx, inputs)["mask"]
    assert torch.equal(unpack(mask, inputs.y.numel()), (inputs.y > 0).view(-1))


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 1 / 32), ("float16", 1 / 16)])
def test_traffic(dtype, bits):
    values = context("tuned", dtype, (64, 64, 64, 64)).case.values
    tensor = 64**4 * (4 if dtype == "float32" else 2)
    moved = {name: OP.traffic_of(variant, values, dtype).moved / tensor for name, variant in OP.variants.items()}
    assert OP.work_of(values, dtype).moved / tensor == moved["tuned"]
    assert OP.work_of(values, dtype).again / tensor == 2 + bits
    assert [moved[name] for name in ("eager", "compile", "from_y")] == pytest.approx([8] * 3, rel=1e-3)
    assert [moved[name] for name in ("from_bitset", "tuned")] == pytest.approx([6 + 2 * bits] * 2, rel=1e-3)
