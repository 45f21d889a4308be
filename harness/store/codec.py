"""Records as JSON and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

Record = TypeVar("Record")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def dump(record: Any, indent: int | None = None) -> str:
    """The record as JSON: one line, or indented. NaN and infinity are kept, as `parse` reads them."""
    text = json.dumps(_adapter(type(record)).dump_python(record), ensure_ascii=False, indent=indent)
    # Undecodable bytes in a file's name or a library's message must not make the record unreadable.
    return text.encode("utf-8", "replace").decode()


def write(record: Any, path: Path, indent: int | None = None) -> None:
    """Write what `dump` gives and a line feed to a file, piece by piece: a gate of many cases has much of it."""
    with path.open("w", encoding="utf-8", errors="replace") as file:
        json.dump(_adapter(type(record)).dump_python(record), file, ensure_ascii=False, indent=indent)
        file.write("\n")


def parse(cls: type[Record], text: str | bytes) -> Record:
    """The record of class `cls` in a JSON text. Raises pydantic.ValidationError."""
    record: Record = _adapter(cls).validate_json(text)
    return record


def parser(cls: type[Record]) -> Callable[[bytes], Record]:
    """The function that `parse` calls for a class, for who has many texts to read."""
    parse_text: Callable[[bytes], Record] = _adapter(cls).validator.validate_json
    return parse_text


def build(cls: type[Record], content: Any) -> Record:
    """The record of class `cls` in what `json.loads` gave. Raises pydantic.ValidationError."""
    # Not validate_python, which takes a list of JSON for no tuple.
    return parse(cls, json.dumps(content))


def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """The adapter of a class. Making one takes milliseconds, so each is made once."""
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]
