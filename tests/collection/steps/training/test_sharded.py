"""Steps of a Llama on two ranks, by FSDP2 and in DistributedDataParallel: they are those of one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.collection.steps.training import sharded
from tests.one_test import one_test

ROOT = Path(__file__).parents[4]


def ran(folder: Path, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """What the ranks printed, and how they ended."""
    given = [str(folder / "store"), *arguments]
    commands = [[sys.executable, "-m", sharded.__name__, str(rank), *given] for rank in range(sharded.RANKS)]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    made = []
    for one in running:
        out, err = one.communicate()
        made.append(subprocess.CompletedProcess(one.args, one.returncode, out, err))
    return made


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> list[subprocess.CompletedProcess[str]]:
    return ran(tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow  # test_scaling.py has these steps on one rank, collection/test_many_ranks.py two ranks
@one_test("check", sharded.CHECKS, ids=lambda check: check.__name__)
def test_ranks_make_the_steps_of_one_process(check, ended):
    for rank in ended:
        assert check.__name__ in rank.stdout.split(), rank.stderr


@pytest.mark.slow  # test_llama.py has these rungs on one rank, the test above plain ones on two
def test_ranks_make_the_steps_of_other_rungs(tmp_path):
    for rank in ran(tmp_path, "rare"):
        assert rank.stdout.split() == [check.__name__ for check in sharded.RARE], rank.stderr
