"""A run folder on disk: the header, the results, and what tools found about them.

`run.json` holds the header, `results.jsonl` one measurement a line, `attachments.jsonl` one attachment a line. Lines
are only ever appended. A writer holds a lock on `results.jsonl`, which the operating system releases when the process
ends, however it ends. Nothing is written through a link inside the folder; the folder itself may be one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from harness.errors import UsageError
from harness.model import SCHEMA, Attachment, Header, Measurement, Run
from harness.store import files, lines, soundness
from harness.store.codec import Record, build, dump
from harness.store.files import unwritable

RESULTS = "results.jsonl"
ATTACHMENTS = "attachments.jsonl"
HEADER = "run.json"
_LAST_OLDER = "harness 0.1.0 of commit 814e77e"
"""The last harness that reads runs of schema 1."""
_SHOWN = 40  # characters of a wrong value that an error shows


class Writer:
    """The one process that writes into a run folder. Made by `create` and `reopen`; a context manager."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self._results = descriptor

    def append(self, measurement: Measurement) -> None:
        """Add one result. It survives a crash of this process. Raises MachineError if it can't be written."""
        try:
            files.write(self._results, lines.line(measurement))
        except OSError as error:
            raise unwritable(self.folder / RESULTS, error) from error

    def update(self, header: Header) -> None:
        """Replace the header. A reader sees the old one or the new one. Raises MachineError if it can't be written."""
        files.replace(self.folder / HEADER, f"{dump(header, indent=2)}\n")

    def close(self) -> None:
        """Force the results onto the disk and give up the lock."""
        try:
            os.fsync(self._results)
        except OSError as error:
            raise unwritable(self.folder / RESULTS, error) from error
        finally:
            os.close(self._results)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create(folder: Path, header: Header) -> Writer:
    """Start a run in `folder`, which is made if need be.

    Raises UsageError if the folder holds a run or another process writes into it, MachineError if it can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{folder}: not a folder", "choose another --output") from error
    except OSError as error:
        raise unwritable(folder, error) from error
    writer = Writer(folder, _lock(folder))
    try:
        if (folder / HEADER).exists() or (folder / RESULTS).stat().st_size:
            raise UsageError(f"{folder}: holds a run already", "go on with it by --resume, or choose another --output")
        writer.update(header)
    except BaseException:
        writer.close()
        raise
    return writer


def reopen(folder: Path) -> tuple[Run, Writer]:
    """The run so far and a writer that goes on with it.

    A last line that was cut short is removed from the file; `Run.losses` says so. Raises as `load` and `create` do.
    """
    _header(folder)  # Opening the results below would make the file, so look for the run first.
    descriptor = _lock(folder)
    writer = Writer(folder, descriptor)
    try:
        run = load(folder)
        _mend(folder / RESULTS, descriptor, Measurement, run.header.sealed)
    except BaseException:
        writer.close()
        raise
    return run, writer


def load(folder: Path) -> Run:
    """The run in `folder`; lines that can't be read are left out and named in `Run.losses`.

    Raises UsageError if the folder holds no run, or one that this version can't read.
    """
    header = _header(folder)
    measurements, losses = _records(folder / RESULTS, Measurement, header.sealed)
    attached, lost = _records(folder / ATTACHMENTS, Attachment, header.sealed)
    # What a tool found last about a case replaces what it found before.
    attachments = {(attachment.case, attachment.tool): attachment for attachment in attached}
    return Run(header, tuple(measurements), (*losses, *lost), tuple(attachments.values()))


def attach(folder: Path, attachments: Iterable[Attachment]) -> None:
    """Add what a tool found about cases of the run in `folder`.

    Raises UsageError if the folder holds no run, if the file of attachments is a link or no file, or if a figure can't
    be true; MachineError if it can't be written.
    """
    header = _header(folder)
    path = folder / ATTACHMENTS
    found = tuple(attachments)
    for attachment in found:
        if problem := soundness.of_attachment(attachment):
            told = f"{attachment.tool} tells of {attachment.case}: {problem}"
            raise UsageError(told, "profile the case again; nothing was added to the run")
    with files.locked(path) as descriptor:
        _mend(path, descriptor, Attachment, header.sealed)
        files.write(descriptor, b"".join(map(lines.line, found)))


def _records(path: Path, kind: type[Record], sealed: bool) -> tuple[list[Record], list[str]]:
    """The records in a file with one on each line, and what is wrong with lines that hold none."""
    return lines.read(path, kind, sealed) if path.exists() else ([], [])


def _header(folder: Path) -> Header:
    path = folder / HEADER
    if not path.exists():
        inner = min(folder.glob(f"*/{HEADER}"), default=None)
        example = f", such as {inner.parent}" if inner else ""
        raise UsageError(
            f"{folder}: holds no run (there is no {HEADER})", f"name a folder that 'harness run' has written{example}"
        )
    text = files.read(path)
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise TypeError("found no JSON object")
        schema = content["schema"]
        if type(schema) is not int or schema < 1:
            raise TypeError(f"the schema is {json.dumps(schema)[:_SHOWN]}; it is a whole number from 1 on")
        if schema > SCHEMA:
            raise UsageError(f"{path}: has schema {schema}; this version reads up to {SCHEMA}", "update the harness")
        if schema < SCHEMA:
            found = f"{path}: has schema {schema}, of an older harness; this version reads schema {SCHEMA}"
            raise UsageError(found, f"measure again, or read the run with {_LAST_OLDER}, which reads both schemas")
        header = build(Header, content)
        if problem := soundness.of_header(header):
            raise ValueError(problem)
    except RecursionError as error:
        raise UsageError(f"{path}: isn't the header of a run: it is nested too deeply", "measure again") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path}: isn't the header of a run: {lines.reason(error)}", "measure again") from error
    return header


def _mend(path: Path, descriptor: int, kind: type[Record], sealed: bool) -> None:
    """Make a file of records end with a whole line, so that the next one starts on its own.

    descriptor: of the file, which nobody else writes meanwhile.
    """
    content = files.read(path)
    tail = content.rpartition(b"\n")[2]
    if not tail:
        return
    try:
        if lines.is_whole(kind, tail.strip(), sealed):
            files.write(descriptor, b"\n")
        else:
            os.ftruncate(descriptor, len(content) - len(tail))
    except OSError as error:
        raise unwritable(path, error) from error


def _lock(folder: Path) -> int:
    """An appending file descriptor of the results, locked against every other writer."""
    path = folder / RESULTS
    descriptor = files.appending(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise unwritable(path, error) from error
        raise UsageError(
            f"{folder}: another run is being written there", "wait until it ends, or choose another --output"
        ) from error
    return descriptor


LAST = "@last"
"""What stands for the newest run in place of a folder."""


def place(named: Path | str, below: Path = Path("reports")) -> Path:
    """The folder that a user names: '@last' is the run below `below` that was begun last.

    Raises UsageError if '@last' finds no run.
    """
    if str(named) != LAST:
        return Path(named)
    begun = {file.parent: _begun(file) for file in below.rglob(HEADER)}
    if not any(begun.values()):
        raise UsageError(f"{LAST}: there is no run in {below}{os.sep}", "name the folder of a run")
    return max(begun, key=lambda folder: (begun[folder], str(folder)))


def _begun(file: Path) -> str:
    """When a run was begun, as its header says; '' for a file that isn't a header."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return ""
    started = found.get("started") if isinstance(found, dict) else None
    return started if isinstance(started, str) else ""


def by_name(folders: Sequence[Path | str]) -> dict[str, Path]:
    """Folders of runs by short names: the last part of each path where no two are alike, else the whole path."""
    places = [place(folder) for folder in folders]
    short = [each.resolve().name for each in places]
    names = short if len({*short}) == len(short) else [str(each) for each in places]
    found: dict[str, Path] = {}
    for name, each in zip(names, places, strict=True):
        found[name if name not in found else f"{name} ({1 + sum(p == each for p in found.values())})"] = each
    return found
