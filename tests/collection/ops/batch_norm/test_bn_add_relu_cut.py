"""How the statistics of bn_add_relu cut tensors: every element is covered once, and every row has slots."""

from __future__ import annotations

import math

import pytest

from harness import cuda
from harness.collection.ops.batch_norm._batch_norm import ImageSizes
from harness.collection.ops.batch_norm._bn_add_relu_cut import RowPieces, StatisticsCut
from harness.cuda.assumed import KNOWN, assuming
from harness.tune.candidates import legal_plans
from tests.collection.conftest import case_of
from tests.one_test import one_test
from tests.rare import rare

MULTIPROCESSORS = 132


@pytest.fixture
def h200():
    with assuming(KNOWN["sm_90"]):
        yield


@pytest.mark.parametrize("per_pack", [4, 8])
@pytest.mark.parametrize(
    ("multiprocessors", "turns"), [(1, 0), rare(MULTIPROCESSORS, 0), rare(1, 1), (1, 3), rare(1, 64)]
)
def test_cuts(monkeypatch, per_pack, multiprocessors, turns):
    """Periods repeat their channels and packs and cover the tensor; a row has a slot for each tile it lies in."""
    monkeypatch.setattr(cuda, "multiprocessors", lambda: multiprocessors)
    for outer in (1, 2, 7, 96, 1000):
        for channels in (1, 2, 3, 64, 100):
            for inner in (1, 3, 4, 5, 8, 49, 196, 1024, 2048, 2049, 5000):
                cut = StatisticsCut.of(ImageSizes(outer, channels, inner), per_pack, turns)
                covers(cut)
                assert not turns or cut.rounds_a_block == min(turns, -(-cut.rounds // cut.along)) * cut.along
                if inner >= per_pack:
                    rows_have_slots(cut)


def covers(cut):
    assert cut.rounds == 1 or cut.period % cut.per_pack == 0
    assert (cut.rounds - 1) * cut.period < cut.sizes.elements <= cut.rounds * cut.period
    assert (cut.stacked - 1) * cut.rounds_a_block < cut.rounds <= cut.stacked * cut.rounds_a_block
    assert cut.rounds_a_block % cut.along == 0
    assert cut.tiles * cut.tile >= cut.period
    assert cut.across * cut.along <= 256
    assert cut.slots == cut.stacked * cut.samples * cut.slots_a_row
    if cut.sizes.inner < cut.per_pack:
        assert cut.across <= 8
    else:
        assert (cut.across, cut.along) == (256, 1)
        assert cut.lanes in {1, 2, 4, 8, 16, 32}


def rows_have_slots(cut):
    in_tiles = set()
    for row in range(min(cut.samples * cut.sizes.channels, 3000)):
        first = row * cut.sizes.inner
        last = first + cut.sizes.inner - 1
        in_tiles.add(last // cut.tile - first // cut.tile + 1)
    assert in_tiles <= {cut.slots_a_row, cut.slots_a_row - 1}


@pytest.mark.usefixtures("h200")
@one_test("sizes", [(656, 64, 3136), (5376, 512, 49), (334, 512, 784), (2**21, 64, 1), (2**16, 2048, 1)])
def test_cuts_of_large_tensors(sizes):
    """There are enough blocks, few of them are idle, and slots are small beside the tensor."""
    for per_pack in (4, 8):
        cut = StatisticsCut.of(ImageSizes(*sizes), per_pack)
        waves = cut.tiles * cut.stacked / (4 * 132)
        assert waves <= 4
        assert waves > 0.9 * math.ceil(waves)
        assert cut.tiles * cut.tile < 1.05 * cut.period
        assert 16 * cut.slots * cut.sizes.channels < 0.012 * cut.sizes.elements * (16 // per_pack)


def test_what_has_no_cut():
    assert StatisticsCut.of(ImageSizes(2, 1, 2**31), 8) is None
    assert StatisticsCut.of(ImageSizes(3, 3, 2**29 + 1), 8) is None
    assert StatisticsCut.of(ImageSizes(2**31, 3, 1), 8).period == 24


@pytest.mark.usefixtures("h200")
@one_test("sizes", [(2, 3, 2048 * 8), (1, 1, 2**27), (1, 3, 4096**2 + 1), (1, 1, 2**36), (4, 64, 20001)])
@one_test("turns", [0, 1, 64])
def test_pieces(sizes, turns):
    sizes = ImageSizes(*sizes)
    pieces = RowPieces.of(sizes, 8, turns)
    assert not turns or pieces.length <= 2 * turns * 256 * 8
    assert (pieces.count - 1) * pieces.length < sizes.inner <= pieces.count * pieces.length
    assert pieces.length % 8 == 0
    assert pieces.length <= 2**24, "counts are floats"


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("op", ["bn_add_relu", "bn_add_relu_grad"])
def test_a_search_tries_few_turns_of_few_images_and_many_of_many(catalogue, op):
    """With many images, few turns of a thread would leave more partial sums than the second kernel adds quickly."""
    tuning = catalogue[op].variants["tuned"].tuning
    found = {}
    for images in (1, 512):
        case = case_of(catalogue[op], "tuned", "bfloat16", {"N": images, "C": 64, "H": 56, "W": 56, "layout": "nhwc"})
        assert tuning.rule(case)["turns"] == 0
        found[images] = [plan["turns"] for plan in legal_plans(tuning, case)]
    assert {0, 1} <= {*found[1]}
    assert 0 in found[512]
    assert 1 not in found[512]
    assert 64 in found[512]
