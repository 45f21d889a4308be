"""`harness launch`: prints what a cluster starts to run a command of the harness on several hosts."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from harness.errors import UsageError, nearest

EXAMPLES = (
    "\b\nExamples:\n"
    "  harness launch slurm --nodes 2 -- run scaling > job.sh; sbatch job.sh\n"
    "  harness launch kubernetes --image NAME -- run scaling | kubectl create -f -"
)
_PORT = 29500
_MOST_RANKS = 1000
# Each of these has ASCII characters only, and none that a shell, a directive of sbatch or YAML takes for its own.
# Minutes, MM:SS, HH:MM:SS, and with days before a '-', as sbatch has them; and its words for no limit.
_TIME = re.compile(r"([0-9]{1,4}-)?[0-9]{1,7}(:[0-9]{2}){0,2}|UNLIMITED|INFINITE")
_PARTITIONS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,-]{0,199}")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,499}")

app = typer.Typer(
    help="Print a batch script, or a job for Kubernetes, that starts one torchrun a node. Nothing is started.",
    short_help="Print a job for Slurm or Kubernetes that starts torchrun.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Words = Annotated[
    list[str], typer.Argument(metavar="COMMAND...", help="The harness's command, after --, e.g. run scaling.")
]
Nodes = Annotated[int, typer.Option(min=1, max=_MOST_RANKS, metavar="N", help="How many hosts.")]
Gpus = Annotated[int, typer.Option("--gpus", min=1, max=64, metavar="N", help="GPUs of each host.")]


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
    _check("--time", time, _TIME, "is no limit that Slurm knows", "write HH:MM:SS, or D-HH:MM:SS")
    if partition is not None:
        advice = "write letters, digits, '_', '.' and '-', and ',' between several"
        _check("--partition", partition, _PARTITIONS, "is no name of a partition", advice)
    _check_command(ctx, words, nodes * gpus, files_are_here=True)
    typer.echo(slurm_script(words, nodes, gpus, time, partition), nl=False)


@app.command(epilog="Kubeflow's Trainer must be installed on the cluster.")
def kubernetes(
    ctx: typer.Context,
    words: Words,
    image: Annotated[str, typer.Option("--image", metavar="IMAGE", help="Image with the harness and torch.")],
    nodes: Nodes = 1,
    gpus: Gpus = 8,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the job.")] = "harness",
) -> None:
    """Print a TrainJob of Kubeflow's Trainer.

    Its runtime and the secret of its processes come with it. The report stays in the pod of rank 0 unless --output
    names a volume.
    """
    advice = "write small letters, digits and '-', a letter first, no '-' last, 63 characters at most"
    _check("--name", name, _NAME, "is no name that Kubernetes takes", advice)
    _check("--image", image, _IMAGE, "is no name of an image", "write it as docker pull takes it: HOST/NAME:TAG")
    _check_command(ctx, words, nodes * gpus, files_are_here=False)
    typer.echo(train_job(words, nodes, gpus, image, name), nl=False)


def _check(option: str, value: str, allowed: re.Pattern[str], fault: str, advice: str) -> None:
    if not allowed.fullmatch(value):
        raise UsageError(f"{option}: {value!r} {fault}", advice)


def _check_command(ctx: typer.Context, words: list[str], world: int, *, files_are_here: bool) -> None:
    """Raise UsageError for a command that would fail only on the cluster, and for more processes than can be led.

    files_are_here: whether the files that the command names are this machine's, and not those of an image.
    """
    if world > _MOST_RANKS:
        raise UsageError(
            f"{world} processes are more than {_MOST_RANKS}: one process holds a connection to each of them",
            "give fewer --nodes or --gpus",
        )
    if unfit := [word for word in words if not word.isprintable()]:
        raise UsageError(f"{unfit[0]!r} has a control character", "write the command in printable characters")
    if words[0] == "launch":
        raise UsageError("launch can't be launched", "name the command to run, e.g. run scaling")
    commands = getattr(ctx.find_root().command, "commands", {})
    if words[0] not in commands:
        raise UsageError(f"harness has no command '{words[0]}'", nearest(words[0], commands.keys() - {"launch"}))
    if files_are_here or not any(word.partition("=")[0] == "--resume" for word in words):
        parsed = commands[words[0]].make_context(words[0], words[1:], ctx.find_root())
        _check_scenarios(parsed.params, files_are_here)


def _check_scenarios(parsed: dict[str, Any], files_are_here: bool) -> None:
    """Raise UsageError for scenarios that don't exist, as far as that can be known here."""
    from harness import scenario

    # What the gate takes are scenarios if it has a base, else stored runs.
    names: Sequence[str] = parsed.get("scenarios") or (parsed.get("base") and parsed.get("arguments")) or ()
    scenario.find([name for name in names if files_are_here or not ("/" in name or name.endswith(".yaml"))])


def slurm_script(words: list[str], nodes: int, gpus: int, time: str, partition: str | None) -> str:
    """A script for sbatch with one task a node, which is a torchrun.

    It starts the Python that runs now, by its path: which commands PATH has is the business of the shell that submits.
    """
    chosen = f"#SBATCH --partition={partition}\n" if partition else ""
    python = shlex.quote(sys.executable)
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
set -eu
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
# The processes prove to each other that they know this, so that nobody else on the network can give them orders.
HARNESS_SECRET=$({python} -I -c 'import secrets; print(secrets.token_hex())')
export HARNESS_SECRET
# Each torchrun is told its number. If they agreed on numbers themselves, by --rdzv-backend=c10d, each would run what
# anybody on the network wrote for it, since they exchange pickles.
srun --export=ALL --kill-on-bad-exit=1 /bin/bash -c 'export PET_NODE_RANK=$SLURM_NODEID; exec "$@"' torchrun \\
  {python} -P -m torch.distributed.run \\
  --nnodes={nodes} --nproc-per-node={gpus} --max-restarts=0 \\
  --master-addr="${{nodes%%$'\\n'*}}" --master-port={_PORT} \\
  -m harness {shlex.join(words)}
"""


def train_job(words: list[str], nodes: int, gpus: int, image: str, name: str) -> str:
    """A TrainJob with one pod a node, which is a torchrun. Trainer tells torchrun by PET_* where the other pods are.

    It brings a runtime of its own, since only a runtime can mount memory in every version of Trainer.
    """
    from secrets import token_hex

    listed = "".join(f"      - {_quoted(word)}\n" for word in ("torchrun", "--max-restarts=0", "-m", "harness", *words))
    return f"""\
# kubectl delete trainjob/{name} trainingruntime/{name} secret/{name} removes all of this again.
apiVersion: v1
kind: Secret
metadata:
  name: {_quoted(name)}
# The processes prove to each other that they know this, so that nobody else on the network can give them orders.
stringData:
  HARNESS_SECRET: {_quoted(token_hex())}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata:
  name: {_quoted(name)}
spec:
  mlPolicy:
    numNodes: {nodes}
    torch: {{}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata:
            labels:
              trainer.kubeflow.org/trainjob-ancestor-step: trainer
          spec:
            # A run in which a case failed isn't begun again.
            backoffLimit: 0
            template:
              spec:
                restartPolicy: Never
                containers:
                - name: node
                  image: {_quoted(image)}
                  env:
                  - name: HARNESS_SECRET
                    valueFrom:
                      secretKeyRef:
                        name: {_quoted(name)}
                        key: HARNESS_SECRET
                  # NCCL shares memory there; a container has 64 MiB of it otherwise.
                  volumeMounts:
                  - name: memory
                    mountPath: /dev/shm
                volumes:
                - name: memory
                  emptyDir:
                    medium: Memory
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: {_quoted(name)}
spec:
  runtimeRef:
    apiGroup: trainer.kubeflow.org
    kind: TrainingRuntime
    name: {_quoted(name)}
  trainer:
    image: {_quoted(image)}
    numNodes: {nodes}
    numProcPerNode: {gpus}
    # One torchrun a node, which restarts nothing: the harness starts and ends measuring processes itself.
    command:
{listed}    resourcesPerNode:
      limits:
        nvidia.com/gpu: {gpus}
"""


def _quoted(text: str) -> str:
    """The text as YAML has it between double quotes, which is JSON's way but for characters beyond ASCII."""
    import json

    return json.dumps(text, ensure_ascii=False)
