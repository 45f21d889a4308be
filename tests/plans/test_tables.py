"""Tables on disk: whose they are, what replaces what, and damaged ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import kept, paths, plans
from harness.errors import UsageError
from harness.plans import Entry, PlanTable, TimedPlan
from tests.one_test import one_test

ENTRY = Entry(
    "op", "tuned", "float32", {"N": 8}, {"layout": "nhwc"}, (TimedPlan({"way": "a", "rows": 2}, 2.0, 1.0, 3.0),),
    "digest", "commit", "driver", "torch", "date", 5, 1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No table but what a test writes: the package's folder is empty, and so is the cache."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(paths, "data", lambda name: tmp_path / name)
    plans.forget()
    yield tmp_path
    plans.forget()


def test_a_name_of_a_device_makes_a_name_of_a_file() -> None:
    assert plans.file_name("NVIDIA H200") == "nvidia_h200.json"
    assert plans.file_name("NVIDIA RTX 6000 Ada / 48GB") == "nvidia_rtx_6000_ada_48gb.json"


def test_what_is_written_is_read_and_the_users_own_comes_first(folders: Path) -> None:
    device = plans.device_name("cpu")
    assert plans.entries("cpu") == ()
    bundled = plans.write(PlanTable(device, (ENTRY,)), folders / "plans" / plans.file_name(device))
    assert bundled == folders / "plans" / plans.file_name(device)
    assert plans.entries("cpu") == ((ENTRY,),)
    own = replace(ENTRY, source="another")
    assert plans.write(PlanTable(device, (own,))) == folders / "cache" / "plans" / plans.file_name(device)
    assert plans.entries("cpu") == ((own,), (ENTRY,))


@one_test("text", ["", "{}", "no json", '{"device": 3}', '{"schema": 99, "device": "x", "entries": []}'])
def test_a_table_that_cannot_be_read_is_none(text: str) -> None:
    kept.write(f"plans/{plans.file_name(plans.device_name('cpu'))}", text.encode())
    assert plans.entries("cpu") == ()


def test_a_table_of_another_device_with_that_file_name_is_none() -> None:
    device = plans.device_name("cpu")
    kept.write(f"plans/{plans.file_name(device)}", b'{"device": "%s", "entries": []}' % device.upper().encode())
    assert plans.entries("cpu") == ()


def test_a_later_search_replaces_the_entry_of_its_size_alone() -> None:
    other = replace(ENTRY, shape={"N": 4})
    later = replace(ENTRY, commit="later")
    assert plans.merged(PlanTable("x", (ENTRY, other)), [later]).entries == (other, later)
    choice = replace(ENTRY, choices={"layout": "nchw"})
    assert len(plans.merged(PlanTable("x", (ENTRY,)), [choice]).entries) == 2


def test_a_file_that_is_no_table_is_refused_before_it_is_overwritten(folders: Path) -> None:
    file = folders / "mine.json"
    assert plans.read(file, "x") == PlanTable("x")
    assert not file.exists(), "a search may end without a table"
    file.write_text("[]")
    with pytest.raises(UsageError, match="isn't a table of plans"):
        plans.read(file, "x")
    plans.write(PlanTable("y"), file)
    with pytest.raises(UsageError, match="is the table of y, this is x"):
        plans.read(file, "x")
    plans.write(PlanTable("x", schema=99), file)
    with pytest.raises(UsageError, match="another version"):
        plans.read(file, "x")


def test_a_table_that_could_not_be_kept_is_not_told_as_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves the table of before."""
    device = plans.device_name("cpu")
    assert plans.write(PlanTable(device, (ENTRY,)))
    monkeypatch.setattr(kept, "write", lambda *_: None)
    assert plans.write(PlanTable(device, (ENTRY, replace(ENTRY, shape={"N": 4})))) is None
