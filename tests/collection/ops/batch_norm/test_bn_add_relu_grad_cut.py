"""How the sums of bn_add_relu_grad cut tensors: every element is covered once, and every row has slots."""

from __future__ import annotations

import pytest

from harness import cuda
from harness.collection.ops.batch_norm._batch_norm import ImageSizes
from harness.collection.ops.batch_norm._bn_add_relu_grad_cut import GradCut
from tests.rare import rare


def cuts(pack, rounds):
    for outer in (1, 2, 7, 96, 1000):
        for channels in (1, 2, 3, 64, 129, 2041):
            for inner in (1, 2, 3, 5, 7, 8, 49, 196, 1024, 2048, 2049, 5000):
                yield GradCut.of(ImageSizes(outer, channels, inner), pack, rounds)


@pytest.mark.parametrize(("pack", "rounds"), [(4, 0), *(rare(8, rounds) for rounds in (0, 2)), (8, 64)])
def test_cuts(monkeypatch, pack, rounds):
    """Periods cover the tensor, tiles the period, and blocks all rounds; slots are as many as rows have tiles."""
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 1)
    several = 0
    for cut in cuts(pack, rounds):
        assert rounds in (0, cut.rounds)
        sizes, inner = cut.sizes, cut.sizes.inner
        assert (cut.all_rounds - 1) * cut.period < sizes.elements <= cut.all_rounds * cut.period
        assert (cut.segments - 1) * cut.rounds * cut.along < cut.all_rounds <= cut.segments * cut.rounds * cut.along
        assert cut.period % pack == cut.period % (sizes.channels * inner) == 0
        assert (cut.places - 1) * cut.tile < cut.period <= cut.places * cut.tile
        assert cut.across * cut.along <= 256
        assert cut.lanes in {1, 2, 4, 8, 16, 32}
        several += cut.rounds > 1
        rows = range(min(cut.period // inner, 5000))
        in_tiles = {(row * inner + inner - 1) // cut.tile - row * inner // cut.tile + 1 for row in rows}
        assert in_tiles <= ({1} if cut.short else {cut.slots, cut.slots - 1})
        slots = cut.count * sizes.channels // cut.segments
        assert slots == (sizes.channels if cut.short and cut.places == 1 else cut.period // inner * cut.slots)
    assert several


def test_what_has_no_cut(monkeypatch):
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)
    assert GradCut.of(ImageSizes(1, 2, 2**30), 8) is None
    assert GradCut.of(ImageSizes(4, 2, 2**30 - 1), 8) is None
    assert GradCut.of(ImageSizes(2**33 + 1, 1, 1), 8).places == 1
