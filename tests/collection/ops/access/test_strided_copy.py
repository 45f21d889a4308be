"""Strided copies: the elements arrive, and what lies between them stays."""

from __future__ import annotations

import pytest

from harness.collection.ops.access.strided_copy import OP, per_thread
from harness.model import Traffic, Work
from tests.one_test import one_test

# Strides for 8, 4, 2 and 1 elements a thread, and for packs.
COMPILED = [{"N": 1000, "R": stride, "W": 1} for stride in (1, 2, 4, 8, 16)]
OURS = ["scalar", "tuned"]
SIZES = [0, 1, 3, 7, 8, 9, 255, 256, 257, 2047, 2048, 2049, 100_003]
STRIDES = [(1, 1), (2, 1), (3, 1), (5, 1), (8, 1), (64, 1), (1, 2), (1, 3), (1, 8), (1, 64), (3, 7), (16, 16)]


def run_and_check(launch, placed, any_bits, variant, dtype, n, read, write, x_offset=0, y_offset=0):
    import torch

    x = any_bits(n * read, dtype, x_offset)
    y = placed(n * write, dtype, y_offset)
    wanted = y.tensor.view(x.dtype).clone()
    wanted[::write] = x[::read]
    kind = getattr(torch, dtype)
    launch("strided_copy", variant, dtype, {"N": n, "R": read, "W": write}, x=x.view(kind), y=y)
    assert torch.equal(y.tensor.view(x.dtype), wanted), (n, read, write)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_sizes_and_strides(launch, placed, any_bits, variant, dtype):
    for n in SIZES:
        for read, write in STRIDES:
            run_and_check(launch, placed, any_bits, variant, dtype, n, read, write)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, any_bits, variant, dtype):
    for n in (1, 7, 300, 1025):
        for read, write in ((1, 1), (2, 1), (1, 2), (3, 3)):
            for x_offset, y_offset in ((1, 0), (0, 1), (1, 1), (3, 2), (8, 4)):
                run_and_check(launch, placed, any_bits, variant, dtype, n, read, write, x_offset, y_offset)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(
    ("n", "read", "write"), [(2**31 + 17, 1, 1), (2**31 + 17, 2, 1), (2**26 + 3, 64, 1), (2**26 + 3, 1, 64)]
)
def test_more_than_2_to_31_elements(launch, variant, n, read, write):
    import torch

    x = torch.randint(-(2**15), 2**15 - 1, (n * read,), device="cuda", dtype=torch.int16)
    y = torch.zeros(n * write, device="cuda", dtype=torch.int16)
    views = {"x": x.view(torch.float16), "y": y.view(torch.float16)}
    launch("strided_copy", variant, "float16", {"N": n, "R": read, "W": write}, **views)
    for start in (0, 2**31 // max(read, write) - 500, n - 1000):
        part = slice(start, start + 1000)
        assert torch.equal(y[::write][part], x[::read][part]), start
    # The slices stand for the rest; the sum would miss what wasn't written, and tell what was written between.
    assert int(y.sum()) == int(x[::read].sum())


@one_test("variant", ["eager", "compile"])
@one_test(("read", "write"), [(1, 1), (2, 1), (3, 2)])
def test_the_baselines_write_the_elements_and_nothing_else(trial, variant, read, write):
    baseline = trial("strided_copy", variant, "float32", N=100, R=read, W=write)
    after = baseline.call()
    assert baseline.complaint(y=after.y) is None
    assert int(after.y.isnan().sum()) == 100 * (write - 1)


def test_one_wrong_element_is_counted_and_gaps_are_not(trial):
    eager = trial("strided_copy", "eager", "float32", N=10, R=2, W=3)
    y = eager.inputs.x.new_zeros(30)
    y[::3] = eager.inputs.x[::2]
    y[9], y[1] = 7, 7
    assert eager.complaint(y=y).startswith("y: 1 of 10 elements are wrong by up to ")


def test_traffic_is_in_whole_sectors_and_the_work_in_elements():
    eager = OP.variants["eager"]
    for read, in_sectors in ((1, 4), (3, 12), (8, 32), (64, 32)):
        shape = {"N": 100, "R": read, "W": 1}
        assert OP.work_of(shape, "float32") == Work(400, 400)
        assert OP.traffic_of(eager, shape, "float32") == Traffic(100 * in_sectors, 400)
    assert OP.traffic_of(eager, {"N": 100, "R": 1, "W": 4}, "float16") == Traffic(200, 800)


def test_a_thread_takes_as_many_elements_as_lie_in_a_sector():
    of_floats = {stride: per_thread(4, stride, 1) for stride in (1, 2, 3, 4, 6, 8, 64)}
    assert of_floats == {1: 8, 2: 4, 3: 2, 4: 2, 6: 1, 8: 1, 64: 1}
    assert [per_thread(2, 1, stride) for stride in (1, 2, 3, 4, 8, 16, 32)] == [8, 8, 4, 4, 2, 1, 1]
