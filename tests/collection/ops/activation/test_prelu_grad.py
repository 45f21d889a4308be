"""The backward of PReLU: dx and d alpha, exactly, at the sizes and addresses that break kernels."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from harness import check, cuda
from harness.collection.ops.activation._prelu_grad_whole import TUNING, cut_of
from harness.collection.ops.activation.prelu_grad import _REGISTERS, OP, Cut, _Rows, expected_sum, products
from harness.collection.ops.batch_norm._whole import CLUSTERS, REGISTERS
from harness.cuda.assumed import KNOWN, assuming
from harness.model import Case
from harness.ops import Context, comparer
from tests.collection.test_kernels import GENERATOR, FakeKernel, alignments, pretend_gpu
from tests.one_test import one_test

COMPILED = [
    {"N": 2, "C": 3, "H": 7, "W": 7},
    {"N": 2, "C": 8, "H": 7, "W": 7},  # one kernel, for rows, channels that are last, and one alpha
    {"N": 5, "C": 16, "H": 1, "W": 1},
    {"N": 3, "C": 1, "H": 8, "W": 8},
]
DTYPES = ["float32", "float16", "bfloat16"]
OURS = ["naive", "fused", "tuned"]
SHAPES = [
    (1, 1, 1, 1),  # one element
    (1, 5, 1, 1),  # fewer elements than a pack
    (3, 1, 5, 7),  # one alpha, odd size
    (2, 64, 8, 8),  # packs within a channel
    (5, 3, 7, 7),  # packs over two channels, odd total
    (3, 7, 1, 8),  # rows of one half pack, or two float packs
    (4, 9, 1, 5),  # rows shorter than a half pack
    (33, 129, 1, 1),  # an alpha for each element
    (7, 11, 1, 2),  # rows of two
    (9, 2, 64, 32),  # rows of one tile of halves, two of floats
    (9, 2, 64, 33),  # rows of one tile and a bit
    (2, 3, 331, 337),  # many blocks, odd everything
    (0, 4, 3, 3),  # empty
    (3, 4, 0, 3),  # empty rows
    (300, 50, 7, 7),  # a tile has many rows
    (128, 512, 7, 7),  # one kernel of clusters, for halves
    (33, 264, 7, 5),
    (97, 3, 28, 28),
    (4097, 64, 1, 1),
]
# Each number of blocks for a group of channels fits some of these layers.
LAYERS = [(64, 512, 7, 7), (33, 264, 7, 5), (97, 3, 28, 28), (12, 3, 28, 28), (4097, 64, 1, 1), (1000, 64, 1, 1)]
# Several rounds, in halves and floats: whole and not, of all kinds of rows.
MANY = [(401, 64, 28, 28), (30_001, 3, 7, 31), (20_000, 512, 1, 3), (4_000_037, 1, 1, 8)]


def small_integers(shape, dtype, generator, offset=0):
    """-4 to 4: products and sums of these are exact in every type. `offset` elements past an aligned address."""
    import torch

    n, kind = math.prod(shape), getattr(torch, dtype)
    values = torch.randint(-4, 5, (n + offset,), generator=generator, device=generator.device, dtype=torch.int8)
    return torch.empty(n + offset, device=generator.device, dtype=kind).copy_(values)[offset:].view(shape)


def run(launch, placed, variant, x, dy, alpha, dx_offset=0):
    dtype = str(x.dtype)[6:]
    dx, dalpha = placed(x.shape, dtype, dx_offset), placed(alpha.shape, dtype)
    shape = dict(zip("NCHW", x.shape, strict=True))
    launch("prelu_grad", variant, dtype, shape, x=x, dy=dy, alpha=alpha, dx=dx.tensor, dalpha=dalpha.tensor)
    dx.assert_untouched_around()
    dalpha.assert_untouched_around()
    return dx.tensor, dalpha.tensor


def run_and_check(launch, placed, variant, dtype, shape, offsets=(0, 0, 0)):
    import torch

    generator = torch.Generator("cuda").manual_seed(math.prod(shape))
    x, dy = (small_integers(shape, dtype, generator, offset) for offset in offsets[:2])
    alpha = small_integers(shape[1:2], dtype, generator) / 4
    dx, dalpha = run(launch, placed, variant, x, dy, alpha, offsets[2])
    wanted = OP.reference(None, SimpleNamespace(x=x, dy=dy, alpha=alpha))
    assert torch.equal(dx.double(), wanted["dx"])
    assert torch.equal(dalpha, wanted["dalpha"].to(dalpha.dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, variant, dtype, shape):
    run_and_check(launch, placed, variant, dtype, shape)


@pytest.fixture
def two_kernels(monkeypatch):
    """Has `tuned` run two kernels for small layers, too."""
    monkeypatch.setattr(Context, "plan", lambda _: {"whole": 0})


@pytest.mark.gpu
@pytest.mark.usefixtures("two_kernels")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_by_two_kernels(launch, placed, dtype, shape):
    run_and_check(launch, placed, "tuned", dtype, shape)


def cut_by_one_kernel(dtype, cluster):
    """Shapes that one kernel makes with so many blocks for a group of channels, and the forms of the kernels."""
    cuts = {shape: cut_of(small(dtype, *shape), cluster) for shape in LAYERS}
    return [shape for shape, cut in cuts.items() if cut], {cut.form for cut in cuts.values() if cut}


@pytest.mark.gpu
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_by_one_kernel(launch, placed, monkeypatch, dtype, cluster):
    monkeypatch.setattr(Context, "plan", lambda _: {"whole": cluster})
    for shape in cut_by_one_kernel(dtype, cluster)[0]:
        run_and_check(launch, placed, "tuned", dtype, shape)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_for_one_kernel_are_of_each_form(dtype, cluster):
    with assuming(KNOWN["sm_90"]):
        assert cut_by_one_kernel(dtype, cluster)[1] == {"few", "many", "one"}


@pytest.mark.gpu
@pytest.mark.parametrize("shape", MANY, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_several_rounds(launch, placed, dtype, shape):
    n, c, h, w = shape
    rows = _Rows(n, c, h * w) if c > 1 else _Rows(1, 1, n * h * w)
    assert Cut.of(rows, 4 if dtype == "float32" else 8).rounds > 1
    run_and_check(launch, placed, "tuned", dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for shape in ((3, 5, 7, 7), (2, 1, 5, 7), (2, 4, 4, 8), (5, 9, 1, 3), (1, 1, 1, 9), (1, 3, 1, 1)):
        for offsets in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 3, 3), (4, 2, 5), (7, 6, 3)):
            run_and_check(launch, placed, variant, dtype, shape, offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", OURS)
def test_random_values(launch, placed, variant, dtype):
    """Check a case with several rounds as the harness does, and compare two results, which must be the same."""
    import torch

    ctx = context(variant, dtype, (400, 64, 28, 28), "cuda")
    inputs = check.make_inputs(ctx)
    dx, dalpha = run(launch, placed, variant, inputs.x, inputs.dy, inputs.alpha)
    assert check.complaint(ctx, OP.variants[variant], inputs, SimpleNamespace(dx=dx, dalpha=dalpha)) is None
    again = run(launch, placed, variant, inputs.x, inputs.dy, inputs.alpha)
    assert torch.equal(again[1], dalpha), "sums aren't added in a fixed order"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", OURS)
def test_special_values(launch, placed, variant, dtype):
    import torch

    kind = getattr(torch, dtype)
    big, small = torch.finfo(kind).max, torch.finfo(kind).tiny
    values = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, big, -big, small, -small, 1.0, -1.0], dtype=kind)
    # A channel for each pair of x and dy, so that a NaN in one sum doesn't hide other sums; two packs of each.
    x = values.repeat_interleave(11).view(1, 121, 1, 1).expand(1, 121, 4, 4).contiguous().cuda()
    dy = values.repeat(11).view(1, 121, 1, 1).expand(1, 121, 4, 4).contiguous().cuda()
    alpha = values[torch.arange(121) % 7].cuda()
    dx, dalpha = run(launch, placed, variant, x, dy, alpha)
    wanted = OP.reference(None, SimpleNamespace(x=x, dy=dy, alpha=alpha))
    torch.testing.assert_close(dx, wanted["dx"].to(kind), rtol=0, atol=0, equal_nan=True)
    # naive's products may be too small for the type, though their sum isn't.
    torch.testing.assert_close(dalpha, wanted["dalpha"].to(kind), rtol=0, atol=float(small), equal_nan=True)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("shape", [(2**31 + 17, 1, 1, 1), (43826197, 7, 7, 1)], ids=["one alpha", "rows of 7"])
def test_more_than_2_to_31_elements(launch, placed, variant, shape):
    import torch

    generator = torch.Generator("cuda").manual_seed(1)
    dy = torch.randint(-4, 5, shape, generator=generator, device="cuda", dtype=torch.float16)
    x = torch.ones(shape, device="cuda", dtype=torch.float16)
    assert x.numel() > 2**31
    # Slices at the start and at the end, where the index passes 2**31, have something to add.
    parts = [slice(0, 1000), slice(x.shape[0] - 1000, None)]
    for part in parts:
        x[part] = small_integers(x[part].shape, "float16", generator)
    alpha = small_integers(shape[1:2], "float16", generator) / 4
    dx, dalpha = run(launch, placed, variant, x, dy, alpha)
    wanted = [OP.reference(None, SimpleNamespace(x=x[part], dy=dy[part], alpha=alpha)) for part in parts]
    for part, want in zip(parts, wanted, strict=True):
        assert torch.equal(dx[part].double(), want["dx"])
        dx[part] = dy[part]
    assert torch.equal(dx, dy), "elsewhere x is 1"
    assert torch.equal(dalpha, sum(want["dalpha"] for want in wanted).half())


def context(variant, dtype, shape, device="cpu"):
    import torch

    case = Case("prelu_grad", variant, dtype, tuple(zip("NCHW", shape, strict=True)), device=device)
    place = torch.device(device)
    return Context(case, getattr(torch, dtype), place, torch.Generator(place).manual_seed(7), OP)


@one_test("dtype", DTYPES)
@one_test("shape", [(16, 8, 28, 28), (999, 1, 11, 1), (64, 33, 1, 1), (1, 1, 1, 1)], ids=str)
def test_eager_passes_the_check(dtype, shape):
    ctx = context("eager", dtype, shape)
    inputs = check.make_inputs(ctx)
    outputs = SimpleNamespace(**dict(zip(("dx", "dalpha"), OP.variants["eager"].prepare(ctx)(inputs), strict=True)))
    assert check.complaint(ctx, OP.variants["eager"], inputs, outputs) is None
    outputs.dx[-1, -1, -1, -1] *= 1.01
    assert "dx: 1 of" in check.complaint(ctx, OP.variants["eager"], inputs, outputs)


@pytest.mark.parametrize("channels", [1, 3])
def test_eager_is_what_autograd_does(channels):
    import torch

    ctx = context("eager", "float32", (4, channels, 5, 5))
    t = check.make_inputs(ctx)
    x, alpha = t.x.requires_grad_(), t.alpha.requires_grad_()
    wanted = torch.autograd.grad(torch.nn.functional.prelu(x, alpha), (x, alpha), t.dy)
    assert all(torch.equal(a, b) for a, b in zip(OP.variants["eager"].prepare(ctx)(t), wanted, strict=True))


@pytest.mark.parametrize(("dtype", "elements"), [("float32", 2**22), ("float16", 2**19), ("bfloat16", 2**16)])
def test_a_sum_without_one_block_is_noticed(dtype, elements):
    """A part of a channel is left out, as small as the rounding of the type lets the check see."""
    import torch

    ctx = context("fused", dtype, (elements, 1, 1, 1))
    terms = products(check.make_inputs(ctx)).view(-1)
    norm, want = torch.linalg.vector_norm(terms).view(1), terms.sum().view(1)
    assert comparer.complaint([expected_sum(ctx, terms.float().sum().to(ctx.dtype).view(1), want, norm)]) is None
    for block in (0, 5, elements // 4096 - 1):
        left_out = want - terms[block * 4096 : (block + 1) * 4096].sum()
        assert "1 of 1 elements are wrong" in comparer.complaint(
            [expected_sum(ctx, left_out.to(ctx.dtype), want, norm)]
        )


@pytest.mark.parametrize("seed", range(8))
def test_products_below_the_normal_halves_may_be_rounded(seed):
    """Each is off by as much, however small it is: so is their sum by the root of their number. Not so elsewhere."""
    import torch

    torch.manual_seed(seed)
    terms = (torch.randn(2**20) * 2.0**-21).double()
    norm, want = torch.linalg.vector_norm(terms).view(1), terms.sum().view(1)
    rounded = terms.half().double().sum().view(1)

    def complaint(variant, dtype, off=0.0):
        ctx = context(variant, dtype, (2**20, 1, 1, 1))
        return comparer.complaint([expected_sum(ctx, (want if off else rounded).to(ctx.dtype), want + off, norm)])

    assert complaint("naive", "float16") is None
    allowed = 2 * 2.0**-24 * 2**10  # twice the smallest half, for the root of the terms' number
    assert complaint("naive", "float16", 2 * allowed)
    for variant, dtype in (("fused", "float16"), ("naive", "float32"), ("naive", "bfloat16")):
        assert complaint(variant, dtype, allowed / 2), (variant, dtype)


@pytest.mark.parametrize("pack", [4, 8])
def test_cuts(monkeypatch, pack):
    """Periods cover the tensor and repeat its channels; every row lies in `slots` tiles, or in one less."""
    monkeypatch.setattr(cuda, "resident_threads", lambda: 256)
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 1)
    several = 0
    for batch in (1, 2, 7, 96, 1000):
        for channels in (1, 2, 3, 64):
            for inner in (1, 3, 5, 8, 49, 196, 1024, 2048, 2049, 4096, 5000):
                rows = _Rows(batch, channels, inner) if channels > 1 else _Rows(1, 1, batch * inner)
                cut = Cut.of(rows, pack)
                assert (cut.rounds - 1) * cut.period < rows.elements <= cut.rounds * cut.period
                if cut.rounds > 1:
                    several += 1
                    assert cut.period % pack == 0
                    assert channels == 1 or cut.period == cut.rows.batch * channels * inner
                assert cut.lanes in {1, 2, 4, 8, 16, 32}
                in_tiles = set()
                for row in range(min(cut.rows.batch * cut.rows.channels, 5000)):
                    first = row * cut.rows.inner
                    last = first + cut.rows.inner - 1
                    in_tiles.add(last // cut.tile - first // cut.tile + 1)
                assert in_tiles <= {cut.slots, cut.slots - 1}
    assert several


@pytest.mark.parametrize(
    ("gpu", "batch", "pack", "rounds"),
    [
        *(("sm_90", *sizes) for sizes in [(128, 8, 3), (256, 8, 6), (128, 4, 5), (32, 8, 1), (4096, 8, 8)]),
        *(("sm_89", *sizes) for sizes in [(32, 8, 1), (46, 8, 1), (47, 8, 2)]),
    ],
)
def test_blocks_of_a_small_layer_fit_beside_each_other(gpu, batch, pack, rounds):
    """A multiprocessor has room for four blocks of halves, also where it has 1536 threads; of floats for more."""
    with assuming(KNOWN[gpu]):
        cut = Cut.of(_Rows(batch, 512, 49), pack)
        room = cuda.multiprocessors() * 4 if pack == 8 else cuda.resident_threads() // 256
    assert cut.rounds == rounds
    assert rounds == 8 or cut.period <= cut.tile * room


@pytest.mark.parametrize(("scalar", "size"), [("float", 4), ("__half", 2), ("__nv_bfloat16", 2)])
def test_threads_have_as_many_registers_as_cuts_believe(compiled, scalar, size):
    registers = compiled("prelu_grad.cu", {"SCALAR": scalar})["prelu_grad_tuned"].registers
    assert _REGISTERS[size] // 2 < registers <= _REGISTERS[size]


def test_what_has_no_cut(monkeypatch):
    monkeypatch.setattr(cuda, "resident_threads", lambda: 132 * 2048)
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)
    assert Cut.of(_Rows(1, 2, 2**30), 8) is None
    assert Cut.of(_Rows(4, 2, 2**30 - 1), 8) is None
    assert Cut.of(_Rows(1, 1, 2**33 + 1), 8).rounds == 9


def small(dtype, *shape):
    return Case("prelu_grad", "tuned", dtype, tuple(zip("NCHW", shape, strict=True)), device="cuda")


@one_test(
    ("gpu", "dtype", "shape", "cluster"),
    [
        ("sm_90", "float16", (128, 512, 7, 7), 2),
        ("sm_90", "bfloat16", (32, 512, 7, 7), 1),
        ("sm_90", "float32", (64, 512, 7, 7), 2),
        ("sm_90", "float16", (5, 16, 1, 1), 1),
        ("sm_90", "float16", (8, 1, 16, 16), 1),
        ("sm_90", "float16", (8, 1, 3, 3), 1),  # one alpha has no rows of samples
        ("sm_90", "float16", (64, 1, 64, 64), 0),  # so few blocks that most multiprocessors have none
        ("sm_90", "float16", (640, 8, 7, 7), 0),
        ("sm_90", "float16", (256, 512, 7, 7), 0),  # more blocks than fit at once
        ("sm_90", "float32", (128, 512, 7, 7), 0),
        ("sm_90", "float16", (2, 3, 7, 7), 0),  # no whole groups
        ("sm_90", "float16", (0, 8, 7, 7), 0),
        ("sm_80", "float16", (128, 512, 7, 7), 0),  # no clusters
        ("sm_80", "float16", (64, 512, 7, 7), 1),
    ],
)
def test_small_layers_have_one_kernel(gpu, dtype, shape, cluster):
    with assuming(KNOWN[gpu]):
        assert TUNING.rule(small(dtype, *shape)) == {"whole": cluster}


def test_a_search_tries_what_fits():
    case = small("float16", 128, 512, 7, 7)
    with assuming(KNOWN["sm_90"]):
        assert [TUNING.obstacle(case, {"whole": cluster}) for cluster in (0, 2, 4, 8)] == [None] * 4
        assert "no kernel" in TUNING.obstacle(case, {"whole": 1})
        assert "waves" in TUNING.obstacle(small("float16", 64, 4096, 7, 7), {"whole": 2})
        (built,) = TUNING.kernels(case, {"whole": 4})
        assert (built.entry, built.threads, built.cluster) == ("prelu_grad_whole_few", 256, 4)
        assert not [*TUNING.kernels(case, {"whole": 0})]
    with assuming(KNOWN["sm_80"]):
        assert "capability 9.0" in TUNING.obstacle(case, {"whole": 2})


@pytest.mark.parametrize("packs", REGISTERS)
def test_threads_of_one_kernel_have_no_more_registers_than_cuts_believe(compiled, packs):
    kernels = compiled("prelu_grad_whole.cu", {"SCALAR": "__nv_bfloat16", "WHOLE": packs})
    assert len(kernels) == 3
    assert max(kernel.registers for kernel in kernels.values()) <= REGISTERS[packs]


def test_two_kernels_run_where_a_tensor_begins_elsewhere(monkeypatch):
    import torch

    launched = []
    pretend_gpu(monkeypatch, lambda _file, entry, _macros: FakeKernel(lambda *_, **__: launched.append(entry)))
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    case = small("float16", 2, 16, 7, 7)
    launch = OP.variants["tuned"].prepare(Context(case, None, None, GENERATOR, OP))
    found = []
    for tensors in alignments(OP.inputs + OP.outputs, case.values, case.dtype):
        launched.clear()
        launch(tensors)
        found.append(launched[:])
    assert found == [["prelu_grad_whole_few"], *[["prelu_grad_tuned", "prelu_grad_total"]] * 3]
