"""Where a call of dropout on a GPU has its number from, without a GPU: its generator's state tells which one it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.collection.nn import _dropout

TOGETHER = _dropout._TOGETHER


class Generator:
    """What of torch's generator tells how far it is."""

    seed, offset = 5, 0

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        assert offset % 4 == 0
        self.offset = offset


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Generator:
    """The generator of the second GPU, and numbers that tell what they are a function of."""
    made = Generator()

    def numbers(device: int, seed: int, part: int, stream: int) -> list[Any]:
        return [(device, seed, part, place, stream) for place in range(TOGETHER)]

    monkeypatch.setattr(torch.cuda, "default_generators", (None, made))
    monkeypatch.setattr(_dropout, "_drawn_together", numbers)
    monkeypatch.setattr(_dropout, "_STREAM", lambda device: 70 + device)
    return made


def draw() -> Any:
    x: Any = SimpleNamespace(is_cuda=True, get_device=lambda: 1)
    return _dropout._draw(x)


def test_each_call_takes_the_next_number_and_moves_the_generator_on(generator: Generator) -> None:
    drawn = [draw() for _ in range(TOGETHER + 2)]
    assert drawn[:2] == [(1, 5, 0, 0, 71), (1, 5, 0, 1, 71)]
    assert drawn[-3:] == [(1, 5, 0, TOGETHER - 1, 71), (1, 5, 1, 0, 71), (1, 5, 1, 1, 71)]
    assert len(set(drawn)) == len(drawn)
    assert generator.offset == 4 * len(drawn)


def test_a_state_that_is_set_again_gives_the_same_numbers(generator: Generator) -> None:
    draw()
    generator.offset += 40  # a dropout of torch
    before = generator.offset
    drawn = [draw(), draw()]
    generator.offset = before
    assert [draw(), draw()] == drawn
    generator.seed, generator.offset = 6, before
    assert draw() not in drawn


def test_a_graph_draws_its_own_number(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dropout, "capturing", lambda: True)
    monkeypatch.setattr(_dropout, "allocator", lambda _: lambda shape, _strides, dtype: torch.zeros(shape, dtype=dtype))
    number = draw()
    assert number.shape == (1,)
    assert generator.offset == 0
    assert 0 <= int(number) < 2**63 - 1


def test_seeds_and_parts_that_are_near_have_other_seeds() -> None:
    places = {
        (seed * _dropout._OF_SEED + part * _dropout._OF_PART) % 2**64 for seed in range(200) for part in range(200)
    }
    assert len(places) == 200**2
