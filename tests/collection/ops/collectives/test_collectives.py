"""Collectives: what each rank should get, and the bytes of nccl-tests. test_many_ranks.py runs them with gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.metrics import METRICS, Subject
from harness.model import Case, Job, Measurement, Timing
from harness.ops import Catalogue
from harness.processes.supervisor import Workers
from harness.ranks import Group
from tests.one_test import one_test

TIMING = Timing(precision=0.5, max_time=0.02, timeout=60.0)
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "send_recv": lambda _: 1.0,
}
"""What nccl-tests multiplies the algorithm bandwidth by, to get the bus bandwidth."""

Measure = Callable[..., Measurement]


def case(op: str, n: int = 4096, dtype: str = "float32", world: int = 2, device: str = "cpu") -> Case:
    return Case(op, "gloo" if device == "cpu" else "nccl", dtype, (("N", n),), world=world, device=device)


def test_what_has_one_rank_is_unsupported(catalogue: Catalogue) -> None:
    reasons = [variant.unsupported for op in FACTORS for variant in catalogue[op].variants.values()]
    assert {"world: 2" in str(why and why(case("all_reduce", world=1))) for why in reasons} == {True}


@one_test("world", [2, 3, 4, 8])
@one_test("op", FACTORS)
def test_bytes_sent_are_the_size_times_the_factor_of_nccl_tests(catalogue: Catalogue, op: str, world: int) -> None:
    symbols = case(op, n=24 * 2**20, world=world).values
    assert catalogue[op].work_of(symbols, "float32").sent == pytest.approx(FACTORS[op](world) * 96 * 2**20)


@one_test("op", FACTORS)
@one_test("rank", [0, 2])
def test_every_rank_wants_what_the_inputs_of_all_ranks_give(catalogue: Catalogue, op: str, rank: int) -> None:
    """Compared with plain Python over lists: parts of the inputs, in the order of ranks."""
    import torch

    from harness.ops import Context

    world, n = 3, 12

    def context(number: int) -> Context:
        generator = torch.Generator().manual_seed(100 + number)
        group = Group(number, world, lambda value, _: [value])
        made = case(op, n=n, world=world)
        return Context(made, torch.float32, torch.device("cpu"), generator, catalogue[op], group)

    make, check = catalogue[op].make, catalogue[op].check
    assert make
    assert check
    inputs = [make(context(number))["x"].tolist() for number in range(world)]
    size = n // world
    sums = [sum(column) for column in zip(*inputs, strict=True)]
    wanted = {
        "all_reduce": sums,
        "all_gather": [number for one in inputs for number in one],
        "reduce_scatter": sums[rank * size : (rank + 1) * size],
        "broadcast": inputs[0],
        "all_to_all": [number for one in inputs for number in one[rank * size : (rank + 1) * size]],
        "send_recv": inputs[rank - 1],
    }[op]
    name = "x" if op in ("all_reduce", "broadcast") else "y"
    ctx = context(rank)
    before = SimpleNamespace(x=torch.tensor(inputs[rank]))
    (expected,) = check(ctx, SimpleNamespace(**{name: torch.zeros(len(wanted))}, before=before))
    assert not isinstance(expected, str)
    assert expected.want.tolist() == wanted
    assert expected.allowed is None
    if name == "x":
        # A further call goes on from what the first one left, on all ranks alike.
        left = SimpleNamespace(x=expected.want)
        (after,) = check(ctx, SimpleNamespace(x=torch.zeros(len(wanted)), before=left))
        times = world if op == "all_reduce" else 1
        assert after.want.tolist() == [times * number for number in wanted]


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("op", FACTORS)
def test_gpus_get_the_right_result(gpus: Measure, op: str) -> None:
    for n in (8, 2**10, 2**22):
        for dtype in ("float32", "float16", "bfloat16"):
            found = gpus(op, n, dtype, device="cuda")
            assert (found.status, found.timer) == ("ok", "graph"), (found.error, found.warnings)


@pytest.fixture(scope="module")
def gpus() -> Iterator[Measure]:
    from harness import devices

    if devices.kinds()["cuda"].missing() or (devices.kinds()["cuda"].count or 0) < 2:
        pytest.skip("needs 2 GPUs")
    with Workers("cuda") as workers:
        yield lambda *asked, **more: workers.measure(Job(case(*asked, **more), replace(TIMING, timeout=120.0)))


@pytest.mark.gpu
@pytest.mark.alone
def test_a_large_sum_comes_near_to_the_link(gpus: Measure) -> None:
    found = gpus("all_reduce", 2**28, device="cuda")
    assert found.status == "ok", found.error
    assert METRICS["bus_bandwidth"].value(Subject.of(found, None)) > 50e9
