"""Texts are written before pictures, and a picture that can't be drawn costs nothing but itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from harness.errors import described, without_exit

Format = TypeVar("Format")


def write_all(formats: Mapping[str, Format], write: Callable[[Format], list[Path]]) -> list[Path]:
    """Write each format: formats of texts, then formats of pictures, then formats that show these. Gives the paths.

    A format draws pictures if its file has `PICTURES = True`. An error of such a format becomes a warning. A format
    that shows the pictures has `SHOWS_PICTURES = True`. Raises UsageError for a format that ends the process.
    """

    def one(name: str) -> list[Path]:
        with without_exit(f"report format '{name}'"):
            return write(formats[name])

    drawing = [name for name, each in formats.items() if draws(each)]
    showing = [name for name, each in formats.items() if getattr(each, "SHOWS_PICTURES", False) is True]
    texts = [path for name in formats if name not in {*drawing, *showing} for path in one(name)]
    pictures = [path for name in drawing for path in drawn("the pictures", one, name)]
    return [*texts, *pictures, *(path for name in showing for path in one(name))]


def drawn(name: str, draw: Callable[..., list[Path]], *arguments: object) -> list[Path]:
    """The paths that `draw(*arguments)` gives; none, and a warning on standard error, if it fails, for any reason.

    name: what is drawn, for the warning.
    """
    try:
        return draw(*arguments)
    except Exception as error:  # whatever it is, the results are more important than their picture
        sys.stderr.write(f"warning: {name} can't be drawn; all other files are written: {described(error)}\n")
        return []


def draws(module: object) -> bool:
    """Whether a format draws pictures."""
    return isinstance(module, ModuleType) and getattr(module, "PICTURES", False) is True
