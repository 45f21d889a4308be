"""Chains of FMAs: exactly the steps asked for, on every element and nothing else; and what can be resident."""

from __future__ import annotations

import re

import pytest

from harness import cuda
from harness.collection.ops.access.warps_in_flight import FACTOR, OP, limits
from harness.model import Case
from harness.scenario import find, load
from tests.one_test import one_test

COMPILED = [{"N": 1000, "K": 64, "T": 2048, "U": chains} for chains in (1, 2, 4, 8)]
SIZES = [0, 1, 31, 1023, 4099, 100_003, 2**21 + 1]
STEPS = [1, 7, 63, 64, 65, 200]  # fewer than the loop's body has, the same number, and more


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["chains", "full"])
@pytest.mark.parametrize("chains", [1, 2, 4, 8])
def test_sizes_and_steps(launch, placed, variant, chains):
    import torch

    for count in STEPS:
        for threads, n in ((32, 100_003), (320, 4099), (1024, 0), *((2048, size) for size in SIZES)):
            x = torch.randn(n, device="cuda")
            y = placed(n, "float32")
            launch("warps_in_flight", variant, "float32", {"N": n, "K": count, "T": threads, "U": chains},
                   x=x, y=y)  # fmt: skip
            # No rounding hides a step: each changes an element by 2^-13.
            torch.testing.assert_close(
                y.tensor.double(), x.double() * (1 + FACTOR) ** count, rtol=count * 2.0**-24, atol=0.0
            )


@pytest.mark.gpu
@pytest.mark.parametrize("chains", [1, 2, 4, 8])
def test_the_registers_let_all_threads_be_resident(trial, chains):
    ctx = trial("warps_in_flight", "chains", "float32", "cuda", N=4096, K=64, T=2048, U=chains).ctx
    OP.variants["chains"].prepare(ctx)
    assert ctx.kernels[0].registers * 2048 <= 2**16


@pytest.mark.parametrize("steps", [9, 8192])
def test_eager_gives_the_reference_and_a_step_too_few_is_noticed(trial, steps):
    eager = trial("warps_in_flight", "eager", "float32", N=100, K=steps, T=32, U=1)
    assert eager.complaint_after_call() is None
    assert "100 of 100 elements are wrong" in eager.complaint_after_call(lambda t: t.y.div_(1 + FACTOR))


@one_test("chains", [1, 2, 4, 8])
def test_the_loop_is_arithmetic_and_little_else(ptx, chains):
    """64 FMAs in its body: without unrolling, its counter would take as long as a chain."""
    text = ptx("warps_in_flight.cu", "fma_chains", {"CHAINS": chains})
    between = re.split(r"\n\$L\w+:", text)
    longest = max(between, key=lambda block: block.count("fma.rn.f32"))
    instructions = [line for line in longest.splitlines() if line.strip().endswith(";")]
    assert longest.count("fma.rn.f32") == 64
    assert len(instructions) <= 64 + 4


def test_a_step_reads_one_register(ptx):
    """The factor is a parameter, which isn't loaded into a register for each thread."""
    text = ptx("warps_in_flight.cu", "fma_chains", {"CHAINS": 1})
    (parameter,) = re.findall(r"ld\.param\.[a-z]*32 \t?(%[fr]\d+), \[fma_chains_param_2\]", text)
    steps = re.findall(r"fma\.rn\.f32 \t?(%\w+), (%\w+), (%\w+), (%\w+);", text)
    assert steps
    assert all(value == again and factor == parameter for _, value, factor, again in steps)


@pytest.mark.parametrize(
    ("n", "threads", "chains", "said"),
    [
        (2**22, 2048, 8, None),
        (2**22, 32, 1, None),
        (2**22, 2048, 3, "U is 3; a thread has 1, 2, 4 or 8 chains"),
        (2**22, 48, 1, "T is 48, not whole warps in 1 equal blocks"),
        (2**22, 4096, 1, "T is 4096; a multiprocessor holds up to 2048"),
        (2**31, 2048, 1, "the kernel's index has 32 bits"),
    ],
)
def test_what_can_not_be_resident_is_said(monkeypatch, n, threads, chains, said):
    monkeypatch.setattr(cuda, "resident_threads", lambda: 132 * 2048)
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)
    sizes = (("N", n), ("K", 64), ("T", threads), ("U", chains))
    assert limits(Case("warps_in_flight", "chains", "float32", sizes)) == said
    of_full = OP.variants["full"].unsupported(Case("warps_in_flight", "full", "float32", sizes))
    assert of_full == (said if n == 2**31 else None)


def test_the_scenario_has_whole_rounds(catalogue):
    """But for T = 320, of which a last round in 20 or more is a part. Of a round, the load that begins it is little."""
    (scenario,) = load(find(["warps_in_flight"]), catalogue)
    for shape in (dict(setting.shape) for setting in scenario.settings):
        rounds = shape["N"] / (132 * shape["T"] * shape["U"])
        assert rounds == int(rounds) or (shape["T"] == 320 and rounds > 19), shape
        assert shape["K"] >= 2**13


def test_the_work_is_fmas_alone():
    work = OP.work_of({"N": 1000, "K": 64, "T": 32, "U": 1}, "float32")
    assert (work.moved, work.operations, work.items, work.item) == (0, 0, 64_000, "FMAs")
