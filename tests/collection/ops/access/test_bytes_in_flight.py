"""Copies by a resident grid: every byte, nothing else; and what can be resident."""

from __future__ import annotations

import pytest

from harness import cuda
from harness.collection.ops.access.bytes_in_flight import OP, limits
from harness.model import Case

COMPILED = [{"N": 1000, "T": 2048, "V": vector, "U": loads} for vector in (4, 8, 16) for loads in (1, 2, 4, 8)]
SIZES = [0, 1, 3, 4, 7, 8, 9, 1023, 4096, 4099, 100_003, 2**22 + 1]
# A warp, warps that make no power of two, a full block, two blocks.
THREADS = [32, 320, 1024, 2048]


def run_and_check(launch, placed, normal, variant, shape, dtype="float32", x_offset=0, y_offset=0):
    import torch

    n = shape["N"]
    x = normal(n, dtype, x_offset)
    y = placed(n, dtype, y_offset)
    launch("bytes_in_flight", variant, dtype, shape, x=x, y=y)
    assert torch.equal(y.tensor, x), shape


@pytest.mark.gpu
@pytest.mark.parametrize("vector", [4, 8, 16])
@pytest.mark.parametrize("loads", [1, 2, 4, 8])
def test_sizes(launch, placed, normal, vector, loads):
    for threads in THREADS:
        for n in SIZES:
            run_and_check(launch, placed, normal, "grid_stride", {"N": n, "T": threads, "V": vector, "U": loads})


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["grid_stride", "tuned"])
def test_unaligned_addresses(launch, placed, normal, variant, dtype):
    for x_offset, y_offset in ((1, 0), (0, 1), (1, 1), (2, 2), (3, 2), (4, 8)):
        for vector in (4, 8, 16):
            shape = {"N": 4099, "T": 2048, "V": vector, "U": 2}
            run_and_check(launch, placed, normal, variant, shape, dtype, x_offset, y_offset)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("vector", [4, 8, 16])
def test_more_than_2_to_31_elements(launch, placed, normal, vector):
    shape = {"N": 2**31 + 4099, "T": 2048, "V": vector, "U": 4}
    run_and_check(launch, placed, normal, "grid_stride", shape, "float16")


@pytest.mark.gpu
@pytest.mark.parametrize(("threads", "vector", "loads"), [(2048, 16, 4), (2048, 8, 8), (1024, 16, 8)])
def test_the_registers_let_all_threads_be_resident(trial, threads, vector, loads):
    ctx = trial("bytes_in_flight", "grid_stride", "float32", "cuda", N=4096, T=threads, V=vector, U=loads).ctx
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
def test_the_plain_copies_copy(trial, variant):
    assert trial("bytes_in_flight", variant, "float32", N=100, T=32, V=4, U=1).complaint_after_call() is None
