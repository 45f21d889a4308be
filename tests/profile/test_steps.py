"""Which part of a program's steps is in its trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import torch

import harness
from harness.profile import _steps
from harness.profile._trace import BEGIN, END, STEP

PROGRAM = Path(__file__).with_name("steps_recorded.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    command = [sys.executable, "-P", PROGRAM, tmp_path_factory.mktemp("traces")]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stderr.splitlines() if line.startswith("recorded: ")]
    return {**json.loads(ended.stdout.splitlines()[-1]), "told": told}


def test_the_steps_of_a_window_are_recorded(found: Any) -> None:
    assert found["windows"] == [2, 3, 2, 3, 0]
    whole = "recorded: the whole program"
    assert [told.partition(" of its")[0] for told in found["told"]][:5] == [
        "recorded: steps 5 to 6", "recorded: steps 5 to 7", "recorded: steps 1 to 2", whole, whole,
    ]  # fmt: skip


def test_a_program_may_have_a_profiler_of_its_own(found: Any) -> None:
    assert found["nested"] == [2, 2, 6]
    assert found["told"][5] == "recorded: the whole program, until its own profiler began"


def test_a_program_may_train_in_a_thread(found: Any) -> None:
    """Torch's profiler ends the process where another thread ends it than the one that began it."""
    assert found["threads"] == [1, 3, -1]
    assert [told.partition(",")[0] for told in found["told"][6:]] == [
        "recorded: the whole program",
        "recorded: nothing",
    ]
    assert "no operators of the thread that makes its steps" in found["told"][6]


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.autograd.profiler import profile
    from torch.optim import optimizer

    monkeypatch.setattr(torch.profiler, "profile", MagicMock())
    before = (profile._prepare_trace, dict(optimizer._global_optimizer_post_hooks))
    with (
        pytest.raises(RuntimeError, match="the program's"),
        _steps.recording(tmp_path / "trace.json", _steps.Window(1, 1)),
    ):
        raise RuntimeError("the program's")
    assert (profile._prepare_trace, dict(optimizer._global_optimizer_post_hooks)) == before


def test_a_program_may_say_itself_where_its_steps_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its optimizer makes two steps in each of them; the first one counts until the program speaks."""
    marks: list[tuple[str, int]] = []
    calls: list[None] = []
    monkeypatch.setattr(torch.profiler, "profile", MagicMock())
    monkeypatch.setattr(_steps.Recorder, "_mark", lambda _, name: marks.append((name, len(calls))))
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight])
    harness.step()  # nobody listens
    with _steps.recording(tmp_path / "trace.json", _steps.Window(3, 2)):
        for _ in range(7):
            calls.append(None)
            optimizer.step()
            optimizer.step()
            harness.step()
    assert marks == [(BEGIN, 3), (STEP, 4), (STEP, 5), (END, 5)]
    assert capsys.readouterr().err == "recorded: steps 4 to 5 by harness.step(); others by --wait and --active\n"
    assert harness._watching == []


def test_a_program_that_speaks_too_late_keeps_its_optimizers_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[str] = []
    monkeypatch.setattr(torch.profiler, "profile", MagicMock())
    monkeypatch.setattr(_steps.Recorder, "_mark", lambda _, name: marks.append(name))
    with _steps.recording(tmp_path / "trace.json", _steps.Window(1, 2)):
        recorder = cast(Any, harness._watching[0]).func.__self__
        for _ in range(2):
            recorder.step(7)
        harness.step()
        assert marks == [BEGIN, STEP]
        recorder.step(7)
    assert marks == [BEGIN, STEP, STEP, END]
