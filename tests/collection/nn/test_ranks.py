"""harness.nn on two ranks: DDP, FSDP2 and DTensor, by gloo on a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.collection.nn import ranks

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> list[subprocess.CompletedProcess[str]]:
    """What the ranks printed, and how they ended."""
    store = tmp_path_factory.mktemp("ranks") / "store"
    commands = [[sys.executable, "-m", ranks.__name__, str(rank), str(store)] for rank in range(ranks.RANKS)]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    made = []
    for one in running:
        out, err = one.communicate()
        made.append(subprocess.CompletedProcess(one.args, one.returncode, out, err))
    return made


@pytest.mark.slow  # test_support.py has a process group of one, collection/test_many_ranks.py two ranks
@pytest.mark.parametrize("check", ranks.CHECKS, ids=lambda check: check.__name__)
def test_ranks_do_what_one_process_and_torch_do(check, ended):
    for rank in ended:
        assert check.__name__ in rank.stdout.split(), rank.stderr
