"""A tool on the PATH that isn't the real one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.profile.light import NCU


@pytest.fixture
def on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Put a script of this name on the PATH, ahead of all other scripts; text: what it does, as a shell script."""

    def put(name: str, text: str) -> Path:
        home = tmp_path / "bin"
        home.mkdir(exist_ok=True)
        script = home / name
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{home}{os.pathsep}{os.environ['PATH']}")
        return script

    return put


@pytest.fixture
def fake_ncu(on_the_path: Callable[[str, str], Path]) -> Path:
    """`fake_ncu.py` as ncu."""
    fake = f'exec {shlex.join(NCU)} "$@"'
    version = "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 1) (public-release)"
    read = 'echo "==PROF== a line ahead of the table"; exec cat "$2"'
    return on_the_path("ncu", f'case "$1" in --version) echo "{version}";; --import) {read};; *) {fake};; esac')


@pytest.fixture
def fake_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a program named nsys with these lines of shell on the PATH, which has no other nsys."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(lines: str) -> Path:
        program = folder / "nsys"
        program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{lines}\n")
        program.chmod(0o755)
        return program

    return make
