"""What others made: their files are read up to a limit, and their text loses what a terminal would obey."""

from __future__ import annotations

import errno
import re
import stat
from pathlib import Path

MOST_CHARACTERS = 10_000
"""The most characters of a name that is kept. Names of kernels made of templates have thousands."""
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, such as the start of an escape sequence
    "\u2028-\u202e\u2066-\u2069"  # breaks of lines, and marks that turn the direction of writing
    "\ud800-\udfff]"  # halves of a character, which no file and no terminal can take
    "(?<!\r(?=\n))"  # but not the first half of a line's end
)
_REPLACEMENT = "\ufffd"


def printable(text: str) -> str:
    """The text with U+FFFD in the place of each character that a terminal obeys. Line breaks and tabs stay."""
    return _OBEYED.sub(_REPLACEMENT, text)


def name(text: str) -> str:
    """A name from a file of others, such as a kernel's: printable, in one line, not longer than MOST_CHARACTERS."""
    line = " ".join(printable(text).split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"


def refuse_special(file: Path) -> None:
    """Raise OSError for what can't be read to its end: a pipe, a socket, a device. It isn't opened.

    A file that isn't there raises OSError as well. A folder passes: to open it is an error that says so.
    """
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(file))


def read(file: Path, most: int) -> bytes:
    """All bytes of a file. Raises OSError where it can't be read, isn't a file, or has more than `most` bytes."""
    refuse_special(file)
    with file.open("rb") as opened:
        data = opened.read(most + 1)
    if len(data) > most:
        raise too_large(file, most)
    return data


def too_large(file: Path, most: int) -> OSError:
    """The error for a file with more than `most` bytes."""
    return OSError(errno.EFBIG, f"it has more than {megabytes(most)}, which is the limit", str(file))


def megabytes(count: int) -> str:
    """A limit of bytes, a power of two from 1 MiB on, as messages write it."""
    return f"{count >> 20} MiB"
