"""A test finds its process as if no other test had run in this process before."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

FOUND: list[tuple[object, ...]] = []


@pytest.mark.parametrize("turn", [1, 2])
def test_what_a_test_changes_is_put_back_for_the_next_one(turn: int, tmp_path: Path) -> None:
    FOUND.append((sys.excepthook, [*sys.path], Path.cwd(), torch.get_float32_matmul_precision()))
    assert FOUND[-1] == FOUND[0], turn
    assert "HARNESS_LEFT" not in os.environ
    sys.excepthook = print
    sys.path.append("elsewhere")
    os.chdir(tmp_path)
    os.environ["HARNESS_LEFT"] = "yes"
    torch.set_float32_matmul_precision("medium" if FOUND[0][-1] != "medium" else "high")
