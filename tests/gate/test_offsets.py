"""Offsets: what all pairs of a run share, and which loss identical code may show by them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import scipy  # which imports scipy.stats, a second's work, where it is used

from harness.gate.offsets import ASSUMED, LEAST_BLOCKS, OFFSET_ALPHA, SHARED_BLOCKS, Block, Offset, offsets
from tests.rare import rare

PAIR = 0.0007


def blocks(draw: np.random.Generator, offset: float, count: int = 10, pair: float = PAIR) -> list[Block]:
    """Blocks of three pairs with a normal offset and normal noise."""
    changes = draw.normal(0, offset, (count, 1)) + draw.normal(0, pair, (count, 3))
    return [Block.of(row) for row in changes.tolist()]


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("offset", [0.004, 0.006])
def test_blocks_show_the_deviation_of_offsets(draw: np.random.Generator, offset: float) -> None:
    found = offsets({case: blocks(draw, offset) for case in range(200)})
    scales = [each.scale for each in found.values()]
    assert np.median(scales) == pytest.approx(offset, rel=0.08)
    assert {(each.blocks, each.freedom) for each in found.values()} <= {
        (10, 10 + SHARED_BLOCKS),
        (10, 9 + SHARED_BLOCKS),
    }


@pytest.mark.parametrize("pair", [PAIR, 0.01])
def test_noise_of_pairs_isnt_an_offset(draw: np.random.Generator, pair: float) -> None:
    """More pairs average it out, so it mustn't raise what may be lost."""
    found = offsets({case: blocks(draw, 0.0, pair=pair) for case in range(50)})
    assert np.median([each.scale for each in found.values()]) < 0.15 * pair


def test_a_process_that_was_far_off_is_no_offset(draw: np.random.Generator) -> None:
    known = blocks(draw, 0.0005, 20)
    wild = [Block.of([0.5, 0.0004, -0.0003]), *known[1:]]
    [calm], [found] = offsets({"a": known}).values(), offsets({"a": wild}).values()
    assert found.scale == pytest.approx(calm.scale, rel=0.2)
    # A block all of whose pairs are off is an offset, but one such block raises the scale no more than three would.
    shifted = [Block(0.5, 0.0004), *known[1:]]
    [found] = offsets({"a": shifted}).values()
    assert calm.scale < found.scale < 3 * calm.scale


def test_a_case_of_its_own_kind_and_the_usual_case_both_count(draw: np.random.Generator) -> None:
    quiet = {case: blocks(draw, 0.0002) for case in range(11)}
    found = offsets({**quiet, "wide": blocks(draw, 0.006)})
    assert 0.0025 < found["wide"].scale < 0.006
    # The wide case raises the usual one as if its offsets were three times as large as the median case's.
    assert all(found[case].scale < 0.0006 for case in quiet)
    assert min(each.scale for each in found.values()) > 0


def test_few_blocks_say_nothing(draw: np.random.Generator) -> None:
    assert offsets({}) == {}
    assert offsets({"a": blocks(draw, 0.01, LEAST_BLOCKS - 1)}) == {}
    assert list(offsets({"a": blocks(draw, 0.01, LEAST_BLOCKS), "b": blocks(draw, 0.01, 2)})) == ["a"]
    assert offsets({"a": [Block(0.0)] * 5})["a"].scale == 0


def test_a_block_that_is_far_off_counts_as_three_robust_standard_deviations() -> None:
    """The median absolute value of a normal variable is 0.6745 standard deviations."""
    means = [0.001, -0.001] * 4 + [0.001, 0.9]
    [found] = offsets({"a": [Block(mean) for mean in means]}).values()
    assert found.scale == pytest.approx(0.001 * math.sqrt((9 + (3 / 0.67449) ** 2) / 10), rel=1e-4)


def test_old_blocks_without_errors_count_as_offsets_entirely() -> None:
    means = [0.001, -0.002, 0.0015, 0.001, -0.001]
    [found] = offsets({"a": [Block(mean) for mean in means]}).values()
    assert found.scale == pytest.approx(math.sqrt(np.mean(np.square(means))), rel=1e-9)


@pytest.mark.parametrize("family", [1, 12, 200])
def test_what_is_allowed_grows_with_the_cases_so_that_the_run_errs_as_rarely(family: int) -> None:
    assert ASSUMED.allowed(family) == pytest.approx(0.004 * scipy.stats.norm.isf(OFFSET_ALPHA / family), rel=1e-6)
    known = Offset(0.003, 20, 10)
    assert known.allowed(family) == pytest.approx(0.003 * scipy.stats.t.isf(OFFSET_ALPHA / family, 20), rel=1e-9)
    for each in (ASSUMED, known):
        assert family * each.chance(each.allowed(family)) == pytest.approx(OFFSET_ALPHA, rel=1e-6)
    assert Offset(0.0, 20, 10).chance(0.01) == 0.0
    assert ASSUMED.allowed(0) == ASSUMED.allowed(1)
    assert ASSUMED.blocks == 0


@pytest.mark.slow  # the test above has what is allowed
@pytest.mark.parametrize("family", [12, rare(200)])
def test_offsets_of_a_calibrated_machine_make_no_more_than_one_run_in_a_hundred_fail(family: int) -> None:
    draw = np.random.default_rng(17)
    for offset in (0.004, 0.006):
        chances = list(_chances(draw, offset, family))
        assert np.mean(chances) < 0.01, offset


def _chances(draw: np.random.Generator, offset: float, family: int) -> Iterator[float]:
    """The chance that a case of the next run lies beyond what is allowed, for several calibrations."""
    for _ in range(1200 // family):
        found = offsets({case: blocks(draw, offset) for case in range(family)})
        tails = [scipy.stats.norm.sf(each.allowed(family) / offset) for each in found.values()]
        yield 1 - math.prod(1 - tail for tail in tails)
