"""What `harness launch` prints: scripts that a shell and a cluster can read, with one torchrun a node."""

from __future__ import annotations

import json
import re
import string
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from harness.cli import app
from tests.one_test import one_test
from tests.properties import bounded
from tests.rare import rare

SCHEMA = Path(__file__).parent / "trainjob.schema.yaml"
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


PYTHON = """\
#!/bin/bash
[ "$1" = -I ] && exec {python} "$@"
printf '%s\\0' "$PET_NODE_RANK" "$HARNESS_SECRET" "$@"
"""
"""A Python that writes down what it is told to start, and computes."""


def started(script: str, folder: Path, **more: str) -> list[str]:
    """What the script starts on the second node: its number, its secret, and the arguments of Python.

    Only Slurm's commands are on the PATH, beside the system's.
    """
    commands = folder / "slurm"
    commands.mkdir()
    (commands / "scontrol").write_text("#!/bin/bash\nprintf 'n%d\\n' 1 2\n")
    (commands / "srun").write_text(
        '#!/bin/bash\n[ "$1 $2" = "--export=ALL --kill-on-bad-exit=1" ] && shift 2 && SLURM_NODEID=1 exec "$@"\n'
    )
    for stub in commands.iterdir():
        stub.chmod(0o755)
    environment = {
        "PATH": f"{commands}:/usr/bin:/bin",
        "SLURM_JOB_ID": "job-77",
        "SLURM_JOB_NODELIST": "n[1-2]",
        **more,
    }
    done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Python that prints the script, which lies in a folder whose name a shell would cut in two."""
    file = tmp_path / "a folder" / "python"
    file.parent.mkdir()
    file.write_text(PYTHON.format(python=sys.executable))
    file.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(file))
    return file


@pytest.mark.parametrize(("nodes", "gpus"), [rare(1, 4), (2, 8)])
def test_slurm_starts_one_torchrun_a_node(
    nodes: int, gpus: int, tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script is run by a shell whose srun does what it is told for one node, without torchrun on its PATH."""
    script = printed("slurm", "--nodes", str(nodes), "--gpus", str(gpus), "--partition", "fast")
    resources = {f"nodes={nodes}", "ntasks-per-node=1", f"gpus-per-node={gpus}", "partition=fast"}
    assert {f"#SBATCH --{line}" for line in resources} <= {*script.splitlines()}
    number, _, *given = started(script, tmp_path)
    assert given[:3] == ["-P", "-m", "torch.distributed.run"]
    monkeypatch.setenv("PET_NODE_RANK", number)
    asked = parse_args(given[3:])
    assert (int(asked.nnodes), int(asked.nproc_per_node), asked.max_restarts) == (nodes, gpus, 0)
    # Not c10d, by which a torchrun unpickles what anybody on the network has written.
    assert (asked.rdzv_backend, asked.node_rank, asked.master_addr, asked.master_port) == ("static", 1, "n1", 29500)
    assert (asked.module, asked.training_script, asked.training_script_args) == (True, "harness", WORDS)


@pytest.mark.slow  # test_a_pod_has_memory_for_nccl_and_the_secret_of_its_job
def test_each_job_of_slurm_has_a_secret_that_stands_nowhere(tmp_path: Path, python: Path) -> None:
    script = printed("slurm", "--nodes", "2")
    found = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        _, secret, *given = started(script, tmp_path / name, HARNESS_SECRET="of the shell")
        assert re.fullmatch("[0-9a-f]{64}", secret)
        assert secret not in script
        assert not [word for word in given if secret in word or "job-77" in word]
        found.append(secret)
    assert found[0] != found[1]


@cache
def of_a_job() -> Any:
    return yaml.safe_load(SCHEMA.read_text())


def documents(*arguments: str) -> dict[str, Any]:
    """What is printed for Kubernetes, by its kind, after it was held against the schema."""
    found = {document["kind"]: document for document in yaml.safe_load_all(printed("kubernetes", *arguments))}
    for document in found.values():
        jsonschema.validate(document, of_a_job())
    assert [*found] == ["Secret", "TrainingRuntime", "TrainJob"]
    return found


@pytest.mark.slow  # the test of Slurm has torchrun's words, the next one a pod
@pytest.mark.parametrize(("nodes", "gpus"), [rare(1, 4), (2, 8)])
def test_kubernetes_starts_one_torchrun_a_node(nodes: int, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = documents("--nodes", str(nodes), "--gpus", str(gpus), "--image", "a/b:c", "--name", "mine")
    job = found["TrainJob"]
    names = {document["metadata"]["name"] for document in found.values()}
    assert names == {"mine"} == {job["spec"]["runtimeRef"]["name"]}
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


def test_a_pod_has_memory_for_nccl_and_the_secret_of_its_job() -> None:
    found = [documents("--image", "x") for _ in range(2)]
    [replicated] = found[0]["TrainingRuntime"]["spec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {"name": mounted["/dev/shm"], "emptyDir": {"medium": "Memory"}} in pod["volumes"]
    [variable] = container["env"]
    reference = variable["valueFrom"]["secretKeyRef"]
    assert (variable["name"], reference["name"]) == ("HARNESS_SECRET", found[0]["Secret"]["metadata"]["name"])
    secrets = {one["Secret"]["stringData"][reference["key"]] for one in found}
    assert len(secrets) == 2
    assert all(re.fullmatch("[0-9a-f]{64}", secret) for secret in secrets)
    assert not [secret for secret in secrets if secret in json.dumps(found[0]["TrainJob"])]


def test_words_are_in_yaml_what_they_are_in_the_shell() -> None:
    words = ["run", "scaling", "--only", "*/\u00e4\U0001f600'\"\\ : #[&*!|>%@`", "--output", "{a: b}"]
    done = CliRunner().invoke(app, ["launch", "kubernetes", "--image", "x", "--", *words], catch_exceptions=False)
    [*_, job] = yaml.safe_load_all(done.stdout)
    assert job["spec"]["trainer"]["command"][4:] == words


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
        (
            ["slurm", "--partition", "x\ncmd", "--", *WORDS],
            "error: --partition: 'x\\ncmd' is no name of a partition\n",
        ),
        (["slurm", "--time", "\u0661:00:00", "--", *WORDS], "error: --time: '\u0661:00:00' is no limit"),
        (["kubernetes", "--image", "x\n", "--", *WORDS], "error: --image: 'x\\n' is no name of an image\n"),
        (["slurm", "--", "run", "sclaing"], "error: sclaing: no scenario file or folder, and none bundled, has this"),
        (["kubernetes", "--image", "x", "--", "run", "sclaing"], "error: sclaing: no scenario file or folder"),
        (["slurm", "--", "gate", "--base", "main", "sclaing"], "error: sclaing: no scenario file or folder"),
        (["slurm", "--", "run", "--resume", "/nowhere"], "error: /nowhere: holds no run"),
        (["slurm", "--nodes", "100", "--gpus", "11", "--", *WORDS], "error: 1100 processes are more than 1000"),
        (["slurm", "--", *WORDS, "x\x1b[2J"], "error: 'x\\x1b[2J' has a control character\n"),
        (["slurm", "--", *WORDS, "x\udcff"], "error: 'x\\udcff' has a control character\n"),
        (["slurm", "--gpus", "100000", "--", *WORDS], "Usage: "),
        (["slurm", "--", "run", "scaling", "--opps", "x"], "Usage: "),
    ],
)
def test_what_would_fail_only_on_the_cluster_is_refused(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["launch", *arguments])
    assert done.exit_code == 2
    assert done.stderr.startswith(said)
    assert done.stdout == ""


@pytest.mark.parametrize("words", [["/data/mine.yaml"], ["mine.yaml"], ["--resume", "/data/run"]])
def test_files_of_an_image_are_not_looked_for_here(words: list[str]) -> None:
    command = ["launch", "kubernetes", "--image", "x", "--", "run", *words]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output


@cache
def lines_of_a_script(option: str) -> int:
    return len(printed("slurm", f"{option}=1").split("\n"))


@pytest.mark.slow  # test_what_would_fail_only_on_the_cluster_is_refused has such options
@given(
    st.sampled_from(["--partition", "--time"]),
    st.text(max_size=12) | st.text("0123456789:-,.x\n #$`;&|'\"\\", max_size=12),
)
@bounded
def test_whatever_an_option_is_given_a_script_has_no_line_more(option: str, value: str) -> None:
    done = CliRunner().invoke(app, ["launch", "slurm", f"{option}={value}", "--", *WORDS], catch_exceptions=False)
    if done.exit_code == 0:
        [line] = [line for line in done.stdout.splitlines() if line.startswith(f"#SBATCH {option}=")]
        assert set(line.partition("=")[2]) <= set(string.ascii_letters + string.digits + "_.,:-")
        assert len(done.stdout.split("\n")) == lines_of_a_script(option)
    else:
        assert (done.exit_code, done.stdout) == (2, "")


@one_test("time", ["90", "90:00", "01:00:00", "2-12", "2-12:00:00", "UNLIMITED"])
def test_every_limit_of_slurm_is_taken(time: str) -> None:
    assert f"#SBATCH --time={time}\n" in printed("slurm", "--time", time)
