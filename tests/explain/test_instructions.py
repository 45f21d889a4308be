"""When instructions bound a kernel: by schedulers, by a pipe, by warps that are ready, and by what the op does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.explain import Known, Sibling, all_rules
from harness.explain.rules import instructions
from harness.model import ComputePoint, Work
from tests.one_test import one_test

D = 2**29
BEST = 2 * D / 4e12
IDLE = {"dram_active": 0.5, "stall_long_scoreboard": 0.0}
WAITS = IDLE | {"stall_long_scoreboard": 0.9}


@one_test(
    ("values", "busy"),
    [
        # Warps that don't wait for memory, in more than 60% of the cycles; or in any case from 75% on.
        (IDLE | {"issue_active": 0.61}, True),
        (IDLE | {"issue_active": 0.59}, False),
        (WAITS | {"issue_active": 0.61}, False),
        (WAITS | {"issue_active": 0.76}, True),
        # Warps that are ready half of their time, where schedulers issue in more than 55% of the cycles.
        (WAITS | {"issue_active": 0.56, "stall_selected": 0.3, "stall_not_selected": 0.21}, True),
        (WAITS | {"issue_active": 0.56, "stall_math_pipe_throttle": 0.3, "stall_dispatch_stall": 0.21}, True),
        (WAITS | {"issue_active": 0.54, "stall_selected": 0.3, "stall_not_selected": 0.21}, False),
        (WAITS | {"issue_active": 0.56, "stall_selected": 0.3, "stall_not_selected": 0.19}, False),
        (WAITS | {"issue_active": 0.56, "stall_wait": 0.9}, False),
        # A pipe that is full, and fuller than the schedulers are.
        (WAITS | {"issue_active": 0.1, "pipe_alu": 0.71}, True),
        (WAITS | {"issue_active": 0.1, "pipe_alu": 0.69}, False),
        (WAITS | {"issue_active": 0.74, "pipe_alu": 0.73}, False),
    ],
)
def test_what_instructions_bound(copying: Callable[..., Known], values: dict[str, float], busy: bool) -> None:
    known = copying(**values)
    assert instructions.is_busy(known, known.kernels[0]) == busy
    if busy:
        memory = copying(time=BEST / 0.9, **values)
        assert not instructions.is_busy(memory, memory.kernels[0]), "memory is what bounds it"


def test_schedulers_or_a_pipe_are_told_with_a_remedy_that_suits(copying: Callable[..., Known]) -> None:
    [schedulers] = instructions.judge(copying(**IDLE, issue_active=0.8))
    assert schedulers.verdict == "Instructions: schedulers issue in 80% of the cycles, while memory is 50% busy."
    assert schedulers.remedy.startswith("do fewer instructions")
    assert schedulers.saves == pytest.approx(BEST)
    for pipe, remedy in (("lsu", "wider accesses"), ("xu", "cheaper functions"), ("alu", "less for indexes")):
        [full] = instructions.judge(copying(**IDLE, issue_active=0.4, **{f"pipe_{pipe}": 0.9}))
        assert full.verdict == f"Instructions: the pipe '{pipe}' is 90% full, while memory is 50% busy."
        assert remedy in full.remedy
        assert f"fullest pipe: {pipe}, which got 90% of the instructions that it can take" in full.sums


@one_test(
    ("pipe", "by_compute", "is_op"),
    [("tensor_op_gmma", False, True), ("fma", True, True), ("fma", False, False), ("alu", True, False)],
)
def test_a_pipe_that_does_the_op_is_no_overhead(
    copying: Callable[..., Known], pipe: str, by_compute: bool, is_op: bool
) -> None:
    flops = round(2 * BEST * 8e14) if by_compute else 1
    known = copying(work=Work(D, D, (("float16", flops),)), **IDLE, issue_active=0.4, **{f"pipe_{pipe}": 0.9})
    limits = known.subject.limits
    assert limits
    limits = replace(limits, compute=(ComputePoint("float16", 8, 8, 8, 8e14, "library"),))
    subject = replace(known.subject, limits=limits, bound=limits.bound(known.work))
    # A ceiling below the time, so that something is left to gain.
    [reason] = instructions.judge(replace(known, subject=subject, time=4 * BEST))
    assert reason.verdict.startswith("Operations" if is_op else "Instructions")
    if is_op:
        assert reason.saves == pytest.approx(0.1 * 2 * BEST)


def test_instructions_a_word_are_told_of_a_kernel_that_is_alone(copying: Callable[..., Known]) -> None:
    known = copying(**IDLE, issue_active=0.8)
    [kernel] = known.kernels
    two = replace(known, kernels=(replace(kernel, share=0.5), replace(kernel, share=0.5)))
    lines = [[line for line in each.sums if line.endswith(" a word")] for each in instructions.judge(known)]
    assert [len(each) for each in lines] == [1]
    assert not any(line.endswith(" a word") for each in instructions.judge(two) for line in each.sums)


def test_a_variant_with_at_most_half_of_the_kernels_is_named(unfused: Callable[..., Known]) -> None:
    """Five are a call here."""
    for launches, named in ((2.0, True), (2.5, True), (2.6, False)):
        found = list(all_rules()["launches"].judge(unfused(Sibling("eager", 2 * BEST, launches))))
        assert bool(found) == named
