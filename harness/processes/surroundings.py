"""What a process of one side of a comparison sees around it: its packages, its folders, its variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.processes import start
from harness.processes.nursery import Nursery

_ROOM = 16384
_IN_PATHS = r"[^\s'\",;]"
_FILLER = "HARNESS_FILLER"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """In place of what the parent sees.

    site: a folder with packages, which come before all others; None for none. moved: pairs of folders: what the
    environment and the path of modules name below the first is taken from the second, if it is there. variables: more
    environment variables; None for one that is removed. listen: if there are any, the process tells which files it
    uses. The folders hold its code. nursery: from which the process is forked, if it can be.
    """

    site: Path | None = None
    moved: tuple[tuple[Path, Path], ...] = ()
    variables: tuple[tuple[str, str | None], ...] = ()
    listen: tuple[Path, ...] = ()
    nursery: Nursery | None = None

    def place(self, path: str) -> str:
        """The path, moved if it lies in the folder that is moved and is there in the other one."""
        if not os.path.isabs(path):  # noqa: PTH117 - may be any text
            return path
        named = (Path(os.path.normpath(path)), Path(os.path.realpath(path)))
        for source, target in self.moved:
            for name in named:
                if name.is_relative_to(source) and (there := target / name.relative_to(source)).exists():
                    return str(there)
        return path

    def _moved(self, entry: str) -> str:
        """An entry of a variable with its paths moved: it is a path, or names some, such as -I/repository/include."""
        if os.path.isabs(entry):  # noqa: PTH117 - may be any text
            return self.place(entry)
        for source, _ in self.moved:
            path = f"{re.escape(str(source))}(/{_IN_PATHS}*)?(?!{_IN_PATHS})"
            entry = re.sub(path, lambda found: self.place(found[0]), entry)
        return entry

    def working_folder(self) -> str | None:
        """The folder in which the process works: the parent's, moved; None for the parent's as it is."""
        here = str(Path.cwd())
        there = self.place(here)
        return None if there == here else there

    def applied(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The environment with what this side has in place of it.

        Its size is the same for all sides, since the size of the environment decides where a process's stack lies.
        """
        moved = {
            # Where modules come from is this process's to say.
            name: value if name == start.VARIABLE else os.pathsep.join(map(self._moved, value.split(os.pathsep)))
            for name, value in variables.items()
        }
        made = {name: value for name, value in (moved | dict(self.variables)).items() if value is not None}
        room = _size(os.environ) + _ROOM - _size(made) - len(_FILLER) - 2
        return made | {_FILLER: " " * max(0, room)}


def _size(variables: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) + 2 for name, value in variables.items())
