"""Columns of a tile in shared memory: which lanes meet in a bank, the sums, and what counters say of them."""

from __future__ import annotations

import math
import re

import pytest

from harness import metrics
from harness.collection.ops.access.bank_conflicts import OP, PADDED, PLAIN, SWIZZLED, limits, threads_of
from harness.model import Attachment, Case, KernelProfile
from harness.report.tool_figures import every
from harness.scenario import find, load
from tests.one_test import one_test

COMPILED = [{"M": 1000, "W": words, "K": 64} for words in (1, 6, 32, 33, 256)]
LAYOUTS = {"plain": PLAIN, "padded": PADDED, "swizzled": SWIZZLED}
ROWS = [0, 1, 31, 33, 255, 257, 1023, 100_003]


def sums(x, reads):
    """The sum of each row's first `reads` words, read again and again."""
    import torch

    columns = torch.arange(reads, device=x.device) % x.shape[1]
    return x.double()[:, columns].sum(1)


def unsupported(variant, words, reads=64):
    case = Case("bank_conflicts", variant, "float32", (("M", 100), ("W", words), ("K", reads)))
    return OP.variants[variant].unsupported(case)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", LAYOUTS)
@pytest.mark.parametrize("words", [1, 2, 3, 6, 8, 31, 32, 33, 48, 64, 96, 256, 383])
def test_sums(launch, placed, trial, variant, words):
    import torch

    if unsupported(variant, words):
        return
    for rows in ROWS if words < 100 else (1, 33, 1023):
        for reads, offset in ((1, 0), (words, 1), (97, 3), (512, 2)):
            sizes = {"M": rows, "W": words, "K": reads}
            x, y = placed((rows, words), "float32", offset), placed(rows, "float32", offset)
            x.tensor.copy_(trial("bank_conflicts", variant, "float32", "cuda", **sizes).inputs.x)
            launch("bank_conflicts", variant, "float32", sizes, x=x, y=y)
            assert torch.equal(y.tensor.double(), sums(x.tensor, reads)), (rows, reads)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", LAYOUTS)
def test_more_than_2_to_31_elements(launch, placed, variant):
    import torch

    rows = 2**26 + 5
    x, y = placed((rows, 32), "float32"), placed(rows, "float32")
    x.tensor.copy_(torch.arange(32, device="cuda", dtype=torch.float32))
    x.tensor[:, 0] = torch.arange(rows, device="cuda") % 1000
    launch("bank_conflicts", variant, "float32", {"M": rows, "W": 32, "K": 33}, x=x, y=y)
    assert torch.equal(y.tensor, 2 * x.tensor[:, 0] + sum(range(32)))


@one_test("reads", [1, 5, 6, 20])
def test_eager_gives_the_reference_and_a_read_too_few_is_noticed(trial, reads):
    import torch

    eager = trial("bank_conflicts", "eager", "float32", M=100, W=6, K=reads)
    after = eager.call()
    assert torch.equal(after.y.double(), sums(after.x, reads))
    assert eager.complaint(y=after.y) is None
    assert "elements are wrong" in eager.complaint(y=after.y - after.x[:, (reads - 1) % 6])


@one_test("layout", LAYOUTS.values())
@one_test("words", [1, 2, 4, 8, 16, 32])
def test_the_compiler_finds_as_many_lanes_in_a_bank_as_the_kernel_says(ptx, layout, words):
    """bank_conflicts.cu counts the lanes of its own places, and doesn't compile where they are others."""
    assert ptx("bank_conflicts.cu", "bank_conflicts", {"WORDS": words, "LAYOUT": layout, "THREADS": 256})


@pytest.mark.parametrize("layout", LAYOUTS.values())
def test_the_loop_reads_words_and_adds_them_and_does_little_else(ptx, layout):
    """Reads by the word, as many as in the other layouts: none is kept from the round before, nor are two made one."""
    text = ptx("bank_conflicts.cu", "bank_conflicts", {"WORDS": 32, "LAYOUT": layout, "THREADS": 256})
    longest = max(re.split(r"\n\$L\w+:", text), key=lambda block: block.count("ld.volatile.shared"))
    instructions = [line for line in longest.splitlines() if line.strip().endswith(";")]
    assert longest.count("ld.volatile.shared.f32") == longest.count("add.f32") == 32
    # Some XORs stand in the loop; ptxas takes them out.
    assert len(instructions) <= 64 + 8 or layout == SWIZZLED


def test_a_swizzle_that_would_leave_its_row_does_not_compile(ptx):
    with pytest.raises(AssertionError, match=r"an XOR must not lead out of a row(.|\n)*lanes meet in banks"):
        ptx("bank_conflicts.cu", "bank_conflicts", {"WORDS": 6, "LAYOUT": SWIZZLED, "THREADS": 256})


def test_what_can_not_run_says_why():
    assert [unsupported(variant, 32) for variant in LAYOUTS] == [None] * 3
    assert unsupported("swizzled", 6) == "W is 6; an XOR stays in rows of a power of two"
    assert unsupported("padded", 383) is None
    said = "W is 384; 32 such rows don't fit into the 48 KiB of shared memory of a block"
    assert unsupported("plain", 384) == unsupported("padded", 384) == said
    assert unsupported("plain", 32, 2**21) is None
    assert "sums of more than 2097152 reads aren't exact" in unsupported("plain", 32, 2**21 + 1)


def test_blocks_have_the_threads_that_fit():
    assert [threads_of(words) for words in (1, 47, 48, 95, 191, 383, 384)] == [256, 256, 224, 128, 64, 32, 0]
    assert all(threads_of(words) * (words | 1) * 4 <= 48 * 1024 for words in range(1, 400))


def transactions(*kernels):
    found = Attachment("a case", "ncu", kernels=tuple(KernelProfile("k", n, tuple(v.items())) for n, v in kernels))
    return metrics.told(every([found]), 1.0).get("bank_transactions")


def test_counters_give_the_transactions_of_an_access():
    assert transactions((1, {"shared_wavefronts": 800.0, "shared_conflicts": 700.0})) == 8
    free, others = ({"shared_wavefronts": w, "shared_conflicts": c} for w, c in ((100.0, 0.0), (300.0, 200.0)))
    assert transactions((1, free), (2, others)) == pytest.approx(700 / 300)
    assert transactions((1, {"shared_wavefronts": 0.0, "shared_conflicts": 0.0})) is None
    assert transactions((1, free), (1, {"time": 1.0})) is None
    assert transactions() is None


def test_the_scenario_claims_what_the_divisor_says(catalogue):
    (scenario,) = load(find(["bank_conflicts"]), catalogue)
    words = {dict(setting.shape)["W"] for setting in scenario.settings}
    assert words == {1, 2, 4, 8, 16, 32}
    claimed = {
        (claim.variant, int(re.search(r"W(\d+)", claim.where)[1])): claim.value
        for claim in scenario.claims
        if "W" in claim.where
    }
    assert all(value == math.gcd(lanes, 32) for (_, lanes), value in claimed.items())
    assert {lanes for variant, lanes in claimed if variant == "plain"} == words
    assert {lanes for variant, lanes in claimed if variant == "padded"} == words - {1}


def test_the_work_is_reads_alone():
    work = OP.work_of({"M": 1000, "W": 32, "K": 64}, "float32")
    assert (work.moved, work.operations, work.items, work.item) == (0, 0, 64_000, "reads of shared memory")
    assert limits(Case("bank_conflicts", "plain", "float32", (("M", 1), ("W", 1), ("K", 1)))) is None
