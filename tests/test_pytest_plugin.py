"""The plug-in of pytest, in a session of its own, on a processor in the place of a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import harness
from harness import devices

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "pytest", "-p", "harness.pytest_plugin", "-p", "no:cacheprovider", "-rs"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_summary_has_each_time_and_a_wrong_result_fails(folder: Path) -> None:
    done = run(folder, "--gpu-times=times.json", "--gpu-times-update")
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert "WrongResultError: exp: result: 8 of 8 elements are wrong by up to 1.72" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("test_a.py::test_it: exp  ")]
    assert len(lines) == 2
    times = json.loads((folder / "times.json").read_text())["times"]
    assert list(times) == ["test_a.py::test_it::exp", "test_a.py::test_it::exp#2"]


@pytest.mark.parametrize(("before", "failed"), [(1e-6, True), (1e9, False)])
def test_a_call_that_became_slower_fails(folder: Path, before: float, failed: bool) -> None:
    from harness.pytest_plugin import _machine

    stored = {"test_a.py::test_it::exp": {"us": before, "low": before, "high": before}}
    (folder / "times.json").write_text(json.dumps({"machine": _machine(), "times": stored}))
    done = run(folder, "--gpu-times=times.json", "-k", "test_it")
    assert ("times as long as times.json says" in done.stdout) is failed
    assert "x of " in done.stdout
    assert done.returncode == failed


def test_times_of_another_machine_are_not_compared(folder: Path) -> None:
    stored = {"test_a.py::test_it::exp": {"us": 1e-6, "low": 1e-6, "high": 1e-6}}
    (folder / "times.json").write_text(json.dumps({"machine": "another", "times": stored}))
    done = run(folder, "--gpu-times=times.json", "-k", "test_it")
    assert done.returncode == 0
    assert "times.json is of another machine (another), so nothing is compared" in done.stdout


@pytest.mark.skipif(devices.kinds()["cuda"].missing() is None, reason="there is a GPU")
def test_without_a_gpu_it_skips_and_says_so(folder: Path) -> None:
    (folder / "conftest.py").unlink()
    done = run(folder)
    assert "2 skipped" in done.stdout
    assert "gpu_time needs a GPU: CUDA_VISIBLE_DEVICES='' hides every GPU" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--gpu-times-update"], "needs --gpu-times FILE"), (["--gpu-times=test_a.py"], "holds no times")],
)
def test_a_file_that_is_none_is_refused(folder: Path, arguments: list[str], said: str) -> None:
    done = run(folder, *arguments)
    assert done.returncode == 4
    assert said in done.stderr
