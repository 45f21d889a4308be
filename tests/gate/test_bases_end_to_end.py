"""The gate as a user runs it, on the CPU: against two bases, with waivers, and going on from its pairs."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import harness
from harness import store
from harness.gate.joining import Joined
from harness.gate.records import GateRun

ROOT = Path(harness.__file__).parents[1]
FEW_PAIRS, NO_DECISION = (Path(__file__).with_name(name) for name in ("few_pairs.py", "no_decision.py"))
OP = """
from harness.ops import Op, Tensor

OP = Op(
    "twice", "y = 2 x", symbols={{"N": "elements"}}, inputs=(Tensor("x", ("N",)),), outputs=(Tensor("y", ("N",)),),
    dtypes=("float32",), reference=lambda _, t: {{"y": 2 * t.x.double()}}, tolerance={{"float32": (1e-2, 1e-2)}},
)


@OP.variant("plain", "passes", devices=("cpu",))
def plain(_):
    import torch

    def launch(t):
        for _ in range({passes}):
            torch.mul(t.x, 2, out=t.y)

    return launch
"""
SCENARIO = "title: Twice\nop: twice\nshapes: [{N: 2**14}]\ndtypes: [float32]\nbaseline: plain\n"
CASE = "twice/plain/float32/N16384"
WAIVER = """\
waivers:
  - cases: [{cases}]
    largest_loss: {loss}
    reason: more passes are right now
    owner: alice
    until: {until:%Y-%m-%d}
"""
ON_CPU = ["bench.yaml", "--ops=bench.py", "--device=cpu", "--precision=0.05", "--max-time=0.05", "--margin=60%"]
TODAY = datetime.now(UTC)

# Each measuring process imports torch, which takes seconds.
pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def gate(
    repository: Path, *arguments: str, script: Path = FEW_PAIRS, **variables: str
) -> subprocess.CompletedProcess[str]:
    around = {"PYTHONPATH": str(ROOT), "HARNESS_CACHE": str(repository.parent / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", script, "gate", *arguments]
    return subprocess.run(
        command, cwd=repository, env=os.environ | around | variables, capture_output=True, text=True, check=False
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The release v1 makes one pass. `main` makes 1,000, and so does the working tree."""
    root = tmp_path / "repository"
    root.mkdir()
    (root / "bench.yaml").write_text(SCENARIO)
    (root / ".gitignore").write_text("__pycache__/\n")
    git(root, "init", "--quiet", "--initial-branch=main")
    for passes, tag in ((1, "v1"), (1000, "merged")):
        (root / "bench.py").write_text(OP.format(passes=passes))
        git(root, "add", ".")
        git(root, "commit", "--quiet", f"--message={tag}")
        git(root, "tag", tag)
    return root


def test_a_loss_that_was_merged_long_ago_is_found_against_the_release(repository: Path) -> None:
    """Nothing is lost against main, whose code is the same, so only the release is measured."""
    asked = ["--base=main", "--against=v1", *ON_CPU, "--output=../out"]
    done = gate(repository, *asked, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(repository / "../summary.md"))
    assert done.returncode == 1, done.stderr
    out = repository.parent / "out"
    main, release = store.parse(Joined, (out / "gate.json").read_text()).joined
    assert (main.label, release.label, main.exit, release.exit) == ("main", "v1", 0, 1)
    for folder, part in (("1-main", main), ("2-v1", release)):
        assert store.parse(GateRun, (out / folder / "gate.json").read_text()) == part.run
    [regressed] = [f for f in release.run.findings if f.severity == "failure"]
    assert (regressed.rule, regressed.case.id) == ("slower", CASE)
    assert "gate FAILED: exit 1, v1: a case is slower" in done.stdout
    assert "::error file=bench.py,title=gate%2C slower::v1: " in done.stdout
    for text in (done.stdout, (out / "gate.md").read_text(), (repository / "../summary.md").read_text()):
        assert "regressed" in text
    again = gate(repository, "merge", "../out/1-main", "../out/2-v1", "--output=../merged")
    assert again.returncode == 1, again.stderr
    assert (repository / "../merged/gate.md").is_file()


def test_a_waiver_lets_pass_what_it_covers_in_every_output(repository: Path) -> None:
    waiver = WAIVER.format(cases="twice/*", loss="99.99999%", until=TODAY + timedelta(days=2))
    (repository / "waivers.yaml").write_text(waiver + waiver.partition("\n")[2].replace("twice/*", "'other/*'"))
    done = gate(repository, "--against=v1", *ON_CPU, "--output=../out", GITHUB_ACTIONS="true")
    assert done.returncode == 0, done.stdout + done.stderr
    out = repository.parent / "out"
    run = store.parse(GateRun, (out / "gate.json").read_text())
    assert [waiver.place for waiver in run.waivers] == ["waivers.yaml:2", "waivers.yaml:7"]
    assert [(f.severity, f.rule) for f in run.findings if f.rule == "waivers"] == [
        ("accepted", "waivers"),
        *[("note", "waivers")] * 3,  # one fits no case, and both are new
    ]
    assert [waiver.new for waiver in run.waivers] == [True, True]
    assert f"{CASE}" in done.stdout
    assert "waived: 1 case, 1 by a waiver that is new since v1" in " ".join(done.stdout.split())
    assert "more passes are right now (alice, waivers.yaml:2, new since v1)" in " ".join(done.stdout.split())
    assert "::warning file=waivers.yaml,line=7,title=gate%2C waivers::" in done.stdout
    for name in ("gate.md", "junit.xml"):
        text = (out / name).read_text()
        assert "more passes are right now" in text
        assert "fits no case of this run" in text


def test_waivers_that_are_too_small_or_have_expired_cover_nothing(repository: Path) -> None:
    small = WAIVER.format(cases="twice/*", loss="65%", until=TODAY + timedelta(days=2))
    expired = WAIVER.format(cases="twice/*", loss="99.99999%", until=TODAY - timedelta(days=2))
    (repository / "waivers.yaml").write_text(small + expired.partition("\n")[2])
    done = gate(repository, "--base=v1", *ON_CPU, "--output=../out")
    assert done.returncode == 1, done.stdout + done.stderr
    told = " ".join(done.stdout.split())
    assert "more than the waived 65.00%" in told
    assert "waivers.yaml:7: the waiver of twice/* (alice) expired on" in told


def test_a_wrong_file_of_waivers_is_told_before_anything_is_measured(repository: Path) -> None:
    (repository / "waivers.yaml").write_text(WAIVER.format(cases="twice/*", loss="3", until=TODAY))
    done = gate(repository, "--base=v1", *ON_CPU)
    assert done.returncode == 2
    assert "waivers.yaml:3: waivers[0].largest_loss: must be a share between 0 and 1" in done.stderr
    done = gate(repository, "--base=v1", "--against=v7", *ON_CPU, "--waivers=none.yaml")
    assert (done.returncode, "none.yaml" in done.stderr) == (2, True)


def test_an_undecided_gate_goes_on_from_its_pairs(repository: Path) -> None:
    asked = ["--base=v1", *ON_CPU]
    (repository / "bench.py").write_text(OP.format(passes=1) + "\nMORE = 1\n")
    done = gate(repository, *asked, "--output=../out", script=NO_DECISION)
    assert done.returncode == 3, done.stdout + done.stderr
    out = repository.parent / "out" / "gate.json"
    before = store.parse(GateRun, out.read_text())
    assert (before.looks, len(before.cases[0].pairs)) == (1, 4)
    went_on = gate(repository, *asked, "--resume=../out", "--pairs=4", script=NO_DECISION)
    assert went_on.returncode == 3, went_on.stdout + went_on.stderr
    after = store.parse(GateRun, out.read_text())
    assert (after.looks, len(after.cases[0].pairs), after.seed) == (2, 6, before.seed)
    assert after.cases[0].pairs[:4] == before.cases[0].pairs
    assert after.continues == before.started
    assert "confirm: 2 pairs of processes" in went_on.stderr
    (repository / "bench.py").write_text(OP.format(passes=2))
    other = gate(repository, *asked, "--resume=../out")
    assert other.returncode == 2
    assert "can't go on, since the code has changed" in other.stderr
