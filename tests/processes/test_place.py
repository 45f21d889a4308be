"""What a process of torchrun learns from its environment: its place, and the secret of the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.errors import MachineError, UsageError
from harness.processes import place, python
from harness.processes.place import Place
from tests.one_test import one_test

LONG = "a secret of 32 characters or more"
GIVEN = {
    "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "MASTER_ADDR": "a-host", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x",
}  # fmt: skip

Set = Callable[..., None]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Sets what torchrun sets, and more."""

    def started(**more: str) -> None:
        for name, value in {**GIVEN, **more}.items():
            monkeypatch.setenv(name, value)

    monkeypatch.delenv("HARNESS_SECRET", raising=False)
    return started


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the secret of a host is kept, which isn't there yet."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"harness-{os.geteuid()}"


def test_what_torchrun_has_set_is_not_left_to_later_processes(started: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the secret, which a measuring process would have to keep."""
    started(HARNESS_SECRET=LONG)
    monkeypatch.setattr("sys.argv", ["harness", "run", "x", "--ops", "a.py", "--ops=b.py", "--only", "*"])
    found = Place.from_environment()
    assert found == Place(
        3, 1, 4, 1, False, "a-host", 29501, LONG.encode(), python.own_root(), (Path("a.py"), Path("b.py"))
    )
    assert LONG not in repr(found)
    assert not {*GIVEN, "HARNESS_SECRET"} & os.environ.keys()


@one_test(
    "words",
    [["gate", "--", "--ops", "a.py"], ["run", "--operation", "a.py"], ["run", "--ops"], ["run", "--opsa.py"], []],
)
def test_what_is_no_option_names_no_code(words: list[str]) -> None:
    assert place.plugins_of(words) == ()


@pytest.mark.parametrize("secret", [None, "", "7", LONG[:31]])
def test_several_hosts_need_a_secret_and_an_error_says_how_to_give_it(started: Set, secret: str | None) -> None:
    """The job's id, which anybody can read, is none."""
    started(**({} if secret is None else {"HARNESS_SECRET": secret}))
    with pytest.raises(UsageError, match="HARNESS_SECRET") as caught:
        Place.from_environment()
    assert "harness launch" in caught.value.advice


def test_a_variable_that_torchrun_has_not_set_is_named(started: Set) -> None:
    started(LOCAL_WORLD_SIZE="")
    with pytest.raises(UsageError, match="LOCAL_WORLD_SIZE is ''"):
        Place.from_environment()


def test_processes_of_one_host_share_a_secret_without_any_setting(started: Set, folder: Path) -> None:
    def one(_: int) -> bytes:
        return place._kept(folder)

    with ThreadPoolExecutor(8) as pool:
        found = {*pool.map(one, range(8))}
    assert len(found) == 1
    started(LOCAL_WORLD_SIZE="4")
    own = Place.from_environment()
    assert (own.secret, own.one_host, own.address) == (*found, True, "127.0.0.1")
    assert len(own.secret) == 64
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "secret").stat().st_mode & 0o077 == 0
    assert [*folder.iterdir()] == [folder / "secret"]


def opened(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)


def linked(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def readable(folder: Path) -> None:
    folder.mkdir(0o700)
    (folder / "secret").write_text(LONG)
    (folder / "secret").chmod(0o644)


def linked_secret(folder: Path) -> None:
    folder.mkdir(0o700)
    (folder.parent / "theirs").write_text(LONG)
    (folder / "secret").symlink_to(folder.parent / "theirs")


def short(folder: Path) -> None:
    folder.mkdir(0o700)
    (folder / "secret").touch(0o600)


def in_the_way(folder: Path) -> None:
    folder.write_text("")


@pytest.mark.parametrize("spoil", [opened, linked, readable, linked_secret, short, in_the_way])
def test_a_secret_that_another_user_may_know_is_not_taken(
    started: Set, folder: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(folder)
    started(LOCAL_WORLD_SIZE="4")
    with pytest.raises(MachineError) as caught:
        Place.from_environment()
    assert str(folder) in caught.value.message
    assert "HARNESS_SECRET" in caught.value.advice


def test_a_folder_of_another_user_is_not_private(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(0o700)
    assert place.is_private(folder)
    own = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: own + 1)
    assert not place.is_private(folder)
    assert not place.is_private(folder / "missing")
