"""Which files of some folders any process opens: by inotify, which also sees compilers that a process starts."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from harness.processes.used import source_of

_OPEN = 0x20
_LOST = 0x4000
_EVENT = struct.Struct("iIII")
_MOST = 1 << 20
COMPILED = frozenset({".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".cu"})
LINKED = frozenset({".o", ".a", ".so", ".ptx", ".cubin", ".fatbin"})
BUILT = COMPILED | LINKED | {".py"}
"""What names of files end with that a compiler or a loader reads, such as libk.so.1. COMPILED: of sources; LINKED: of
what is made of them."""


class Opened:
    """A context in which the kernel notes every file of `folders` that is opened, not of the folders below them.

    built: more folders, of which only what a compiler or a loader reads is noted, since other programs may keep their
    logs there. complete: whether it could note all of them. Who opens a file isn't known.
    """

    def __init__(self, folders: Iterable[Path], built: Iterable[Path] = ()) -> None:
        whole = {*folders}
        self._built = {*built} - whole
        self._folders = sorted(whole | self._built)
        self._watched: dict[int, Path] = {}
        self._found: set[Path] = set()
        self._descriptor = -1
        self.complete = False

    def __enter__(self) -> Self:
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "inotify_init1"):
            return self
        self._descriptor = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for folder in self._folders if self._descriptor >= 0 else ():
            number = library.inotify_add_watch(self._descriptor, os.fsencode(folder), _OPEN)
            if number >= 0:
                self._watched[number] = folder
        self.complete = self._descriptor >= 0 and len(self._watched) == len(self._folders)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def so_far(self) -> frozenset[Path]:
        """The files that were opened since the context was entered; of a module that is kept compiled, the source.

        Ask often: the kernel keeps some thousands.
        """
        while self._descriptor >= 0:
            try:
                data = os.read(self._descriptor, _MOST)
            except BlockingIOError:
                break
            place = 0
            while place < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, place)
                name = data[place + _EVENT.size : place + _EVENT.size + length].rstrip(b"\0")
                place += _EVENT.size + length
                if mask & _LOST:
                    self.complete = False
                elif name and (folder := self._watched.get(number)):
                    file = Path(source_of(str(folder / os.fsdecode(name))))
                    if folder not in self._built or not BUILT.isdisjoint(file.suffixes):
                        self._found.add(file)
        return frozenset(file for file in self._found if file.is_file())
