"""Commands as processes, in a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Harness = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def environment() -> Callable[..., dict[str, str]]:
    """environment(name=value, ...): a command's environment, with more variables."""
    return lambda **more: os.environ | {"PYTHONPATH": str(ROOT)} | more


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the commands run."""
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def harness(folder: Path, environment: Callable[..., dict[str, str]]) -> Harness:
    """Runs `harness` as a process, so that plug-ins which change the CPU don't reach the tests.

    The limit is for a command that never ends, which is an error: a ladder takes minutes on a loaded machine.
    """

    def run(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "harness", *map(str, arguments)]
        return subprocess.run(
            command, cwd=folder, env=environment(**more), capture_output=True, text=True, check=False, timeout=600
        )

    return run
