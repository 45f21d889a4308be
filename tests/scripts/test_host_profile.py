"""What a step costs the host: which functions are found, and that a rung of another op is refused."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

FILE = Path(__file__).parents[2] / "scripts" / "host_profile.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("host_profile", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Steps:
    """A trainer whose step calls one function five times."""

    setup = SimpleNamespace(device=torch.device("cpu"))

    def __init__(self) -> None:
        self.made = 0

    def loss_of_step(self) -> None:
        self.made += 1
        for _ in range(5):
            slow()


def slow() -> int:
    return sum(range(1000))


def test_functions_are_ranked_by_their_own_time_a_step(script):
    first, *_ = found = list(script.by_function(Steps()))
    assert first[1:] == (5.0, "~:0 <built-in method builtins.sum>")
    line = slow.__code__.co_firstlineno
    assert (5.0, f"test_host_profile.py:{line} slow") in [one[1:] for one in found]
    times = [one[0] for one in found]
    assert times == sorted(times, reverse=True)
    assert times[0] > 0


def test_the_time_of_a_step_is_of_the_shortest_round(script, monkeypatch):
    steps = Steps()
    ticks = iter([0.0, 8.0, 10.0, 14.0, *(float(20 * one) for one in range(1, 15))])
    monkeypatch.setattr(script.time, "perf_counter", lambda: next(ticks))
    assert script.issued(steps) == 4.0 / script.STEPS
    assert steps.made == script.ROUNDS * script.STEPS


def test_an_unknown_rung_is_refused(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["host_profile.py", "swin_train", "swin_toy", "2", "no_such"])
    with pytest.raises(SystemExit):
        script.main()
    assert "swin_train has no rung 'no_such'; it has float32, tf32, amp" in capsys.readouterr().err
