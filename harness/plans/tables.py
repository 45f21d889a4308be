"""Where tables lie, and how they are read and written."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from harness import kept, paths
from harness.errors import UsageError, brief
from harness.plans.records import SCHEMA, Entry, PlanTable

FOLDER = "plans"


def device_name(kind: str) -> str:
    """The name of the device that tables are for. A processor has the host's name: elsewhere its tables don't count."""
    if kind == "cuda":
        from harness import cuda

        return str(cuda.device().name)
    import platform

    return f"{kind} {platform.node()}"


def file_name(device: str) -> str:
    """The file of a device's table: 'nvidia_h200.json'."""
    return f"{re.sub(r'[^a-z0-9]+', '_', device.lower()).strip('_')}.json"


def entries(kind: str) -> tuple[tuple[Entry, ...], ...]:
    """The entries of the user's own table for a kind of device, then of the package's. Read once in a process.

    There are none for a GPU that isn't here: its plans come from rules.
    """
    from harness.cuda import assumed

    return () if kind == "cuda" and assumed.current() else _of_device(kind)


@cache
def _of_device(kind: str) -> tuple[tuple[Entry, ...], ...]:
    if not any(any(folder.glob("*.json")) for folder in (paths.cache() / FOLDER, paths.data(FOLDER))):
        return ()  # the device needn't be asked for its name
    try:
        device = device_name(kind)
    except Exception:  # no driver, or no GPU that it shows: somebody makes plans for a GPU that isn't here
        return ()
    name = file_name(device)
    own, bundled = kept.read(f"{FOLDER}/{name}"), paths.data(FOLDER) / name
    texts = [own] if own else []
    if bundled.is_file():
        texts.append(bundled.read_bytes())
    return tuple(found.entries for text in texts if (found := _parsed(text)) and found.device == device)


def every() -> Iterator[tuple[str, PlanTable]]:
    """All tables that can be read, of any device: whose they are, 'your' or "the package's", and what they say."""
    for whose, folder in (("your", paths.cache() / FOLDER), ("the package's", paths.data(FOLDER))):
        for file in sorted(folder.glob("*.json")):
            text = kept.read(f"{FOLDER}/{file.name}") if whose == "your" else file.read_bytes()
            if text and (found := _parsed(text)):
                yield whose, found


def forget() -> None:
    """Read tables anew when they are asked for."""
    _of_device.cache_clear()


def _parsed(text: bytes) -> PlanTable | None:
    """The table in a file; None for one that another version wrote, or that is damaged: there are rules without it."""
    from harness import store

    try:
        found = store.parse(PlanTable, text)
    except ValueError:
        return None
    return found if found.schema == SCHEMA else None


def read(file: Path, device: str) -> PlanTable:
    """The table in a file that is to be written; an empty one if there is no file. Its folder is made.

    Raises UsageError for a file that isn't a table, that is another device's, or that can't be written.
    """
    from harness import store

    is_there = file.is_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()
        if not is_there:
            file.unlink()
    except OSError as error:
        raise UsageError(f"{file}: can't be written: {error.strerror}", "name another file") from None
    if not is_there:
        return PlanTable(device)
    try:
        found = store.parse(PlanTable, file.read_bytes())
    except ValueError as error:
        raise UsageError(f"{file}: isn't a table of plans: {brief(str(error))}", "name another file") from None
    if found.schema != SCHEMA:
        raise UsageError(f"{file}: another version of the harness wrote it", "remove it, or name another file")
    if found.device != device:
        raise UsageError(f"{file}: is the table of {found.device}, this is {device}", "name another file")
    return found


@contextmanager
def locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """A context that one process at a time has of a folder; without a lock where the system has none for the folder.

    Raises BlockingIOError if another process has it, unless this one is to wait. The system lets go of the lock of a
    process that ends, however it ends.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:  # some file systems of a network have no locks
            pass
        yield
    finally:
        os.close(descriptor)


def merged(table: PlanTable, new: Iterable[Entry]) -> PlanTable:
    """The table with new entries, which take the places of entries of the same variant and size."""
    found = {entry.key: entry for entry in (*table.entries, *new)}
    order = sorted(
        found.values(), key=lambda e: (e.op, e.variant, e.dtype, *map(str, e.choices.values()), *e.shape.values())
    )
    return PlanTable(table.device, tuple(order))


def write(table: PlanTable, file: Path | None = None) -> Path | None:
    """Write a table into a file, or into the user's cache folder. Gives its path; None where it couldn't be kept.

    Raises UnwritableError for a file that can't be written.
    """
    from harness import store
    from harness.store import files

    text = store.dump(table, indent=1) + "\n"
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.unwritable(file.parent, error) from error
        files.replace(file, text)
    else:
        name = f"{FOLDER}/{file_name(table.device)}"
        kept.write(name, text.encode())
        place = kept.place(name)
        # A full disk leaves the table of before.
        file = place if kept.read(name) == text.encode() else None
    forget()
    return file
