"""One command at a time on a device: who waits for whom, and what a kill leaves."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import devices
from harness.processes import lock

HOLDER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from harness.processes import lock

lock._FOLDERS = (Path(sys.argv[1]),)
sys.argv = ["harness", "gate", "--base", "main", "ci\\x1b[31m"]
with lock.held(SimpleNamespace(hardware=("GPU a", "GPU b")), [0, 1]):
    print("holds", flush=True)
    sys.stdin.read()
"""


def device(*names: str) -> Any:
    return SimpleNamespace(hardware=names)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the locks, which stands for the machine's."""
    place = tmp_path / "locks"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(lock, "_FOLDERS", (place,))
    monkeypatch.delenv(lock.HOLDS, raising=False)
    return place


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds GPU a and GPU b until its input ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "holds\n"
        yield process
        process.kill()


def is_free(file: Path) -> bool:
    with file.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_another_command_waits_and_is_told_for_whom(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with holder(folder) as process:
        real = fcntl.flock

        def flock(file: int, how: int) -> None:
            if how == fcntl.LOCK_EX:  # this one waits now, and was told so
                assert process.stdin
                process.stdin.close()
            real(file, how)

        monkeypatch.setattr(fcntl, "flock", flock)
        with lock.held(device("GPU 0", "GPU b"), [1]):
            assert not is_free(folder / "harness-GPU_b.lock")
        assert is_free(folder / "harness-GPU_b.lock")
    told = capsys.readouterr().err
    assert told.startswith(f"waiting for GPU b: process {process.pid} measures on it since ")
    assert "(harness gate --base main ci" in told
    assert "\x1b" not in told
    assert told.count("\n") == 1


def test_the_lock_of_a_killed_holder_is_free(folder: Path, capsys: Any) -> None:
    with holder(folder) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with lock.held(device("GPU a", "GPU b"), [0, 1]):
            pass
    assert capsys.readouterr().err == ""


@pytest.mark.slow  # test_locks_are_taken_in_one_order takes such devices
def test_devices_that_nobody_holds_need_no_waiting(folder: Path, capsys: Any) -> None:
    with holder(folder), lock.held(device("GPU a", "GPU c"), [1]):
        assert not is_free(folder / "harness-GPU_c.lock")
    assert capsys.readouterr().err == ""


def test_locks_are_taken_in_one_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands that see the same devices in two orders would else wait for each other."""
    taken: list[str] = []
    real = lock._locked

    def locked(name: str) -> int | None:
        taken.append(name)
        return real(name)

    monkeypatch.setattr(lock, "_locked", locked)
    for names in (("b", "a", "c"), ("c", "a", "b")):
        with lock.held(device(*names), range(3)):
            pass
    assert taken == ["a", "b", "c"] * 2


def test_a_holder_and_what_it_starts_do_not_wait_for_the_holder(folder: Path) -> None:
    one = device("GPU a")
    with lock.held(one, [0]), lock.held(one, [0]):
        inner = f"import sys; sys.argv[1:] = [{str(folder)!r}];" + HOLDER.replace("sys.stdin.read()", "pass")
        done = subprocess.run(
            [sys.executable, "-c", inner.replace('"GPU a", "GPU b"', '"GPU a",').replace("[0, 1]", "[0]")],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == ("holds\n", "")
        assert not is_free(folder / "harness-GPU_a.lock")
    assert is_free(folder / "harness-GPU_a.lock")
    assert os.environ[lock.HOLDS] == ""


def test_a_file_that_was_removed_meanwhile_holds_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a cleaner of /tmp does it: whoever comes next would lock a new file."""
    file, real, removed = folder / "harness-GPU_a.lock", fcntl.flock, list[int]()

    def flock(descriptor: int, how: int) -> None:
        real(descriptor, how)
        if not removed:
            removed.append(descriptor)
            file.unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock.held(device("GPU a"), [0]):
        assert removed
        assert not is_free(file)


def test_what_stands_in_the_file_is_only_shown(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    file = folder / "harness-GPU_a.lock"
    for text, said in (
        ("", "another command measures on it"),
        ("{}", "another command measures on it"),
        (json.dumps({"process": 1, "command": "x" * 500, "since": "now"}), f"({'x' * 120})"),
    ):
        file.write_text(text)
        with file.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            monkeypatch.setattr(fcntl, "flock", _release_when_waiting(held.fileno()))
            with lock.held(device("GPU a"), [0]):
                pass
            monkeypatch.undo()
            monkeypatch.setattr(lock, "_FOLDERS", (folder,))
        assert said in capsys.readouterr().err


def _release_when_waiting(other: int) -> Any:
    real = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_EX:
            real(other, fcntl.LOCK_UN)
        real(descriptor, how)

    return flock


def test_without_a_folder_there_is_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(lock, "_FOLDERS", (folder / "nowhere",))
    with lock.held(device("GPU a"), [0]):
        pass
    assert "other commands may measure on GPU a meanwhile" in capsys.readouterr().err


def test_all_users_find_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, everybody = tmp_path / "own", tmp_path / "everybody"
    own.mkdir(0o755)
    everybody.mkdir()
    everybody.chmod(0o1777)
    monkeypatch.setattr(lock, "_FOLDERS", (own, everybody))
    assert lock.folder() == everybody  # also for root, who may write to the first one
    with lock.held(device("GPU a"), [0]):
        assert (everybody / "harness-GPU_a.lock").stat().st_mode & 0o777 == 0o666


def test_the_processor_is_not_held(folder: Path) -> None:
    with lock.held(devices.kinds()["cpu"], range(4)):
        assert not list(folder.iterdir())
