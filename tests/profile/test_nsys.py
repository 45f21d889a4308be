"""Nsight Systems: its command line, whether it can be used here, and what its failures mean."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import MachineError
from harness.profile import nsys, tools
from tests.one_test import one_test


def test_it_is_a_tool() -> None:
    assert tools()["nsys"] is nsys  # type: ignore[comparison-overlap]


def test_the_command_line() -> None:
    (command,) = nsys.commands(["python", "-m", "target"], Path("/runs/100%/nsys"))
    assert command == [
        "nsys",
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--capture-range=none",
        "--cuda-graph-trace=node",
        "--force-overwrite=true",
        "--export=sqlite",
        "--output=/runs/100%%/nsys",
        "python",
        "-m",
        "target",
    ]


def test_a_missing_nsys_is_refused(fake_nsys: Callable[[str], Path]) -> None:
    with pytest.raises(MachineError, match="isn't on the PATH") as caught:
        nsys.refuse()
    assert "CUDA toolkit" in caught.value.advice
    assert "harness profile torch" in caught.value.advice


@pytest.mark.parametrize("version", ["2021.5.3.28-9f5a1e2", "2022.3.4.34-133b775"])
def test_an_old_nsys_is_refused(fake_nsys: Callable[[str], Path], version: str) -> None:
    fake_nsys(f"echo 'NVIDIA Nsight Systems version {version}'")
    with pytest.raises(MachineError, match=rf"is version {version[:6]}; 2022\.4 or later is needed"):
        nsys.refuse()


@pytest.mark.parametrize("version", ["2022.4.2.1-df9881f", "2023.1.2.43-32377213v0", "2026.1.3.425-261338342291v0"])
def test_a_current_nsys_is_taken(fake_nsys: Callable[[str], Path], version: str) -> None:
    fake_nsys(f"echo 'NVIDIA Nsight Systems version {version}'")
    nsys.refuse()


def test_an_nsys_that_does_not_start_is_refused(fake_nsys: Callable[[str], Path]) -> None:
    program = fake_nsys("echo 'nsight-systems is not installed' >&2; exit 127")
    with pytest.raises(MachineError, match="tell a version: nsight-systems is not installed"):
        nsys.refuse()
    program.write_text("#!/no/such/shell\n")
    with pytest.raises(MachineError, match="doesn't run"):
        nsys.refuse()


@one_test(
    ("output", "message", "advice"),
    [
        ("unrecognised option '--cuda-graph-trace=node'", "too old", "2022.4"),
        (
            "Importer error status: The importer binary and its dependencies were not found.",
            "only a .qdstrm file remains",
            "QdstrmImporter --input-file=",
        ),
        (
            "Importer error status: Importation failed.\nImport Failed with unexpected exception",
            "couldn't import",
            "new",
        ),
        ("No CUDA events collected. Does the process use CUDA?", "no CUDA events", "driver"),
        ("WARNING: perf_event_paranoid is 4", "performance events", "kernel.perf_event_paranoid=2"),
        ("Failed to create '/tmp/nvidia/nsight_systems': Permission denied.", "temporary files", "TMPDIR"),
        ("ERR_NVGPUCTRPERM", "lacks a permission", "SYS_ADMIN"),
    ],
)
def test_a_known_failure_is_explained(output: str, message: str, advice: str) -> None:
    found = nsys.failure(f"Collecting data...\n{output}\n")
    assert isinstance(found, MachineError)
    assert message in found.message
    assert advice in found.advice


@pytest.mark.parametrize(
    "output",
    [
        "",
        "Collecting data...\nGenerating '/tmp/nsys-report-4279.qdstrm'\nGenerated:\n    /home/me/report.nsys-rep",
        "PermissionError: [Errno 13] Permission denied: '/data/weights'",
    ],
)
def test_any_other_failure_is_not_explained(output: str) -> None:
    assert nsys.failure(output) is None


def test_the_script_hands_its_arguments_on(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "scripts" / "nsys.sh"
    harness = tmp_path / "harness"
    harness.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 3\n')
    harness.chmod(0o755)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", str(script), *arguments], env=environment, capture_output=True, text=True, check=False
        )

    done = run("quick", "--only", "bias_add/naive/* x")
    assert (done.returncode, done.stdout) == (3, "profile\nnsys\nquick\n--only\nbias_add/naive/* x\n")
    assert run().returncode == 2
