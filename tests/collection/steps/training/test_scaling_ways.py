"""Which trainer a rank has in each way of training together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.collection.steps.training import _scaling
from harness.collection.steps.training._ranks import FlatMean
from harness.collection.steps.training._rungs import FLOAT32


@pytest.mark.parametrize(
    ("name", "world", "wrapped", "averages", "syncs"),
    [
        ("replicas", 2, False, False, True),
        ("no_sync", 2, True, False, False),
        ("after", 2, False, True, True),
        ("ddp", 2, True, False, True),
        ("after", 1, False, False, True),
        ("ddp", 1, False, False, True),
    ],
)
def test_gradients_are_averaged_by_torch_or_by_us_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, name: str, world: int, wrapped: bool, averages: bool, syncs: bool
) -> None:
    told: list[str] = []

    def trainer(*_: object, **given: Any) -> Any:
        return SimpleNamespace(**given, never_sync=lambda: told.append("never"))

    monkeypatch.setattr(_scaling, "RankTrainer", trainer)
    setup: Any = SimpleNamespace(device=torch.device("cpu"))
    monkeypatch.setattr("harness.collection.steps.training._ranks.process_group", lambda _backend: None)
    made: Any = _scaling.trainer_of(_scaling.way_of(name), FLOAT32, setup, world)
    assert (made.wrapped, isinstance(made.mean, FlatMean), told) == (wrapped, averages, [] if syncs else ["never"])
