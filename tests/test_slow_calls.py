"""Slow calls on little data, which has a thousand sets of buffers: the time of a case stays what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.devices import Batch
from harness.devices.cpu import Cpu
from harness.measure import measure
from harness.model import Case, Job, Timer, Timing
from harness.ops import Context, Launch, Op, Tensor, Tensors
from tests.rare import rare


@pytest.mark.parametrize(("seconds", "made"), [(0.5, 1), rare(0.05, 2), (1e-3, 100), rare(1e-6, 1024)])
def test_not_all_are_made_for_the_time_of_a_call(seconds: float, made: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of calls of 50 ms would take a minute."""
    now, done = [0.0], [0]

    def clock() -> float:
        now[0] += 6e-3
        return now[0]

    class Slow(Cpu):
        cache_bytes = 2**20

        def batch(self, calls: Sequence[Callable[[], object]], *, timer: Timer, **_: Any) -> Batch:
            assert len(calls) == 1024
            done[0] = 0  # of the check
            return Batch(lambda n: [seconds] * n, 1, timer, seconds)

    sheet = Op(
        "twice",
        "y = 2 x",
        {"N": "elements"},
        inputs=(Tensor("x", ("N",)),),
        outputs=(Tensor("y", ("N",)),),
        reference=lambda _, t: {"y": t.x.double() * 2},
    )

    @sheet.variant("ours", "takes its time", devices=("cpu",))
    def ours(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            done[0] += 1
            now[0] += seconds
            torch.mul(t.x, 2, out=t.y)

        return launch

    monkeypatch.setattr("harness.measure.time", SimpleNamespace(monotonic=clock, perf_counter=clock))
    monkeypatch.setattr("harness.measure._CALL_ROUNDS", 1)
    monkeypatch.setattr("harness.session.Session.recheck", lambda *_: None)
    monkeypatch.setattr("harness.recheck.pace", lambda *_: 0.0)
    case = Case("twice", "ours", "float32", (("N", 8),), device="cpu")
    result = measure(Job(case, Timing(max_time=0.1)), sheet, Slow())
    assert (result.status, len(result.call_samples)) == ("ok", 1)
    assert done[0] == made
