"""PReLU kernels on a GPU, against a float64 reference, at the sizes and addresses that break kernels."""

from __future__ import annotations

import math
import re

import pytest

from harness.collection.ops.activation.prelu import OP
from harness.collection.ops.elementwise import split
from harness.model import Case
from tests.one_test import one_test

# Each way that packs meet channels, at sizes for one pack a thread and for two, in halves and in floats.
COMPILED = [
    dict(zip("NCHW", shape, strict=True))
    for shape in [
        *[(n, 64, 8, 8) for n in (2, 400, 800)],
        *[(n, 3, 7, 7) for n in (2, 12_000, 24_000)],
        *[(n, 3, 1, 3) for n in (2, 200_000, 400_000)],
        *[(n, 1, 7, 7) for n in (2, 40_000, 80_000)],
        (2**17, 64, 16, 16),
        (2**29, 3, 1, 3),
    ]
]
DTYPES = ["float32", "float16", "bfloat16"]
ANY_SIZE = ["naive64", "packed64", "tuned"]
OURS = ["naive", "packed", *ANY_SIZE]
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
    (2, 3, 331, 337),  # many blocks, odd everything
    (0, 4, 3, 3),  # empty
    # Two packs a thread on a GPU of 132 multiprocessors, in floats and then in halves.
    (64, 512, 7, 9),
    (128, 512, 7, 9),
    (64, 512, 8, 8),
    (128, 512, 8, 8),
    (256, 2731, 1, 3),
    (512, 2731, 1, 3),
]


def expected(x, alpha):
    x, alpha = x.double(), alpha.double().view(1, -1, 1, 1)
    return x.where(x > 0, alpha * x)


def tensors(shape, dtype, x_offset=0, y_offset=0):
    """x, alpha, y and y's whole buffer, poisoned; x and y begin that many elements past an aligned address."""
    import torch

    kind = getattr(torch, dtype)
    n, room = math.prod(shape), 32
    generator = torch.Generator("cuda").manual_seed(n + x_offset)
    x = torch.randn(n + room, generator=generator, device="cuda", dtype=kind)[x_offset : x_offset + n].view(shape)
    alpha = torch.randn(shape[1], generator=generator, device="cuda", dtype=kind)
    buffer = torch.full((n + room,), math.nan, device="cuda", dtype=kind)
    return x, alpha, buffer[y_offset : y_offset + n].view(shape), buffer


def check(launch, variant, dtype, shape, x_offset=0, y_offset=0):
    import torch

    x, alpha, y, buffer = tensors(shape, dtype, x_offset, y_offset)
    launch("prelu", variant, dtype, dict(zip("NCHW", shape, strict=True)), x=x, alpha=alpha, y=y)
    wanted = expected(x, alpha)
    torch.testing.assert_close(y.double(), wanted.to(x.dtype).double(), rtol=0, atol=0)
    untouched = torch.cat([buffer[:y_offset], buffer[y_offset + y.numel() :]])
    assert bool(untouched.isnan().all()), "wrote outside of y"


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, variant, dtype, shape):
    check(launch, variant, dtype, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, variant, dtype):
    for shape in ((3, 5, 7, 7), (2, 1, 5, 7), (2, 4, 4, 8), (5, 9, 1, 3), (1, 1, 1, 9), (1, 3, 1, 1)):
        for x_offset in (0, 1, 2, 3, 5, 7):
            for y_offset in (0, 1, 3, 4, 6):
                check(launch, variant, dtype, shape, x_offset, y_offset)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_special_values(launch, variant):
    import torch

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        big, small = torch.finfo(dtype).max, torch.finfo(dtype).tiny
        values = [math.inf, -math.inf, math.nan, 0.0, -0.0, big, -big, small, -small, 1.0, -1.0]
        x = torch.tensor(values, device="cuda", dtype=dtype).repeat(8).view(1, 8, 1, 11)
        alpha = torch.tensor([0.25, -0.5, 2.0, 0.0, math.nan, math.inf, 1.0, -1.0], device="cuda", dtype=dtype)
        y = torch.full_like(x, 7)
        launch("prelu", variant, str(dtype)[6:], {"N": 1, "C": 8, "H": 1, "W": 11}, x=x, alpha=alpha, y=y)
        torch.testing.assert_close(y.double(), expected(x, alpha).to(dtype).double(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", ANY_SIZE)
@pytest.mark.parametrize("shape", [(2**31 + 17, 1, 1, 1), (43826197, 7, 7, 1)], ids=["one alpha", "rows of 7"])
def test_more_than_2_to_31_elements(launch, variant, shape):
    import torch

    x, alpha, y, _ = tensors(shape, "float16")
    assert x.numel() > 2**31
    launch("prelu", variant, "float16", dict(zip("NCHW", shape, strict=True)), x=x, alpha=alpha, y=y)
    # Slices of rows at the start, around 2**31 elements and at the end stand for the rest.
    per_row = x[0].numel()
    for row in (0, 2**31 // per_row - 500, x.shape[0] - 1000):
        part = slice(row, row + 1000)
        assert torch.equal(y[part], expected(x[part], alpha).half()), row
    assert not bool(y.isnan().any())


@one_test("variant", OURS)
def test_indexes_of_32_bits_count_fewer_than_2_to_31_elements(variant):
    def said(n):
        shape = (("N", n), ("C", 64), ("H", 16), ("W", 16))
        reason = OP.variants[variant].unsupported
        return reason and reason(Case("prelu", variant, "float16", shape))

    assert said(2**17 - 1) is None
    assert said(2**17) == (None if variant in ANY_SIZE else "counts elements in 32 bits: for fewer than 2^31 of them")


@pytest.mark.parametrize("kernel", ["naive", "packed"])
def test_only_indexes_of_64_bits_are_divided_in_64_bits(ptx, kernel):
    """In 32 bits a division and a modulo, as the text has them; they are by different numbers, so none is saved."""

    def divisions(entry):
        return sorted(re.findall(r"\b(?:div|rem)\.u(?:32|64)", ptx("prelu.cu", entry, {"SCALAR": "float"})))

    assert divisions(f"prelu_{kernel}") == ["div.u32", "rem.u32"]
    assert set(divisions(f"prelu_{kernel}64")) >= {"div.u64", "rem.u64"}


@pytest.mark.parametrize("size", [2, 4])
def test_split_reads_and_writes_within_the_tensor(size):
    """Every element is covered once, stores are aligned, and both words of a shifted load lie inside x."""
    pack = 16 // size
    for elements in range(70):
        for x_offset in range(0, 16, size):
            for y_offset in range(0, 16, size):
                head, packs, misaligned = split(elements, size, x_offset, y_offset)
                assert 0 <= head <= elements
                assert head + packs * pack <= elements
                if not packs:
                    continue
                assert (y_offset + head * size) % 16 == 0
                assert (x_offset + head * size - misaligned) % 16 == 0
                if misaligned:
                    first_word = head * size - misaligned
                    last_word_end = (head + packs * pack) * size - misaligned + 16
                    assert first_word >= 0
                    assert last_word_end <= elements * size
                else:
                    assert elements - head - packs * pack < pack
