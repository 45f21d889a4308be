"""A run folder on disk: the header, the results, and what tools found about them.

`run.json` holds the header, `results.jsonl` one measurement a line, `attachments.jsonl` one attachment a line. Lines
are only ever appended. A writer holds a lock on `results.jsonl`, which the operating system releases when the process
ends, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from harness.errors import MachineError, UsageError
from harness.model import SCHEMA, Attachment, Header, Measurement, Run
from harness.store.codec import Record, build, dump, parse

RESULTS = "results.jsonl"
ATTACHMENTS = "attachments.jsonl"
HEADER = "run.json"
_LAST_OLDER = "harness 0.1.0 of commit 814e77e"
"""The last harness that reads runs of schema 1."""


class Writer:
    """The one process that writes into a run folder. Made by `create` and `reopen`; a context manager."""

    def __init__(self, folder: Path, results: int) -> None:
        self.folder = folder
        self._results = results

    def append(self, measurement: Measurement) -> None:
        """Add one result. It survives a crash of this process. Raises MachineError if it can't be written."""
        try:
            _write(self._results, f"{dump(measurement)}\n".encode())
        except OSError as error:
            raise _unwritable(self.folder / RESULTS, error) from error

    def update(self, header: Header) -> None:
        """Replace the header. A reader sees the old one or the new one. Raises MachineError if it can't be written."""
        path = self.folder / HEADER
        draft = path.with_suffix(".json.tmp")
        try:
            draft.unlink(missing_ok=True)  # left by a process that was killed, or a link in somebody else's folder
            with draft.open("x", encoding="utf-8") as file:
                file.write(f"{dump(header, indent=2)}\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise _unwritable(path, error) from error

    def close(self) -> None:
        """Force the results onto the disk and give up the lock."""
        try:
            os.fsync(self._results)
        except OSError as error:
            # A pipe or a device in the place of the file can't be synced, and needn't be.
            if error.errno != errno.EINVAL:
                raise _unwritable(self.folder / RESULTS, error) from error
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
        raise _unwritable(folder, error) from error
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
    writer = Writer(folder, _lock(folder))
    try:
        run = load(folder)
        _mend(folder / RESULTS)
    except BaseException:
        writer.close()
        raise
    return run, writer


def load(folder: Path) -> Run:
    """The run in `folder`; lines that can't be read are left out and named in `Run.losses`.

    Raises UsageError if the folder holds no run, or one that this version can't read.
    """
    header = _header(folder)
    measurements, losses = _lines(folder / RESULTS, Measurement)
    attached, lost = _lines(folder / ATTACHMENTS, Attachment)
    # What a tool found last about a case replaces what it found before.
    attachments = {(attachment.case, attachment.tool): attachment for attachment in attached}
    return Run(header, tuple(measurements), (*losses, *lost), tuple(attachments.values()))


def attach(folder: Path, attachments: Iterable[Attachment]) -> None:
    """Add what a tool found about cases of the run in `folder`.

    Raises UsageError if the folder holds no run, MachineError if it can't be written.
    """
    _header(folder)
    path = folder / ATTACHMENTS
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # After a line that was cut: it is lost, but it must not take the next one along.
            start = b"" if _read(path).endswith(b"\n") or not os.fstat(descriptor).st_size else b"\n"
            _write(descriptor, start + "".join(f"{dump(attachment)}\n" for attachment in attachments).encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unwritable(path, error) from error


def _lines(path: Path, kind: type[Record]) -> tuple[list[Record], list[str]]:
    """The records in a file with one on each line, and what is wrong with lines that hold none."""
    *lines, tail = _read(path).split(b"\n") if path.exists() else [b""]
    records: list[Record] = []
    losses: list[str] = []
    noun = "attachment" if kind is Attachment else "result"
    for number, line in enumerate([*lines, tail], 1):
        if not line.strip():
            continue
        try:
            records.append(parse(kind, line))
        except ValueError as error:
            why = "the line is cut short" if number > len(lines) else _reason(error)
            losses.append(f"{path}:{number}: one {noun} is lost: {why}")
    return records, losses


def _header(folder: Path) -> Header:
    path = folder / HEADER
    if not path.exists():
        inner = min(folder.glob(f"*/{HEADER}"), default=None)
        example = f", such as {inner.parent}" if inner else ""
        raise UsageError(
            f"{folder}: holds no run (there is no {HEADER})", f"name a folder that 'harness run' has written{example}"
        )
    text = _read(path)
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise TypeError("found no JSON object")
        schema = content["schema"]
        if schema > SCHEMA:
            raise UsageError(f"{path}: has schema {schema}; this version reads up to {SCHEMA}", "update the harness")
        if schema < SCHEMA:
            found = f"{path}: has schema {schema}, of an older harness; this version reads schema {SCHEMA}"
            raise UsageError(found, f"measure again, or read the run with {_LAST_OLDER}, which reads both schemas")
        return build(Header, content)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path}: isn't the header of a run: {_reason(error)}", "measure again") from error


def _reason(error: Exception) -> str:
    """What is wrong with a record, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def _read(path: Path) -> bytes:
    try:
        # A device or a pipe would never end.
        if path.exists() and not path.is_file():
            raise UsageError(f"{path}: not a file", "name a folder that 'harness run' has written")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror}", "check its permissions") from error


def _mend(path: Path) -> None:
    """Make the results end with a whole line, so that the next one starts on its own."""
    content = _read(path)
    tail = content.rpartition(b"\n")[2]
    if not tail:
        return
    try:
        with path.open("r+b") as file:
            file.seek(len(content))
            try:
                parse(Measurement, tail)
                file.write(b"\n")
            except ValidationError:
                file.truncate(len(content) - len(tail))
    except OSError as error:
        raise _unwritable(path, error) from error


def _lock(folder: Path) -> int:
    """An appending file descriptor of the results, locked against every other writer."""
    path = folder / RESULTS
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except IsADirectoryError as error:
        raise UsageError(f"{path}: not a file", "choose another --output") from error
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise _unwritable(path, error) from error
        raise UsageError(
            f"{folder}: another run is being written there", "wait until it ends, or choose another --output"
        ) from error
    return descriptor


def _write(descriptor: int, content: bytes) -> None:
    """Write all of it: a disk that is nearly full takes a part first and fails at the next attempt."""
    while content:
        content = content[os.write(descriptor, content) :]


def _unwritable(path: Path, error: OSError) -> MachineError:
    return MachineError(
        f"{path}: can't be written: {error.strerror}",
        "free some space or correct the permissions, then go on with --resume; what was written before is kept",
    )
