"""Revisions of the harness that consist of a process without torch, which a test writes; fake teams; what code uses."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from harness.processes import supervisor
from harness.processes.messages import VERSION, Ready
from tests.gate.foreign import write
from tests.processes.fake_team import ROOT, FakeTeam

USES = """
import json, os, sys
from pathlib import Path
from harness.processes import used
from harness.processes.used import UsedFiles
for module in [*sys.modules.values()]:  # what is kept of it here each forked process needn't find anew
    used.source_of(getattr(module, "__file__", None) or "")
for line in sys.stdin:
    folder, code, digits, variables = json.loads(line)
    if os.fork():
        if os.wait()[1]:
            print("null", flush=True)
        continue
    os.environ.update(variables)
    top = Path(folder)
    os.chdir(top)
    sys.path[:0] = [str(top), str(top / "src")]
    import early
    watch = UsedFiles([top])
    exec(code)
    print(json.dumps([path for path, digest in watch.so_far() if len(digest) == digits]), flush=True)
    os._exit(0)
"""
Asking = Callable[..., list[str]]
REPOSITORY = Path(__file__).resolve().parents[2]
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


def install(site: Path, name: str, files: Mapping[str, str], **more: str) -> Path:
    """Files in a folder of packages, with the list that pip leaves beside them. more: files of the list's folder."""
    info = f"{name}-1.0.dist-info"
    about = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "INSTALLER": "pip\n", **more}
    rows = []
    for file, text in (*files.items(), *((f"{info}/{each}", text) for each, text in about.items())):
        write(site / file, text)
        told = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        rows.append(f"{file},sha256={told},{len(text)}")
    record = site / info / "RECORD"
    record.write_text("\n".join([*rows, f"{info}/RECORD,,", ""]))
    return record


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


@pytest.fixture(scope="session")
def ask() -> Iterator[Asking]:
    """ask(top, code, digits): files that the code uses, after `early` was imported, whose digests have so many digits.

    They are relative to the top where they lie below.
    """
    command = [sys.executable, "-c", USES]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        asked, answers = process.stdin, process.stdout

        def ask(top: Path, code: str, digits: int, **variables: str) -> list[str]:
            asked.write(json.dumps([str(top), code, digits, variables]) + "\n")
            asked.flush()
            found = json.loads(answers.readline())
            assert found is not None, "the code has raised"
            return [str(Path(file).relative_to(top)) if file.startswith(str(top)) else file for file in found]

        yield ask
        asked.close()
    assert process.returncode == 0


@pytest.fixture
def used_by(ask: Asking) -> Asking:
    """used_by(top, code): files that the code uses, with their digests."""
    return partial(ask, digits=64)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A repository with a package, modules, data, and a Python of its own."""
    for name in ("src/mykern/__init__.py", "src/mykern/inner.py", "early.py", "late.py", "kernel.cu", "lib.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path
