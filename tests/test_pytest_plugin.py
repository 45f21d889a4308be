"""The plug-in of pytest, in a session of its own, on a processor in the place of a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import harness
from harness import devices, pytest_plugin
from harness.model import Limits, StreamPoint
from tests.rare import rare

ROOT = Path(harness.__file__).parents[1]
TESTS = """
import pytest, torch

def test_it(gpu_time):
    x = torch.ones(64)
    assert gpu_time(torch.exp, x, budget=0.01).us > 0
    assert gpu_time(torch.exp, x, budget=0.01, bytes=512).gb_per_s > 0

def test_wrong(gpu_time):
    gpu_time(torch.exp, torch.ones(8), check=lambda x: x, budget=0.01)
"""
CONFTEST = """
from harness import pytest_plugin
pytest_plugin.missing = lambda: None
"""
PLUGIN = ["-p", "harness.pytest_plugin", "-p", "no:cacheprovider", "-rs"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_a.py").write_text(TESTS)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "pytest", *PLUGIN]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def run_here(
    folder: Path, short_timing: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """run_here(argument, ...): the status and the streams of such a session in this process, which has torch."""
    limits = Limits((StreamPoint(2**20, 2**20, 1e-3, "memcpy", is_copy=True),))
    monkeypatch.setattr("harness.api.timing.machine_limits", lambda _: limits)
    monkeypatch.setattr(pytest_plugin, "missing", lambda: None)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    monkeypatch.chdir(folder)
    # What changes the process for the whole of its life the session around this one has done.
    alone = ["-s", "--import-mode=importlib", *(f"-pno:{name}" for name in ("faulthandler", "unraisableexception"))]

    def session(*arguments: str) -> tuple[int, str, str]:
        status = int(pytest.main([*PLUGIN, *alone, *arguments]))
        sys.modules.pop("test_a", None)
        return status, *capsys.readouterr()

    return session


def test_a_summary_has_each_time_and_a_wrong_result_fails(folder: Path) -> None:
    (folder / "conftest.py").write_text(CONFTEST)
    done = run(folder, "--gpu-times=times.json", "--gpu-times-update")
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert "WrongResultError: exp: result: 8 of 8 elements are wrong by up to 1.72" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("test_a.py::test_it: exp  ")]
    assert len(lines) == 2
    times = json.loads((folder / "times.json").read_text())["times"]
    assert list(times) == ["test_a.py::test_it::exp", "test_a.py::test_it::exp#2"]


@pytest.mark.parametrize(("before", "failed"), [(1e-6, True), rare(1e9, False)])
def test_a_call_that_became_slower_fails(folder: Path, run_here: Run, before: float, failed: bool) -> None:
    stored = {"test_a.py::test_it::exp": {"us": before, "low": before, "high": before}}
    (folder / "times.json").write_text(json.dumps({"machine": pytest_plugin._machine(), "times": stored}))
    status, said, _ = run_here("--gpu-times=times.json", "-k", "test_it")
    assert ("times as long as times.json says" in said) is failed
    assert "x of " in said
    assert status == failed


@pytest.mark.slow  # the test above has times that are compared
def test_times_of_another_machine_are_not_compared(folder: Path, run_here: Run) -> None:
    stored = {"test_a.py::test_it::exp": {"us": 1e-6, "low": 1e-6, "high": 1e-6}}
    (folder / "times.json").write_text(json.dumps({"machine": "another", "times": stored}))
    status, said, _ = run_here("--gpu-times=times.json", "-k", "test_it")
    assert status == 0
    assert "times.json is of another machine (another), so nothing is compared" in said


@pytest.mark.skipif(devices.kinds()["cuda"].missing() is None, reason="there is a GPU")
def test_without_a_gpu_it_skips_and_says_so(folder: Path) -> None:
    done = run(folder)
    assert "2 skipped" in done.stdout
    assert "gpu_time needs a GPU: CUDA_VISIBLE_DEVICES='' hides every GPU" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--gpu-times-update"], "needs --gpu-times FILE"), (["--gpu-times=test_a.py"], "holds no times")],
)
def test_a_file_that_is_none_is_refused(run_here: Run, arguments: list[str], said: str) -> None:
    status, _, told = run_here(*arguments)
    assert status == 4
    assert said in told
