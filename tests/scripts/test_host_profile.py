"""What a step costs the host: which functions are found, and that a rung of another op is refused."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.one_test import one_test

FILE = Path(__file__).parents[2] / "scripts" / "host_profile.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("host_profile", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_calls_begins_with_how_many_keep_to_their_bar():
    page = (FILE.parents[1] / "reports" / "h200" / "host.md").read_text("utf-8")
    met = re.findall(r"\| (yes|no) \|$", page, re.MULTILINE)
    assert f"Ours costs no more than its bar in {met.count('yes')} of {len(met)} calls." in page


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
    found = list(script.by_function(Steps()))
    line = slow.__code__.co_firstlineno
    named = {name: calls for _, calls, name in found}
    assert named["~:0 <built-in method builtins.sum>"] == named[f"test_host_profile.py:{line} slow"] == 5.0
    times = [time for time, *_ in found]
    assert times == sorted(times, reverse=True)


def test_the_time_of_what_a_function_calls_is_not_its_own(script, monkeypatch):
    """Each function with two calls in all, its own seconds, and the seconds until it returns."""
    seconds = {"outer": (0.5e-3, 9.0), "inner": (4e-3, 4e-3), "other": (2e-3, 5.0)}
    stats = {(f"/a/{name}.py", 7, name): (2, 2, own, whole, {}) for name, (own, whole) in seconds.items()}
    monkeypatch.setattr(script.pstats, "Stats", lambda _: SimpleNamespace(stats=stats))
    monkeypatch.setattr(script, "STEPS", 2)
    found = list(script.by_function(Steps()))
    assert found == [(2.0, 1.0, "inner.py:7 inner"), (1.0, 1.0, "other.py:7 other"), (0.25, 1.0, "outer.py:7 outer")]


def test_rungs_take_turns_and_each_round_has_a_time_of_each(script, monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(script.time, "perf_counter", lambda: float(next(clock)))
    rungs = {"one": Steps(), "two": Steps()}
    times = script.side_by_side(rungs)
    assert {name: len(own) for name, own in times.items()} == {"one": script.ROUNDS, "two": script.ROUNDS}
    assert set(times["one"]) == {1.0 / script.STEPS}
    assert {one.made for one in rungs.values()} == {script.ROUNDS * script.STEPS}


@one_test(("slower", "verdict"), [(1.0, "yes"), (1.04, "yes"), (1.06, "no"), (0.5, "yes")])
def test_a_rung_is_judged_by_the_ratio_of_each_round(script, slower, verdict):
    """The host is twice as slow in half of the rounds; the ratio of a round doesn't show that."""
    others = [1e-3, 2e-3] * 20
    line = script.row(("ours", "torchs"), {"ours": [slower * one for one in others], "torchs": others})
    assert line.endswith(f"| {slower:.3f} [{slower:.3f}, {slower:.3f}] | 1.05 | {verdict} |")


def test_an_interval_around_the_bar_tells_nothing(script):
    line = script.row(("ours", "torchs"), {"ours": [1.0, 1.1] * 20, "torchs": [1.0] * 40})
    assert line.endswith("| can't tell |")


@pytest.mark.slow
def test_the_table_holds_our_rungs_to_torchs(script, monkeypatch, capsys, one_thread):
    """On a CPU, with a model that is tiny."""
    monkeypatch.setattr(script, "ROUNDS", 6)
    monkeypatch.setattr(script, "WARM", 1)
    monkeypatch.setattr(script, "STEPS", 1)
    monkeypatch.setattr(sys, "argv", ["host_profile.py", "swin_train", "swin_toy", "2", "fused_norm_adam:half_norm"])
    script.main()
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("| `fused_norm_adam` | ")
    assert " | `half_norm` | " in line


def test_rungs_with_other_settings_of_the_process_cant_take_turns(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["host_profile.py", "swin_train", "swin_toy", "2", "float32:half_norm"])
    with pytest.raises(SystemExit):
        script.main()
    assert "half_norm and float32 can't take turns" in capsys.readouterr().err


def test_an_unknown_rung_is_refused(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["host_profile.py", "swin_train", "swin_toy", "2", "no_such:half_norm"])
    with pytest.raises(SystemExit):
        script.main()
    assert "swin_train has no rung 'no_such'; it has float32, tf32, amp" in capsys.readouterr().err


def test_a_rung_needs_one_to_be_held_to(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["host_profile.py", "swin_train", "swin_toy", "2", "windows"])
    with pytest.raises(SystemExit):
        script.main()
    assert "'windows' isn't two rungs; write them as fused_norm_adam:half_norm" in capsys.readouterr().err
