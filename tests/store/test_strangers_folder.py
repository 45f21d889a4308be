"""A run folder that somebody else made: nothing is written outside of it, and nothing in it hangs a command."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness import store
from harness.errors import UsageError
from harness.model import Attachment, Header, Measurement

Make = Callable[[int], Measurement]
SECRET = '{"mine": 1}\n{"cut'


@pytest.fixture
def folder(tmp_path: Path, header: Header, measurement: Make) -> Path:
    """A run of one result."""
    with store.create(tmp_path / "run", header) as writer:
        writer.append(measurement(1))
    return tmp_path / "run"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    file = tmp_path / "home" / "precious"
    file.parent.mkdir()
    file.write_text(SECRET)
    return file


def attach(folder: Path) -> None:
    store.attach(folder, [Attachment("copy/a", "ncu")])


WRITES = [(store.RESULTS, store.reopen), (store.ATTACHMENTS, attach)]


@pytest.mark.parametrize(("name", "write"), WRITES, ids=["results", "attachments"])
@pytest.mark.parametrize("made", [Path.symlink_to, Path.hardlink_to], ids=["link", "hard link"])
def test_nothing_is_written_through_a_link(
    folder: Path, outside: Path, name: str, write: Callable[[Path], object], made: Callable[[Path, Path], None]
) -> None:
    (folder / name).unlink(missing_ok=True)
    outside.write_text("\n")  # content that reads well
    made(folder / name, outside)
    with pytest.raises(UsageError, match=rf"{name} is a (hard )?link"):
        write(folder)
    assert outside.read_text() == "\n"


@pytest.mark.parametrize(("name", "write"), WRITES, ids=["results", "attachments"])
def test_a_link_to_nothing_makes_no_file(
    folder: Path, outside: Path, name: str, write: Callable[[Path], object]
) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside.with_name("new"))
    with pytest.raises(UsageError, match="nothing is written through links"):
        write(folder)
    assert not outside.with_name("new").exists()


def test_results_behind_a_link_are_not_cut(folder: Path, outside: Path) -> None:
    """A last line that is cut short is taken off, which must not happen to another file."""
    (folder / store.RESULTS).unlink()
    (folder / store.RESULTS).symlink_to(outside)
    with pytest.raises(UsageError, match="is a link to"):
        store.reopen(folder)
    assert outside.read_text() == SECRET


@pytest.mark.parametrize("name", [store.HEADER, f"{store.HEADER}.tmp"])
def test_a_link_in_the_place_of_the_header_is_replaced(folder: Path, outside: Path, header: Header, name: str) -> None:
    outside.write_text((folder / store.HEADER).read_text())
    before = outside.read_text()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    _, writer = store.reopen(folder)
    with writer:
        writer.update(replace(header, finished="later"))
    assert outside.read_text() == before
    assert not (folder / store.HEADER).is_symlink()
    assert store.load(folder).header.finished == "later"


def test_the_folder_that_the_user_names_may_be_a_link(folder: Path, measurement: Make, tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to(folder, target_is_directory=True)
    _, writer = store.reopen(link)
    with writer:
        writer.append(measurement(2))
    attach(link)
    assert store.load(folder).measurements == (measurement(1), measurement(2))
    assert len(store.load(folder).attachments) == 1


USES = [
    *((use, name) for use in (store.load, store.reopen) for name in (store.HEADER, store.RESULTS, store.ATTACHMENTS)),
    *((attach, name) for name in (store.HEADER, store.ATTACHMENTS)),
]


@pytest.mark.parametrize(("use", "name"), USES)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_refused_and_not_waited_for(
    folder: Path, name: str, use: Callable[[Path], object], kind: str
) -> None:
    (folder / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=rf"{name}(: not a file| is a link to)"):
        use(folder)


def test_a_pipe_that_appears_between_two_looks_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regular = (folder / store.RESULTS).stat()
    (folder / store.RESULTS).unlink()
    os.mkfifo(folder / store.RESULTS)
    own = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **more: regular if path.name == store.RESULTS else own(path, **more))
    with pytest.raises(UsageError, match="not a file"):
        store.load(folder)


def test_a_file_with_a_hole_is_not_read(folder: Path) -> None:
    with (folder / store.RESULTS).open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(UsageError, match=f"has {2**40} bytes; a run's file has at most"):
        store.load(folder)


def test_a_room_inside_the_folder_is_made_and_is_no_link(folder: Path, outside: Path) -> None:
    assert store.room(folder, "profile") == folder / "profile"
    assert store.room(folder, "profile").is_dir()
    (folder / "plots").symlink_to(outside.parent, target_is_directory=True)
    with pytest.raises(UsageError, match="plots is a link to"):
        store.room(folder, "plots")
    (folder / "notes").write_text("mine")
    with pytest.raises(UsageError, match="notes: not a folder"):
        store.room(folder, "notes")


def test_a_folder_in_the_place_of_a_draft_is_one_clear_error(folder: Path, header: Header) -> None:
    (folder / "run.json.tmp" / "x").mkdir(parents=True)
    _, writer = store.reopen(folder)
    with writer, pytest.raises(Exception, match=r"run\.json: can't be written"):
        writer.update(header)
