"""Attention's small products at odd and at padded sizes: the kernel that pads, and cuBLASLt's batches."""

from __future__ import annotations

import pytest

from harness.collection.ops.elementwise import CUDA_TYPE
from harness.collection.ops.gemm.batched_gemm import OP, padded
from harness.cuda import cublaslt
from harness.model import Case
from tests.one_test import one_test
from tests.rare import rare

PRODUCTS = ["scores", "context"]
# Rows that begin anywhere, and rows that all begin on 16 bytes.
COMPILED = [{"B": 4, "n": n, "D": 32, "product": product} for n in (49, 64) for product in PRODUCTS]
LT = ["odd", "padded", "padded_counted", "tuned"]
SIZES = [(1, 1, 1), (3, 8, 8), (5, 7, 5), (6, 49, 32), (4, 64, 32), (2, 144, 32), (33, 50, 17), (700, 49, 32)]


def values(size, product, pad=8):
    return dict(zip(("B", "n", "D"), size, strict=True)) | {"product": product, "pad": pad}


def case_of(variant, size, product, pad=8, dtype="float16"):
    shape = tuple(zip(("B", "n", "D"), size, strict=True))
    return Case("batched_gemm", variant, dtype, shape, (("product", product), ("pad", pad)))


@pytest.fixture
def with_cublaslt():
    if reason := cublaslt.missing():
        pytest.skip(reason)


def check(trial, variant, size, product, pad, dtype):
    import torch

    from harness import check

    chosen = OP.variants[variant]
    if chosen.unsupported(case_of(variant, size, product, pad, dtype)):
        return
    this = trial("batched_gemm", variant, dtype, "cuda", **values(size, product, pad))
    t = check.merged(this.inputs, check.make_outputs(this.ctx, chosen))
    t = check.merged(t, type(t)(**(chosen.encode(this.ctx, t) if chosen.encode else {})))
    chosen.prepare(this.ctx)(t)
    torch.cuda.synchronize()
    assert check.complaint(this.ctx, chosen, this.inputs, t) is None, (size, pad)


@pytest.mark.gpu
@pytest.mark.usefixtures("with_cublaslt")
@pytest.mark.parametrize("variant", LT)
@pytest.mark.parametrize("product", PRODUCTS)
def test_sizes(trial, variant, product, dtype):
    for size in SIZES:
        for pad in (8, 16):
            check(trial, variant, size, product, pad, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize(
    ("rows", "narrow", "wide"), [(1, 1, 8), (3, 7, 8), (1000, 49, 56), (77, 64, 64), (9, 1568, 1792), (33, 5, 24)]
)
def test_rows_are_copied_and_their_ends_are_zeros(catalogue, placed, dtype, rows, narrow, wide, offset):
    import torch

    from harness.collection.ops.gemm.batched_gemm import _widener
    from harness.ops import Context

    case = case_of("padded_counted", (1, 8, 8), "scores", dtype=dtype)
    ctx = Context(case, getattr(torch, dtype), torch.device("cuda"), torch.Generator("cuda"), catalogue["batched_gemm"])
    given, result = placed((rows, narrow), dtype, offset), placed((rows, wide), dtype)
    given.tensor.normal_()
    _widener(ctx, rows, narrow, wide)(given.tensor, result.tensor)
    torch.cuda.synchronize()
    wanted = torch.nn.functional.pad(given.tensor, (0, wide - narrow))
    torch.testing.assert_close(result.tensor, wanted, rtol=0, atol=0)
    result.assert_untouched_around()


@pytest.mark.gpu
@pytest.mark.large
def test_more_than_2_to_31_elements_are_copied(catalogue):
    import torch

    from harness.collection.ops.gemm.batched_gemm import _widener
    from harness.ops import Context

    rows, narrow, wide = 2**25 + 5, 65, 72
    case = case_of("padded_counted", (1, 8, 8), "scores")
    ctx = Context(case, torch.float16, torch.device("cuda"), torch.Generator("cuda"), catalogue["batched_gemm"])
    given = torch.randn(rows, narrow, device="cuda", dtype=torch.float16)
    result = torch.full((rows, wide), float("nan"), device="cuda", dtype=torch.float16)
    _widener(ctx, rows, narrow, wide)(given, result)
    for first in range(0, rows, 2**22):
        part = slice(first, first + 2**22)
        assert torch.equal(result[part, :narrow], given[part])
        assert not bool(result[part, narrow:].any())


def test_the_two_words_around_a_pack_stay_inside_the_tensor():
    """The kernel's choice for every pack of a small tensor at every address, with bytes counted from its begin."""
    size, pack = 2, 8
    for rows, narrow in [(1, 9), (2, 49), (5, 13), (3, 8), (7, 50)]:
        for base in range(0, 16, size):
            for row in range(rows):
                for column in range(0, narrow - pack + 1, pack):
                    element = row * narrow + column
                    misaligned = (base + element * size) % 16
                    begin = element - misaligned // size
                    shifted = begin >= 0 and begin + 2 * pack <= rows * narrow
                    if shifted:
                        assert (base + begin * size) % 16 == 0
                        assert begin <= element <= element + pack <= begin + 2 * pack


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("n", [rare(8), 13])
def test_baselines_agree_with_the_reference_on_the_cpu(trial, dtype, product, n):
    for variant in ("eager", "compile"):
        this = trial("batched_gemm", variant, dtype, **values((6, n, 16), product))
        assert this.complaint_after_call() is None


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("variant", ["padded", "tuned"])
def test_a_padded_product_is_the_product(trial, variant, product, dtype):
    import torch

    this = trial("batched_gemm", variant, dtype, **values((5, 13, 6), product, 16))
    given = OP.variants[variant].encode(this.ctx, this.inputs)
    assert given["right"].shape == (5, 16, 6)
    assert given["left"].shape == ((5, 13, 6) if product == "scores" else (5, 13, 16))
    right = given["right"].mT if product == "scores" else given["right"]
    wide = torch.bmm(given["left"], right)
    if product == "scores":
        wide[..., 13:] = float("nan")  # isn't looked at
    assert this.complaint(wide=wide) is None
    wide[2, 3, 4] += 1
    assert "1 of" in this.complaint(wide=wide)


@one_test(("n", "pad", "tokens"), [(49, 8, 56), (49, 16, 64), (64, 8, 64), (1, 8, 8), (144, 16, 144)])
def test_tokens_are_padded_to_the_next_multiple(n, pad, tokens):
    assert padded({"n": n, "pad": pad}) == tokens


@pytest.mark.parametrize("product", PRODUCTS)
def test_padding_is_traffic_and_no_work(product):
    sizes = values((32768, 49, 32), product, 16)
    work = OP.work_of(sizes, "float16")
    small, square = 32768 * 49 * 32, 32768 * 49 * 49
    assert work == OP.work_of(sizes | {"pad": 8}, "float16")
    assert work.moved == 2 * (2 * small + square)
    assert work.flops == (("float16", 2 * 32768 * 49 * 49 * 32),)
    moved = {name: OP.traffic_of(variant, sizes, "float16").moved for name, variant in OP.variants.items()}
    assert moved["odd"] == moved["eager"] == work.moved
    wide, tall = 32768 * 49 * 64, 32768 * 64 * 32
    assert moved["padded"] == moved["tuned"] == 2 * (small + tall + wide)
    copied = small + tall if product == "scores" else small + tall + square + wide
    assert moved["padded_counted"] == moved["padded"] + 2 * copied


@pytest.mark.parametrize(
    ("variant", "product", "extents"),
    [
        # cuBLASLt's operands and result: rows, columns. The first is k or v, the second q or p.
        ("odd", "scores", [(6, 13), (6, 13), (13, 13)]),
        ("odd", "context", [(6, 13), (13, 13), (6, 13)]),
        ("padded", "scores", [(6, 16), (6, 13), (16, 13)]),
        ("tuned", "context", [(6, 16), (16, 13), (6, 13)]),
    ],
)
def test_what_cublaslt_is_asked_for(lt, launch_on_cpu, variant, product, extents):
    launch_on_cpu(OP, variant, "float16", values((5, 13, 6), product))
    descriptor, *layouts = lt.described(lt.multiplied[-1])
    assert [(layout["rows"], layout["columns"]) for layout in layouts] == extents
    assert all(layout["leading"] == layout["rows"] and layout["BATCH_COUNT"] == 5 for layout in layouts)
    assert [layout["STRIDED_BATCH_OFFSET"] for layout in layouts] == [rows * columns for rows, columns in extents]
    assert descriptor["TRANSA"] == (product == "scores")


@pytest.mark.parametrize("narrow", [49, 64])
def test_packs_are_loaded_as_words(ptx, dtype, narrow):
    macros = {"SCALAR": CUDA_TYPE[dtype], "SHIFTED": int(narrow == 49)}
    text = ptx("batched_gemm.cu", "widen_rows", macros)
    assert text.count("ld.global.nc.v4") == (2 if narrow == 49 else 1)
    assert text.count("st.global.v4") == 1
