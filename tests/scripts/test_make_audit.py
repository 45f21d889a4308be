"""The page of the audit: written only from runs that have counters."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import store
from harness.model import Attachment, KernelProfile

ROOT = Path(__file__).parent.parent.parent
RUN = ROOT / "reports" / "h200" / "copy"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("make_audit", ROOT / "scripts" / "make_audit.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_audit"] = module
    spec.loader.exec_module(module)
    return module


SCRIPT = script()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reports of one machine with one run, which has no counters yet."""
    folder = tmp_path / "reports" / "h200"
    (folder / "copy").mkdir(parents=True)
    for name in (store.HEADER, store.RESULTS):
        shutil.copy(RUN / name, folder / "copy" / name)
    monkeypatch.setattr(SCRIPT, "REPORTS", tmp_path / "reports")
    return folder


def profile(folder: Path, factor: float, started: str = "") -> str:
    """Add counters to the run's largest timed case: the bytes read are `factor` times the declared ones."""
    run = store.load(folder)
    timed = [r for r in run.results if r.time and r.work and r.traffic and r.case.variant == "stream"]
    result = max(timed, key=lambda r: r.work.moved if r.work else 0)
    assert result.traffic
    bytes_ = (("read_bytes", result.traffic.read * factor), ("written_bytes", float(result.traffic.written)))
    values = (("kernels", 1.0), ("time", result.time or 0.0), *bytes_)
    store.attach(folder, [Attachment(result.case.id, "ncu", values, (), (KernelProfile("copy", 1.0, bytes_),))])
    if started:
        header = folder / store.HEADER
        header.write_text(header.read_text().replace(run.header.started, started))
    return result.case.id


def test_without_counters_there_is_no_page_and_that_is_said(machine: Path, capsys: Any) -> None:
    for arguments in (["--check"], []):
        assert SCRIPT.main(arguments) == 0
        told = capsys.readouterr().out
        assert told.startswith("reports/h200/audit.md: not written, since no run of this machine has counters")
    assert not (machine / "audit.md").exists()


def test_the_page_is_written_and_checked(machine: Path, capsys: Any) -> None:
    case = profile(machine / "copy", 1.1)
    assert SCRIPT.main(["--check"]) == 1
    assert "audit.md: differs from the runs; run scripts/make_audit.py" in capsys.readouterr().out
    assert not (machine / "audit.md").exists()
    assert SCRIPT.main([]) == 0
    assert SCRIPT.main(["--check"]) == 0
    text = (machine / "audit.md").read_text()
    assert text.startswith("# Bytes by counters: NVIDIA H200\n\n0 of 1 case within 3% of the bytes that they declare")
    assert f"- `{case}`: 10.00% more read than declared" in text
    assert "\n## copy\n" in text
    assert "Runs: [copy](copy/report.md) of " in text
    (machine / "audit.md").write_text(f"{text}.")
    assert SCRIPT.main(["--check"]) == 1


def test_a_page_whose_counters_are_gone_is_stale(machine: Path, capsys: Any) -> None:
    (machine / "audit.md").write_text("old")
    assert SCRIPT.main(["--check"]) == 1
    assert "no run of this machine has counters any more" in capsys.readouterr().out
    assert (machine / "audit.md").read_text() == "old"


def test_the_newest_run_of_a_case_counts(machine: Path) -> None:
    shutil.copytree(machine / "copy", machine / "again")
    profile(machine / "copy", 1.0)
    profile(machine / "again", 1.5, "2000-01-01T00:00:00+00:00")
    page = SCRIPT.audit(machine)
    assert "1 of 1 case within 3%" in page
    assert "[copy]" in page
    assert "[again]" not in page


@pytest.mark.slow
def test_the_committed_pages_are_as_the_runs_have_them() -> None:
    assert SCRIPT.main(["--check"]) == 0, "run scripts/make_audit.py"
