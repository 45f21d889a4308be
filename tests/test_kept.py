"""The cache folder is this user's alone, or isn't used: what lies there is executed."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from harness import kept, limits, paths
from harness.environment import survey
from harness.model import ComputePoint, Limits, Machine, StreamPoint

LIMITS = Limits((StreamPoint(2**20, 2**20, 1e-4, "memcpy", is_copy=True),))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, which isn't made yet, nor is the folder above it."""
    folder = tmp_path / "above" / "cache"
    monkeypatch.setenv("HARNESS_CACHE", str(folder))
    kept._warn.cache_clear()
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o277])
def test_what_is_made_is_for_this_user_alone_whatever_the_umask_is(cache: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        kept.write("kernels/a", b"code")
    finally:
        os.umask(before)
    assert [mode(folder) for folder in (cache.parent, cache, cache / "kernels")] == [0o700] * 3
    assert mode(cache / "kernels" / "a") & 0o077 == 0
    assert kept.read("kernels/a") == b"code"
    assert [file.name for file in (cache / "kernels").iterdir()] == ["a"]


def opened_to_others(path: Path) -> None:
    path.chmod(mode(path) | stat.S_IWGRP)


def opened_to_all(path: Path) -> None:
    path.chmod(mode(path) | stat.S_IWOTH)


@pytest.mark.parametrize("spoil", [opened_to_others, opened_to_all])
@pytest.mark.parametrize("place", [".", "kernels"])
def test_a_folder_that_others_can_write_is_not_used_and_that_is_said_once(
    cache: Path, capsys: pytest.CaptureFixture[str], place: str, spoil: Callable[[Path], None]
) -> None:
    kept.write("kernels/a", b"code")
    spoil(cache / place)
    kept.write("kernels/a", b"other")
    assert [kept.read("kernels/a") for _ in range(2)] == [None, None]
    assert (cache / "kernels" / "a").read_bytes() == b"code"
    told = capsys.readouterr().err
    assert told.count("warning: the cache folder isn't used: ") == 1
    assert f"{cache / place} can be written by other users (mode 7" in told
    assert "HARNESS_CACHE" in told


@pytest.mark.parametrize("spoil", [opened_to_others, opened_to_all])
def test_an_entry_that_others_can_write_is_made_anew(cache: Path, spoil: Callable[[Path], None]) -> None:
    kept.write("kernels/a", b"code")
    spoil(cache / "kernels" / "a")
    assert kept.read("kernels/a") is None
    kept.write("kernels/a", b"code")
    assert kept.read("kernels/a") == b"code"


@pytest.mark.parametrize("place", [".", "kernels", "kernels/a"])
def test_what_belongs_to_another_user_is_not_used(
    cache: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept.write("kernels/a", b"code")
    foreign = (cache / place).stat().st_ino
    own, own_of = Path.stat, os.fstat

    def of_another(found: os.stat_result) -> os.stat_result:
        fields = list(found)
        fields[stat.ST_UID] += found.st_ino == foreign
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "stat", lambda path, **more: of_another(own(path, **more)))
    monkeypatch.setattr("harness.kept.os.fstat", lambda descriptor: of_another(own_of(descriptor)))
    assert kept.read("kernels/a") is None
    assert ("belongs to another user" in capsys.readouterr().err) == (place != "kernels/a")


@pytest.mark.parametrize("made", ["link", "pipe"])
def test_an_entry_that_is_no_file_is_none_and_is_replaced(cache: Path, tmp_path: Path, made: str) -> None:
    kept.write("kernels/a", b"code")
    entry, outside = cache / "kernels" / "a", tmp_path / "outside"
    entry.unlink()
    outside.write_bytes(b"mine")
    if made == "link":
        entry.symlink_to(outside)
    else:
        os.mkfifo(entry)
    assert kept.read("kernels/a") is None
    kept.write("kernels/a", b"code")
    assert kept.read("kernels/a") == b"code"
    assert outside.read_bytes() == b"mine"


def test_a_cache_that_cannot_be_made_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for chosen in ("/proc/none", str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        monkeypatch.setenv("HARNESS_CACHE", chosen)
        kept.write("kernels/a", b"code")
        assert kept.read("kernels/a") is None
        assert kept.place("kernels/a") is None


def test_a_full_disk_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.write("kernels/a", b"code")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    kept.write("kernels/b", b"code")
    assert [file.name for file in (cache / "kernels").iterdir()] == ["a"]


def test_kept_limits_of_others_or_that_cannot_be_true_are_none(cache: Path, machine: Machine) -> None:
    limits.remember(machine, LIMITS)
    [file] = cache.iterdir()
    assert limits.recall(machine) is not None
    file.chmod(0o666)
    assert limits.recall(machine) is None
    for wrong in (StreamPoint(2**20, 2**20, 0.0, "add"), StreamPoint(0, 0, 1e-4, "add")):
        limits.remember(machine, Limits((*LIMITS.points, wrong)))
        assert limits.recall(machine) is None
    limits.remember(machine, Limits(LIMITS.points, compute=(ComputePoint("float32", 1, 1, 1, 0.0, "matmul"),)))
    assert limits.recall(machine) is None
    file.write_text("[" * 100_000)
    file.chmod(0o600)
    assert limits.recall(machine) is None


def test_the_environment_says_why_a_cache_is_not_used(cache: Path) -> None:
    paths.cache().chmod(0o777)
    [fact] = [fact for _, facts in survey().sections for fact in facts if fact.name == "cache"]
    assert fact.advice.startswith(f"isn't used: {cache} can be written by other users (mode 777)")


def test_why_a_folder_can_keep_nothing(cache: Path) -> None:
    assert kept.obstacle("plans", "tune") == ""
    assert not list((cache / "plans").iterdir())
    (cache / "tune").rmdir()
    (cache / "tune").touch()
    assert kept.obstacle("plans") == ""
    assert kept.obstacle("plans", "tune") == f"{cache / 'tune'} can't be written: Not a directory"
    opened_to_all(cache)
    assert kept.obstacle() == f"{cache} can be written by other users (mode 702)"


def test_a_full_disk_can_keep_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> BinaryIO:
        return Path("/dev/full").open("wb")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert kept.obstacle() == f"{cache} can't be written: No space left on device"
