"""Processes of harness 0.1.0: a recorded conversation with one, and the one of the last commit before version 2."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from harness.errors import MachineError
from harness.limits import Needs
from harness.model import Case, Job, Limits, Timing, Traffic
from harness.processes import messages, version1
from harness.processes.supervisor import Workers

CHECKOUT = Path(messages.__file__).parents[2]
LAST_OF_VERSION_1 = "60e2245865e4d210df5c644d2c53a8f69c932927"
RECORDED = Path(__file__).parent / "protocol1.jsonl"
"""What was said to a process of that commit: a line for each question with its replies."""

REPLAY = f"""
recorded = [json.loads(line) for line in Path({str(RECORDED)!r}).read_text().splitlines()]
[replies] = [entry["replies"] for entry in recorded if entry["question"] == question]
for reply in replies:
    say(**reply)
"""

TIMING = Timing(precision=0.5, max_time=0.02, timeout=60.0)
DROPOUT = Job(Case("dropout", "eager", "float32", (("N", 64),), (("p", 0.5),), device="cpu"), TIMING)
BATCH_NORM = Job(
    Case(
        "bn_add_relu",
        "eager",
        "float32",
        tuple(zip("NCHW", (2, 3, 4, 5), strict=True)),
        (("layout", "nhwc"),),
        1,
        "cpu",
    ),
    TIMING,
)
GONE = Job(Case("gone", "eager", "float32", (("N", 64),), device="cpu"), TIMING)
UNSAYABLE = replace(DROPOUT, case=replace(DROPOUT.case, choices=(("p", 0.125),)))


@pytest.fixture
def old(revision: Callable[..., Path]) -> Path:
    return revision(REPLAY, module="worker.py", protocol=1)


def test_it_is_asked_in_its_own_words_and_understood(old: Path) -> None:
    heard: list[tuple[str, float]] = []
    with Workers("cpu", root=old) as workers:
        surveyed = workers.survey([Path("old.yaml"), Path("new.yaml")], [DROPOUT, BATCH_NORM, UNSAYABLE, GONE])
        assert surveyed.known == (DROPOUT.case.id, BATCH_NORM.case.id)
        assert surveyed.files == ((replace(DROPOUT, timing=Timing()),), None)

        found = workers.measure(DROPOUT, 3)
        assert (found.case, found.status, found.process) == (DROPOUT.case, "ok", 3)
        assert found.time
        assert found.traffic == Traffic(264, 320)

        limits = workers.limits(Needs(), lambda text, share: heard.append((text, share)))
        assert limits.peak
        assert [share for _, share in heard] == [0.0, 0.5]
        again = workers.limits_again(limits, lambda *_: None)
        assert again.points == limits.points
        assert again.drift is not None


def test_what_it_cannot_be_asked_is_refused(old: Path) -> None:
    with (
        Workers("cpu", root=old) as workers,
        pytest.raises(MachineError, match=r"can't be asked for dropout/.*p=0\.125"),
    ):
        workers.measure(UNSAYABLE)


def test_ranks_are_devices_where_they_were_not_all_on_the_first_one() -> None:
    together = Job(Case("all_reduce", "gloo", "float32", (("N", 8),), world=2, device="cpu"), TIMING)
    asked: Any = json.loads(version1.encode(messages.Measure(together)))
    assert asked["job"]["ranks"] == 2
    assert "world" not in asked["job"]["case"]
    with pytest.raises(MachineError):
        version1.encode(messages.Measure(replace(together, case=replace(together.case, device="cuda"))))


@pytest.mark.parametrize("line", [b"[]\n", b"{}\n", b'{"kind": "result"}\n', b"no JSON\n"])
def test_what_is_no_reply_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        version1.decode(line, messages.Measure(DROPOUT, number=1))


def test_the_last_commit_of_version_1_measures_a_case(tmp_path: Path) -> None:
    shown = [
        "git",
        "-C",
        str(CHECKOUT),
        "archive",
        "--format=zip",
        LAST_OF_VERSION_1,
        "harness",
        "kernels",
        "scenarios",
    ]
    try:
        archive = subprocess.run(shown, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this checkout has no git history")
    with ZipFile(io.BytesIO(archive)) as packed:
        packed.extractall(tmp_path)
    with Workers("cpu", root=tmp_path) as workers:
        known = workers.survey([tmp_path / "scenarios" / "dropout.yaml"], [DROPOUT, BATCH_NORM, GONE])
        assert known.known == (DROPOUT.case.id, BATCH_NORM.case.id)
        [jobs] = known.files
        assert jobs
        assert all(job.case.choices == (("p", 0.1),) for job in jobs)
        found = workers.measure(BATCH_NORM, 1)
    assert (found.case, found.status, found.process) == (BATCH_NORM.case, "ok", 1)
    assert found.time
    assert found.work
    assert found.work.flops[0][0] == "float32"


def test_limits_of_version_2_are_said_as_far_as_version_1_goes() -> None:
    line: Any = json.loads(version1.encode(messages.MeasureLimitsAgain(Limits())))
    assert line == {"kind": "ceilings", "start": {"points": [], "end": []}}
