"""A product and the sum of ranks beside it: what is wrong with either is found, and a device does the work of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.collection.ops.collectives import gemm_all_reduce
from harness.model import Case, Job, Timing
from harness.ops import Catalogue, Context, Expected
from harness.processes.supervisor import Workers
from harness.ranks import Group

SIZES = (("M", 8), ("N", 24))
WAYS = ("in_turn", "beside")


def case(way: str = "beside", dtype: str = "float32", world: int = 2, device: str = "cpu") -> Case:
    return Case("gemm_all_reduce", way, dtype, SIZES, world=world, device=device)


def context(rank: int = 0) -> Context:
    import torch

    generator = torch.Generator().manual_seed(7 + rank)
    group = Group(rank, 2, lambda value, _: [value])
    return Context(case(), torch.float32, torch.device("cpu"), generator, gemm_all_reduce.OP, group)


def tensors() -> SimpleNamespace:
    """What the first of two ranks has after a call that did everything right."""
    mine, other = (gemm_all_reduce.make(context(rank)) for rank in range(2))
    before = SimpleNamespace(**mine)
    return SimpleNamespace(x=mine["x"] + other["x"], y=before.a @ before.b.mT, before=before)


def problems(t: SimpleNamespace) -> set[str]:
    """The tensors of which a number isn't what it must be."""
    wrong: set[str] = set()
    for expected in gemm_all_reduce.check(context(), t):
        assert isinstance(expected, Expected)
        off = (expected.got.double() - expected.want.double()).abs()
        if (off > (0 if expected.allowed is None else expected.allowed)).any():
            wrong.add(expected.name)
    return wrong


def test_what_is_right_passes_and_what_is_left_out_is_found() -> None:
    assert problems(tensors()) == set()
    alone, never = tensors(), tensors()
    alone.x = alone.before.x
    never.y = never.y.new_zeros(never.y.shape)
    assert (problems(alone), problems(never)) == ({"x"}, {"y"})


def test_a_product_of_untransposed_factors_is_found() -> None:
    t = tensors()
    t.y = t.before.a @ t.before.b
    assert problems(t) == {"y"}


@pytest.mark.parametrize("world", [2, 8])
def test_a_device_multiplies_its_matrices_and_sends_what_an_all_reduce_sends(catalogue: Catalogue, world: int) -> None:
    work = catalogue["gemm_all_reduce"].work_of(case(world=world).values, "float32")
    assert dict(work.flops) == {"float32": 2 * 8**3}
    assert work.sent == 2 * (world - 1) * 24 * 4 // world
    assert (work.read, work.written) == (4 * (24 + 2 * 64), 4 * (24 + 64))


@pytest.mark.parametrize("way", WAYS)
def test_what_has_one_rank_is_unsupported(catalogue: Catalogue, way: str) -> None:
    unsupported = catalogue["gemm_all_reduce"].variants[way].unsupported
    assert unsupported
    assert "world: 2" in str(unsupported(case(way, world=1)))


@pytest.fixture(scope="module")
def gpus() -> Iterator[Workers]:
    from harness import devices

    if devices.kinds()["cuda"].missing() or (devices.kinds()["cuda"].count or 0) < 2:
        pytest.skip("needs 2 GPUs")
    with Workers("cuda") as workers:
        yield workers


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("way", WAYS)
def test_gpus_get_the_right_results_in_a_graph(gpus: Workers, way: str) -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        for sizes in (SIZES, (("M", 1000), ("N", 2**20 + 1))):
            asked = replace(case(way, dtype, device="cuda"), shape=sizes)
            found = gpus.measure(Job(asked, Timing(precision=0.5, max_time=0.02, timeout=120.0)))
            assert (found.status, found.timer) == ("ok", "graph"), (found.error, found.warnings)
