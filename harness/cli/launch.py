"""`harness launch`: prints what a cluster starts to run a command of the harness on several hosts."""

from __future__ import annotations

import re
import shlex
from typing import Annotated

import typer

from harness.errors import UsageError, nearest

EXAMPLES = (
    "\b\nExamples:\n"
    "  harness launch slurm --nodes 2 -- run scaling > job.sh; sbatch job.sh\n"
    "  harness launch kubernetes --image NAME -- run scaling | kubectl create -f -"
)
_PORT = 29500
# Minutes, MM:SS, HH:MM:SS, and with days before a '-', as sbatch has them; and its words for no limit.
_TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}|UNLIMITED|INFINITE")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")

app = typer.Typer(
    help="Print a batch script, or a job for Kubernetes, that starts one torchrun a node. Nothing is started.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
)

Words = Annotated[
    list[str], typer.Argument(metavar="COMMAND...", help="The harness's command, after --, e.g. run scaling.")
]
Nodes = Annotated[int, typer.Option(min=1, metavar="N", help="How many hosts.")]
Gpus = Annotated[int, typer.Option("--gpus", min=1, metavar="N", help="GPUs of each host.")]


@app.command(epilog="The scenario's `world` says how many of these GPUs work on a case together.")
def slurm(
    ctx: typer.Context,
    words: Words,
    nodes: Nodes = 1,
    gpus: Gpus = 8,
    time: Annotated[str, typer.Option(metavar="HH:MM:SS", help="Limit of the job.")] = "01:00:00",
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Partition of the cluster.")] = None,
) -> None:
    """Print a batch script for Slurm's sbatch. The checkout, and its Python, must lie where all hosts see them."""
    if not _TIME.fullmatch(time):
        raise UsageError(f"--time: '{time}' is no limit that Slurm knows", "write HH:MM:SS, or D-HH:MM:SS")
    typer.echo(slurm_script(_checked(ctx, words), nodes, gpus, time, partition), nl=False)


@app.command(epilog="Kubeflow's Trainer must be installed on the cluster, with its runtime torch-distributed.")
def kubernetes(
    ctx: typer.Context,
    words: Words,
    image: Annotated[str, typer.Option(metavar="IMAGE", help="Image with the harness and torch.")],
    nodes: Nodes = 1,
    gpus: Gpus = 8,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the job.")] = "harness",
) -> None:
    """Print a TrainJob of Kubeflow's Trainer. The report stays in the pod of rank 0 unless --output names a volume."""
    if not _NAME.fullmatch(name):
        advice = "write small letters, digits and '-', a letter first, no '-' last, 63 characters at most"
        raise UsageError(f"--name: '{name}' is no name that Kubernetes takes", advice)
    typer.echo(train_job(_checked(ctx, words), nodes, gpus, image, name), nl=False)


def _checked(ctx: typer.Context, words: list[str]) -> list[str]:
    """The words. Raises UsageError unless they begin with a command: else the job would fail only on the cluster."""
    if words[0] == "launch":
        raise UsageError("launch can't be launched", "name the command to run, e.g. run scaling")
    commands = getattr(ctx.find_root().command, "commands", {})
    if words[0] not in commands:
        raise UsageError(f"harness has no command '{words[0]}'", nearest(words[0], commands.keys() - {"launch"}))
    return words


def slurm_script(words: list[str], nodes: int, gpus: int, time: str, partition: str | None) -> str:
    """A script for sbatch with one task a node, which is a torchrun."""
    chosen = f"#SBATCH --partition={partition}\n" if partition else ""
    return f"""\
#!/bin/bash
#SBATCH --job-name=harness
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
#SBATCH --time={time}
{chosen}
# One torchrun a node. Its first process leads the run; the harness starts and ends measuring processes itself, so
# torchrun restarts none. Variables such as NCCL_NVLS_ENABLE reach them all. NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME
# name the network between the hosts. Without them Gloo, which starts every group, takes the network of the host's name.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit=1 torchrun \\
  --nnodes={nodes} --nproc-per-node={gpus} --max-restarts=0 \\
  --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head:{_PORT}" \\
  -m harness {shlex.join(words)}
"""


def train_job(words: list[str], nodes: int, gpus: int, image: str, name: str) -> str:
    """A TrainJob with one pod a node, which is a torchrun. Trainer tells torchrun by PET_* where the other pods are."""
    import json

    listed = "".join(
        f"      - {json.dumps(word)}\n" for word in ("torchrun", "--max-restarts=0", "-m", "harness", *words)
    )
    return f"""\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: {json.dumps(name)}
spec:
  runtimeRef:
    name: torch-distributed
  trainer:
    image: {json.dumps(image)}
    numNodes: {nodes}
    numProcPerNode: {gpus}
    # One torchrun a node, which restarts nothing: the harness starts and ends measuring processes itself.
    command:
{listed}    resourcesPerNode:
      limits:
        nvidia.com/gpu: {gpus}
"""
