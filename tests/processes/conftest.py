"""Revisions of the harness that consist of a measuring process without torch, which a test writes; and fake teams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.processes import supervisor
from harness.processes.messages import VERSION, Ready
from tests.processes.fake_team import ROOT, FakeTeam

CHILD = """\
import json, os, sys, time
from pathlib import Path

FD, RANK = int(sys.argv[sys.argv.index("--replies") + 1]), int(os.environ["RANK"])
ROOT = Path(__file__).resolve().parents[2]

def say(kind, **fields):
    os.write(FD, (json.dumps({{"kind": kind, **fields}}) + "\\n").encode())

def measured(status, error=None, leaving=False, number=None, **fields):
    number = question["number"] if number is None else number
    found = {{"case": question["job"]["case"], "status": status, "error": error, **fields}}
    say("measurement", number=number, measurement=found, leaving=leaving)

say("ready", protocol=2, root=str(ROOT))
for line in sys.stdin:
    question = json.loads(line)
    variant = question["job"]["case"]["variant"] if "job" in question else ""
    {body}
"""


@pytest.fixture
def revision(tmp_path: Path) -> Callable[..., Path]:
    """Makes the folder of a revision. body: Python that answers one `question`, by its `variant` and the `RANK`."""

    def make(body: str) -> Path:
        file = tmp_path / "revision" / "harness" / "processes" / "child.py"
        for folder in (file.parent, tmp_path / "revision" / "harness"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").touch()
        indented = body.strip().replace("\n", "\n    ")
        file.write_text(CHILD.format(body=indented))
        return tmp_path / "revision"

    return make


@pytest.fixture
def teams(monkeypatch: pytest.MonkeyPatch) -> type[FakeTeam]:
    monkeypatch.setattr(supervisor, "Team", FakeTeam)
    FakeTeam.made, FakeTeam.starts = [], [Ready(VERSION, str(ROOT))] * 5
    return FakeTeam
