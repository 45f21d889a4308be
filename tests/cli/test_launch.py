"""What `harness launch` prints: scripts that a shell and a cluster can read, with one torchrun a node."""

from __future__ import annotations

import subprocess

import pytest
import yaml
from typer.testing import CliRunner

from harness.cli import app

WORDS = ["run", "scaling", "--only", "*world=16"]


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["launch", *arguments, "--", *WORDS], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_slurm_starts_one_torchrun_a_node() -> None:
    script = printed("slurm", "--nodes", "2", "--gpus", "8", "--partition", "fast")
    assert {f"#SBATCH --{line}" for line in ("nodes=2", "ntasks-per-node=1", "gpus-per-node=8", "partition=fast")} <= {
        *script.splitlines()
    }
    assert "--nnodes=2 --nproc-per-node=8 --max-restarts=0" in script
    assert script.endswith("-m harness run scaling --only '*world=16'\n")
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_kubernetes_starts_one_torchrun_a_node() -> None:
    job = yaml.safe_load(printed("kubernetes", "--nodes", "2", "--gpus", "8", "--image", "a/b:c"))
    assert (job["kind"], job["spec"]["runtimeRef"]) == ("TrainJob", {"name": "torch-distributed"})
    trainer = job["spec"]["trainer"]
    assert trainer["command"] == ["torchrun", "--max-restarts=0", "-m", "harness", *WORDS]
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["image"]) == (2, 8, "a/b:c")
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": 8}}


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_launching_a_launch_is_refused(kind: str) -> None:
    image = ["--image", "x"] if kind == "kubernetes" else []
    done = CliRunner().invoke(app, ["launch", kind, *image, "--", "launch", "slurm"])
    assert done.exit_code == 2
