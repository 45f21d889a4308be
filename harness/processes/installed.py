"""Which files pip has installed into a folder that isn't called site-packages, as `pip install --target` does.

A list beside the packages, the RECORD of each *.dist-info, names them with their digests.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

NAMES = frozenset({"site-packages", "dist-packages"})
"""The names of folders with nothing but what was installed."""
_TOGETHER = 5.0
"""Seconds between the list and the file INSTALLER: pip writes both in a tenth of a second, and a copy takes longer."""
_LIST = "RECORD"
_COLUMNS = 3
_ALGORITHM = "sha256="


class Installed:
    """What pip has installed into some folders of modules.

    Make it before code of a side runs in the process: what the lists say later doesn't count. folders: those in which
    pip has installed something, without the folders in NAMES. lists: the files that say so.
    """

    def __init__(self, path: Iterable[str]) -> None:
        self._listed: dict[str, set[str]] = {}
        self._known: dict[str, tuple[tuple[int, ...], bool]] = {}
        folders = {os.path.realpath(entry) for entry in path if entry}
        lists = {folder: _listed(Path(folder)) for folder in folders if NAMES.isdisjoint(folder.split("/"))}
        for file, content in (found for files in lists.values() for found in files):
            self._listed.setdefault(file, set()).add(content)
        self.folders = frozenset(folder for folder, files in lists.items() if files)
        self.lists = frozenset(file for file in self._listed if file.endswith(f".dist-info/{_LIST}"))

    def has(self, file: str) -> bool:
        """Whether pip has installed the file, and it still is what pip installed. file: a full path without links."""
        if file not in self._listed:
            return False
        try:
            found = os.stat(file)  # noqa: PTH116 - there are thousands
        except OSError:
            return False
        state = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if self._known.get(file, ((), False))[0] != state:
            self._known[file] = state, digest(Path(file)) in self._listed[file]
        return self._known[file][1]

    def place(self, file: str) -> str:
        """The path of an installed file below the folder of all packages; "" for one that isn't installed."""
        inside = (file.rpartition(f"/{name}/")[2] for name in NAMES if f"/{name}/" in file)
        below = (file.removeprefix(f"{folder}/") for folder in self.folders if file.startswith(f"{folder}/"))
        return next(itertools.chain(inside, below), "")


def digest(file: Path) -> str:
    """The SHA-256 of a file, which may be larger than the memory; "" for one that is gone or can't be read."""
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return ""


def _listed(folder: Path) -> list[tuple[str, str]]:
    """The full path and the SHA-256 of each file that the lists in a folder name with a digest, and of the lists."""
    return [found for record in folder.glob(f"*.dist-info/{_LIST}") for found in _listed_in(record)]


def _listed_in(record: Path) -> list[tuple[str, str]]:
    """What one list names; nothing where it can't be read, or isn't as pip wrote it."""
    try:
        if not _is_as_written(record):
            return []
        content = record.read_bytes()
        rows = [row for row in csv.reader(content.decode().splitlines()) if len(row) == _COLUMNS]
        told = {name: text.removeprefix(_ALGORITHM) for name, text, _ in rows if text.startswith(_ALGORITHM)}
        # A name that leads out of the folder is no full path without links, so no file has it.
        named = [
            (f"{record.parents[1]}/{name}", base64.urlsafe_b64decode(f"{text}==").hex()) for name, text in told.items()
        ]
    except (OSError, ValueError, csv.Error):
        return []
    return [(os.path.realpath(record), hashlib.sha256(content).hexdigest()), *named]


def _is_as_written(record: Path) -> bool:
    """Whether a list is as pip wrote it: who adds to it by hand does so later."""
    written, beside = record.stat().st_mtime, record.with_name("INSTALLER").stat().st_mtime
    return abs(written - beside) <= _TOGETHER
