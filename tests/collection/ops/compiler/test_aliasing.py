"""Sums and differences, exactly; and how often each kernel reads its inputs."""

from __future__ import annotations

import pytest

from harness.collection.ops.compiler.aliasing import ITEMS
from harness.collection.ops.elementwise import CUDA_TYPE
from harness.ops import Catalogue

COMPILED = [{"N": 1000}]
OURS = ["may_alias", "restrict", "load_first", "tuned"]
NAMES = ("x", "w", "sum", "difference")


def expected(x, w):
    """The results in float64, whose rounding doesn't show after they are rounded to the dtype."""
    x, w = x.double(), w.double()
    return {"sum": x + w, "difference": x - w}


def check(launch, placed, variant, dtype, n, offsets=(0, 0, 0, 0)):
    import torch

    held = {name: placed(n, dtype, offset) for name, offset in zip(NAMES, offsets, strict=True)}
    tensors = {name: place.tensor for name, place in held.items()}
    tensors["x"].copy_(torch.randn(n, device="cuda"))
    tensors["w"].copy_(torch.randn(n, device="cuda"))
    wanted = expected(tensors["x"], tensors["w"])
    launch("aliasing", variant, dtype, {"N": n}, **held)
    for name, values in wanted.items():
        assert torch.equal(tensors[name], values.to(tensors[name].dtype)), name


@pytest.mark.gpu
@pytest.mark.parametrize("n", [0, 1, 3, 7, 8, 9, 255, 1023, 1024, 1025, 2047, 4099, 100_003])
@pytest.mark.parametrize("variant", OURS)
def test_sizes(launch, placed, variant, dtype, n):
    check(launch, placed, variant, dtype, n)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for n in (1, 17, 4099):
        for offsets in ((1, 0, 0, 0), (0, 3, 0, 0), (0, 0, 5, 0), (0, 0, 0, 7), (1, 2, 3, 4), (8, 4, 8, 8)):
            check(launch, placed, variant, dtype, n, offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_special_values(launch, special, variant, dtype):
    import torch

    x, w = torch.cartesian_prod(special(dtype), special(dtype)).T.contiguous()
    made = {"sum": torch.zeros_like(x), "difference": torch.zeros_like(x)}
    launch("aliasing", variant, dtype, {"N": len(x)}, x=x, w=w, **made)
    for name, wanted in expected(x, w).items():
        torch.testing.assert_close(made[name], wanted.to(x.dtype), rtol=0, atol=0, equal_nan=True)
        numbers = ~wanted.isnan()
        assert torch.equal(made[name].signbit()[numbers], wanted.signbit()[numbers])


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
def test_more_than_2_to_31_elements(launch, placed, variant):
    import torch

    n = 2**31 + 17
    held = {name: placed(n, "float16") for name in NAMES}
    tensors = {name: place.tensor for name, place in held.items()}
    tensors["x"].normal_()
    tensors["w"].normal_()
    launch("aliasing", variant, "float16", {"N": n}, **held)
    for start in (0, 2**31 - 500, n - 1000):
        part = slice(start, start + 1000)
        for name, values in expected(tensors["x"][part], tensors["w"][part]).items():
            assert torch.equal(tensors[name][part], values.half()), (name, start)


def test_only_what_may_alias_is_read_twice(ptx, dtype):
    macros = {"SCALAR": CUDA_TYPE[dtype], "BLOCK": 256}
    reads = {name: ptx("aliasing.cu", f"aliasing_{name}", macros).count("ld.global") for name in OURS}
    at_the_end = 2  # of the loop over the last elements, in each kernel
    assert reads["may_alias"] == 4 * ITEMS + at_the_end
    assert reads["restrict"] == reads["load_first"] == 2 * ITEMS + at_the_end
    assert reads["tuned"] == 2 + at_the_end


def test_only_what_may_alias_must_be_read_between_writes(ptx, dtype):
    macros = {"SCALAR": CUDA_TYPE[dtype], "BLOCK": 256}

    def reads_in_a_row(name):
        """The most reads that no write stands between."""
        stretches = ptx("aliasing.cu", f"aliasing_{name}", macros).split("st.global")
        return max(stretch.count("ld.global") for stretch in stretches)

    assert reads_in_a_row("may_alias") == 2
    assert reads_in_a_row("load_first") == 2 * ITEMS
    # Reads of what no write can change may be moved; the assembler moves these to the front.
    text = ptx("aliasing.cu", "aliasing_restrict", macros)
    assert text.count("ld.global.nc") == text.count("ld.global")


def test_eager_moves_half_as_much_again():
    op = Catalogue()["aliasing"]
    work = op.traffic_of(op.variants["eager"], {"N": 1000}, "float16")
    assert (work.read, work.written) == (8000, 4000)
    assert op.work_of({"N": 1000}, "float16").moved == 8000
