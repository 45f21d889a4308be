"""Where a measuring process finds its modules, and which one it starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.processes import rank


def test_a_revision_comes_first_and_this_checkout_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = Path(rank.__file__).resolve().parents[2]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(own), "/usr/lib/python3/site-packages", f"{own}/tests"])
    first, *others = rank._python_path(Path("/base")).split(os.pathsep)
    assert Path(first) == Path("/base")
    assert others == [str(tmp_path), "/usr/lib/python3/site-packages", f"{own}/tests"]
    assert rank._python_path(None).split(os.pathsep)[1] == str(own)


def test_the_environment_is_as_long_whatever_the_root() -> None:
    assert len({len(rank._python_path(Path(root))) for root in ("/base", "/a/much/longer/path/to/a/checkout")}) == 1


def test_a_revision_before_0_2_measures_in_another_module(tmp_path: Path) -> None:
    own = Path(rank.__file__).resolve().parents[2]
    assert rank._module(None) == rank._module(own) == "harness.processes.child"
    assert rank._module(tmp_path) == "harness.worker"
