"""Profilers that are on this machine, on a kernel whose bytes and time are known."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.model import Attachment, Case, Job
from harness.profile import _procedure

ELEMENTS = 2**26
COPY = Case("misaligned_copy", "tuned", "float32", (("N", ELEMENTS), ("F", 0), ("G", 0)), device="cuda")
UNFUSED = Case("softmax", "unfused", "float32", (("M", 2**12), ("N", 1024)), device="cuda")

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def found_by(tool: str, folder: Path) -> dict[str, Attachment]:
    jobs = [Job(COPY), Job(UNFUSED)]
    found = _procedure.profile(tool, jobs, device="cuda", plugins=[], folder=folder, told=lambda *_: None)
    assert [ran.status for ran in found.cases] == ["ok", "ok"]
    return {attachment.case: attachment for attachment in found.attachments}


@pytest.mark.skipif(shutil.which("ncu") is None, reason="Nsight Compute isn't on the PATH")
def test_counters_of_a_copy_and_of_several_kernels(tmp_path: Path) -> None:
    found = found_by("ncu", tmp_path)
    copy, unfused = found[COPY.id], found[UNFUSED.id]
    totals = dict(copy.values)
    assert totals["kernels"] == 1
    assert totals["read_bytes"] == pytest.approx(4 * ELEMENTS, rel=0.03)
    assert totals["written_bytes"] == pytest.approx(4 * ELEMENTS, rel=0.2)  # some may stay in the L2
    (kernel,) = copy.kernels
    values = dict(kernel.values)
    # Packs of 16 bytes: a request of a warp touches 16 sectors.
    assert values["load_sectors"] / values["load_requests"] == pytest.approx(16, rel=0.05)
    assert 0 < values["occupancy"] <= 1
    assert sum(value for name, value in values.items() if name.startswith("stall_")) == pytest.approx(1)
    assert any(name.startswith("pipe_") for name in values)
    assert values["registers"] >= 16
    assert dict(unfused.values)["kernels"] == 5
    assert len(unfused.kernels) == 5
