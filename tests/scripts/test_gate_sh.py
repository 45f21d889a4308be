"""The shell script around the gate, with a fake in place of `harness`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gate.sh"
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Runs the script in an empty folder. `harness` prints its arguments; gates end with 3, calibrations write."""
    fake = tmp_path / "bin" / "harness"
    fake.parent.mkdir()
    lines = (
        "#!/bin/sh",
        'echo "$@"',
        '[ "$2" = calibrate ] || exit 3',
        "for last; do :; done",
        'echo 1 > "$last"',
        "[ ! -e stop ]",
    )
    fake.write_text("\n".join(lines) + "\n")
    fake.chmod(0o755)

    def run(*arguments: str, **environment: str) -> Done:
        path = f"{fake.parent}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", str(SCRIPT), *arguments],
            cwd=tmp_path,
            env={"PATH": path, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_the_exit_code_is_the_gate_s(gate: Callable[..., Done]) -> None:
    done = gate("origin/main")
    assert done.returncode == 3
    assert done.stdout == "gate ci --base origin/main --output reports/gate\n"


def test_scenarios_and_the_folder_can_be_chosen(gate: Callable[..., Done]) -> None:
    assert gate("main", "prelu", "my case.yaml", GATE_OUTPUT="a b").stdout == (
        "gate prelu my case.yaml --base main --output a b\n"
    )


def test_what_is_accepted_is_passed_on(gate: Callable[..., Done]) -> None:
    assert gate("main", GATE_ACCEPT="missing work").stdout.endswith("--accept missing --accept work\n")


def test_a_machine_without_noise_floors_is_calibrated_once(gate: Callable[..., Done], tmp_path: Path) -> None:
    gates = "gate ci --base main --output reports/gate --noise n.json\n"
    assert gate("main", GATE_NOISE="n.json").stdout == f"gate calibrate ci --base main --noise n.json.part\n{gates}"
    assert (tmp_path / "n.json").exists()
    assert gate("main", GATE_NOISE="n.json").stdout == gates


def test_half_of_a_calibration_is_not_kept(gate: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    assert gate("main", GATE_NOISE="n.json").returncode == 1
    assert not (tmp_path / "n.json").exists()


def test_without_a_base_there_is_nothing_to_compare_with(gate: Callable[..., Done]) -> None:
    done = gate()
    assert done.returncode != 0
    assert "usage: scripts/gate.sh BASE" in done.stderr
    assert done.stdout == ""
