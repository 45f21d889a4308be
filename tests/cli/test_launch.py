"""What `harness launch` prints: scripts that a shell and a cluster can read, with one torchrun a node."""

from __future__ import annotations

import os
import subprocess
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from harness.cli import app

WORDS = ["run", "scaling", "--only", "*world=16"]


def parse_args(given: Sequence[str]) -> Namespace:
    """What torchrun understands."""
    from torch.distributed import run

    found: Namespace = run.parse_args([*given])
    return found


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["launch", *arguments, "--", *WORDS], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 4), (1, 8), (2, 4), (2, 8)])
def test_slurm_starts_one_torchrun_a_node(nodes: int, gpus: int, tmp_path: Path) -> None:
    """The script is run by a shell whose srun writes down what it is told to start on each node."""
    script = printed("slurm", "--nodes", str(nodes), "--gpus", str(gpus), "--partition", "fast")
    resources = {f"nodes={nodes}", "ntasks-per-node=1", f"gpus-per-node={gpus}", "partition=fast"}
    assert {f"#SBATCH --{line}" for line in resources} <= {*script.splitlines()}
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0

    (tmp_path / "scontrol").write_text("#!/bin/bash\nprintf 'n%d\\n' 1 2\n")
    (tmp_path / "srun").write_text("#!/bin/bash\nprintf '%s\\0' \"$@\"\n")
    for stub in tmp_path.iterdir():
        stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    done = subprocess.run(["bash", "-e"], input=script, env=environment, capture_output=True, text=True, check=True)
    first, torchrun, *given = done.stdout.split("\0")[:-1]
    assert (first, torchrun) == ("--kill-on-bad-exit=1", "torchrun")
    asked = parse_args(given)
    assert (int(asked.nnodes), int(asked.nproc_per_node), asked.max_restarts) == (nodes, gpus, 0)
    assert (asked.rdzv_backend, asked.rdzv_endpoint, asked.rdzv_id) == ("c10d", "n1:29500", "7")
    assert (asked.module, asked.training_script, asked.training_script_args) == (True, "harness", WORDS)


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 4), (1, 8), (2, 4), (2, 8)])
def test_kubernetes_starts_one_torchrun_a_node(nodes: int, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = yaml.safe_load(printed("kubernetes", "--nodes", str(nodes), "--gpus", str(gpus), "--image", "a/b:c"))
    assert (job["kind"], job["spec"]["runtimeRef"]) == ("TrainJob", {"name": "torch-distributed"})
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["image"]) == (nodes, gpus, "a/b:c")
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": gpus}}
    # So Trainer tells each torchrun of the other torchruns.
    monkeypatch.setenv("PET_NNODES", str(trainer["numNodes"]))
    monkeypatch.setenv("PET_NPROC_PER_NODE", str(trainer["numProcPerNode"]))
    torchrun, *given = trainer["command"]
    asked = parse_args(given)
    assert torchrun == "torchrun"
    assert (int(asked.nnodes), int(asked.nproc_per_node), asked.max_restarts) == (nodes, gpus, 0)
    assert (asked.module, asked.training_script, asked.training_script_args) == (True, "harness", WORDS)


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_launching_a_launch_is_refused(kind: str) -> None:
    image = ["--image", "x"] if kind == "kubernetes" else []
    done = CliRunner().invoke(app, ["launch", kind, *image, "--", "launch", "slurm"])
    assert done.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["slurm", "--", "rnu", "scaling"], "error: harness has no command 'rnu'\n  did you mean 'run'?\n"),
        (["slurm", "--time", "2h", "--", *WORDS], "error: --time: '2h' is no limit that Slurm knows\n"),
        (["kubernetes", "--image", "x", "--", "rnu"], "error: harness has no command 'rnu'\n"),
        (
            ["kubernetes", "--image", "x", "--name", "My Job", "--", *WORDS],
            "error: --name: 'My Job' is no name that Kubernetes takes\n",
        ),
    ],
)
def test_what_would_fail_only_on_the_cluster_is_refused(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["launch", *arguments])
    assert done.exit_code == 2
    assert done.stderr.startswith(said)


@pytest.mark.parametrize("time", ["90", "90:00", "01:00:00", "2-12", "2-12:00:00", "UNLIMITED"])
def test_every_limit_of_slurm_is_taken(time: str) -> None:
    assert f"#SBATCH --time={time}\n" in printed("slurm", "--time", time)
