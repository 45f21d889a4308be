"""Files with a record on each line: `results.jsonl` and `attachments.jsonl`.

A line ends with a checksum of what stands before it, so that damage in the middle of a file doesn't become a result.
Lines of runs that were stored before there were checksums have none, and are read as well. A last line that is cut
short is what an interrupt leaves: it is lost, and costs nothing else.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from pydantic import ValidationError

from harness.errors import UsageError
from harness.model import Attachment, Measurement
from harness.store import files, soundness
from harness.store.codec import Record, dump, parse, parser

MOST_TEXT = 16_000
"""Characters of an error or of a warning that are stored and read: its first ones and its last ones."""
_LAST_TEXT = 4_000
_CUT = "\n[... {} characters left out ...]\n"
_SEAL = b', "crc": "'
_SEALED = len(_SEAL) + len('01234567"}')
_BY_HAND = "the file was changed by hand or by another program"


def line(record: Measurement | Attachment) -> bytes:
    """The record as a line, with its checksum. Long texts are clipped."""
    content = dump(clipped(record)).encode()[:-1]
    return b'%s%s%08x"}\n' % (content, _SEAL, crc32(content))


def clipped(record: Record) -> Record:
    """The record without the middle of an error, or of a warning's texts, longer than MOST_TEXT characters."""
    if not isinstance(record, Measurement):
        return record
    warnings = tuple(replace(w, message=_clip(w.message), advice=_clip(w.advice)) for w in record.warnings)
    return replace(record, error=record.error and _clip(record.error), warnings=warnings)


def read(path: Path, kind: type[Record], sealed: bool) -> tuple[list[Record], list[str]]:
    """The records in a file, and what is wrong with lines that hold none.

    sealed: whether each line must have a checksum. Raises UsageError, with the line's number, for a line whose checksum
    is wrong, and for a record that can't be true.
    """
    records: list[Record] = []
    losses: list[str] = []
    noun = "attachment" if kind is Attachment else "result"
    parsed, unsound = parser(kind), _unsound(kind)
    with files.reading(path) as file, _without_garbage_collection():
        for number, each in enumerate(file, 1):
            if not (text := each.strip()):
                continue
            whole = each.endswith(b"\n")
            try:
                if damage := _damage(text, sealed):
                    if whole:
                        raise UsageError(f"{path}:{number}: {damage}, so the line is damaged", _delete(path, number))
                    raise ValueError(damage)
                record = parsed(text)
            except ValueError as error:
                why = reason(error) if whole else "the line is cut short"
                losses.append(f"{path}:{number}: one {noun} is lost: {why}")
                continue
            if problem := unsound(record):
                raise UsageError(f"{path}:{number}: {problem}", f"{_BY_HAND}: {_delete(path, number)}")
            records.append(record if len(text) <= MOST_TEXT else clipped(record))
    return records, losses


def is_whole(kind: type[Record], tail: bytes, sealed: bool) -> bool:
    """Whether a last line lacks no more than its end of line."""
    try:
        return not _damage(tail, sealed) and bool(parse(kind, tail))
    except ValueError:
        return False


def reason(error: Exception) -> str:
    """What is wrong with a record, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def _unsound(kind: type[Record]) -> Callable[[Record], str]:
    return soundness.of_attachment if kind is Attachment else soundness.of_measurement  # type: ignore[return-value]


def _damage(text: bytes, sealed: bool) -> str:
    """What is wrong with the checksum of a line; "" if it is right, or there is none and none is needed."""
    end = len(text) - _SEALED
    if end < 0 or not text.startswith(_SEAL, end):
        return "there is no checksum, which each line of this file has" if sealed else ""
    stored, right = text[end + len(_SEAL) : -2], b"%08x" % crc32(memoryview(text)[:end])
    return "" if stored == right else f"the checksum is {stored.decode(errors='replace')!r}, not '{right.decode()}'"


def _delete(path: Path, number: int) -> str:
    return f"take the file from a copy, or delete the line (sed -i {number}d {path}): --resume measures its case again"


def _clip(text: str) -> str:
    if len(text) <= MOST_TEXT:
        return text
    first = MOST_TEXT - _LAST_TEXT - len(_CUT) - len(str(len(text)))
    return f"{text[:first]}{_CUT.format(len(text) - first - _LAST_TEXT)}{text[-_LAST_TEXT:]}"


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Don't search for garbage meanwhile. Records refer to no record above them, and searches take half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
