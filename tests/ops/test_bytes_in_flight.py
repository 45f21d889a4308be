"""Copies by a resident grid: every byte, nothing else; and what can be resident."""

from __future__ import annotations

import pytest

from harness import check, cuda
from harness.model import Case
from harness.ops import Context
from harness.ops.bytes_in_flight import OP, limits

COMPILED = [{"N": 1000, "T": 2048, "V": vector, "U": loads} for vector in (4, 8, 16) for loads in (1, 2, 4, 8)]
SIZES = [0, 1, 3, 4, 7, 8, 9, 1023, 4096, 4099, 100_003, 2**22 + 1]
# A warp, warps that make no power of two, a full block, two blocks.
THREADS = [32, 320, 1024, 2048]


def run_and_check(launch, placed, variant, shape, dtype="float32", x_offset=0, y_offset=0):
    import torch

    n = shape["N"]
    x = torch.randn(n + x_offset, device="cuda", dtype=getattr(torch, dtype))[x_offset:]
    y = placed(n, dtype, y_offset)
    launch("bytes_in_flight", variant, dtype, shape, x=x, y=y.tensor)
    assert torch.equal(y.tensor, x), shape
    y.assert_untouched_around()


@pytest.mark.gpu
@pytest.mark.parametrize("vector", [4, 8, 16])
@pytest.mark.parametrize("loads", [1, 2, 4, 8])
def test_sizes(launch, placed, vector, loads):
    for threads in THREADS:
        for n in SIZES:
            run_and_check(launch, placed, "grid_stride", {"N": n, "T": threads, "V": vector, "U": loads})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("variant", ["grid_stride", "tuned"])
def test_unaligned_addresses(launch, placed, variant, dtype):
    for x_offset, y_offset in ((1, 0), (0, 1), (1, 1), (2, 2), (3, 2), (4, 8)):
        for vector in (4, 8, 16):
            shape = {"N": 4099, "T": 2048, "V": vector, "U": 2}
            run_and_check(launch, placed, variant, shape, dtype, x_offset, y_offset)


@pytest.mark.gpu
@pytest.mark.parametrize("vector", [4, 8, 16])
def test_more_than_2_to_31_elements(launch, placed, vector):
    shape = {"N": 2**31 + 4099, "T": 2048, "V": vector, "U": 4}
    run_and_check(launch, placed, "grid_stride", shape, "float16")


@pytest.mark.gpu
@pytest.mark.parametrize(("threads", "vector", "loads"), [(2048, 16, 4), (2048, 8, 8), (1024, 16, 8)])
def test_the_registers_let_all_threads_be_resident(threads, vector, loads):
    import torch

    shape = (("N", 4096), ("T", threads), ("V", vector), ("U", loads))
    case = Case("bytes_in_flight", "grid_stride", "float32", shape)
    ctx = Context(case, torch.float32, torch.device("cuda"), torch.Generator("cuda"), OP)
    OP.variants["grid_stride"].prepare(ctx)
    assert ctx.kernels[0].registers * threads <= 2**16


@pytest.mark.parametrize(
    ("threads", "vector", "loads", "said"),
    [
        (2048, 16, 4, None),
        (1024, 16, 8, None),
        (32, 4, 1, None),
        (2048, 16, 8, "the registers of a multiprocessor don't hold T * V * U bytes"),
        (32, 16, 16, "the registers of a thread don't hold V * U bytes"),
        (32, 12, 1, "V is 12; a load is of 4, 8 or 16 bytes"),
        (48, 4, 1, "T is 48, not whole warps in 1 equal blocks"),
        (1056, 4, 1, "T is 1056, not whole warps in 2 equal blocks"),
        (4096, 4, 1, "T is 4096; a multiprocessor holds up to 2048"),
    ],
)
def test_what_can_not_be_resident_is_said(monkeypatch, threads, vector, loads, said):
    monkeypatch.setattr(cuda, "resident_threads", lambda: 132 * 2048)
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)
    shape = {"N": 2**26, "T": threads, "V": vector, "U": loads}
    assert limits(Case("bytes_in_flight", "grid_stride", "float32", tuple(shape.items()))) == said


def test_an_index_of_32_bits_ends_somewhere(monkeypatch):
    monkeypatch.setattr(cuda, "resident_threads", lambda: 132 * 2048)
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)

    def said(n, vector):
        return limits(
            Case("bytes_in_flight", "grid_stride", "float16", (("N", n), ("T", 2048), ("V", vector), ("U", 1)))
        )

    assert said(2**32 - 1, 4) is None
    assert said(2**32, 4) == "the kernel's index has 32 bits"
    assert said(2**32, 8) is None


@pytest.mark.parametrize("variant", ["eager", "compile"])
def test_the_plain_copies_copy(variant):
    import torch

    case = Case("bytes_in_flight", variant, "float32", (("N", 100), ("T", 32), ("V", 4), ("U", 1)), "cpu")
    ctx = Context(case, torch.float32, torch.device("cpu"), torch.Generator().manual_seed(0), OP)
    chosen = OP.variants[variant]
    inputs = check.make_inputs(ctx)
    tensors = check.merged(inputs, check.make_outputs(ctx, chosen))
    returned = chosen.prepare(ctx)(tensors)
    assert check.complaint(ctx, chosen, inputs, check.collect(OP, chosen, tensors, returned)) is None
