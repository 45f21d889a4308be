"""Users' steps on two ranks, by gloo: they are the steps of one process, and what goes wrong is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.collection.steps import ladder
from harness.model import Case, Job, Timing
from harness.processes.supervisor import Workers
from harness.ranks import FOLDER
from tests.collection.steps.ladder import pair
from tests.collection.steps.ladder.conftest import STEPS, answered

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> list[subprocess.CompletedProcess[str]]:
    """What the ranks printed, and how they ended."""
    world = {"WORLD_SIZE": "2", FOLDER: str(tmp_path_factory.mktemp("ranks"))}
    command = [sys.executable, "-m", "tests.collection.steps.ladder.pair"]
    running = [
        subprocess.Popen(
            command, cwd=ROOT, env=os.environ | world | {"RANK": str(rank)}, stdout=-1, stderr=-1, text=True
        )
        for rank in range(2)
    ]
    texts = [one.communicate() for one in running]
    return [
        subprocess.CompletedProcess(command, one.returncode, *text) for one, text in zip(running, texts, strict=True)
    ]


@pytest.mark.parametrize("check", pair.CHECKS, ids=lambda check: check.__name__)
def test_two_ranks(check, ended):
    for rank in ended:
        assert check.__name__ in rank.stdout.split(), rank.stderr


def test_a_rank_that_fails_names_itself(tmp_path):
    """The first rank waits for the second one, whose batch can't be made."""
    known = answered("attention") | {"world": 2}
    step = tmp_path / "attention.py"
    fails = "    import os\n    if os.environ['RANK'] == '1':\n        raise ValueError('no data')\n"
    step.write_text((STEPS / step.name).read_text().replace("def batch():\n", f"def batch():\n{fails}"))
    plugin = tmp_path / "ladder.py"
    plugin.write_text(ladder.plugin(known | {"source": str(step)}))
    case = Case(known["name"], "amp", "bfloat16", (("B", 8),), world=2, device="cpu")
    with Workers("cpu", [plugin]) as workers:
        found = workers.measure(Job(case, Timing(0.5, 0.02, 100.0)))
    assert (found.status, found.error.partition("\n")[0]) == (
        "crashed",
        "rank 1: the step itself fails, as the file has it: ValueError: no data",
    )
