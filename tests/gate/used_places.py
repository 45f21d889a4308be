"""Two sides of a gate with files of their own, and answers of their processes that are invented."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.gate.records import Revision, Side
from harness.gate.used_code import Probed
from harness.gate.worktree import Checkout
from harness.processes.installed import digest
from tests.gate.foreign import write

X = hashlib.sha256(b"x").hexdigest()
CODE = Revision("main", "b" * 40, False, "d" * 64)


@dataclass
class Places:
    """The folders of two sides, in `top`. now lies in the repository."""

    top: Path

    def __post_init__(self) -> None:
        made = {side: self.top / f"made-{side}" for side in ("base", "now")}
        self.codes: dict[Side, Checkout] = {
            "base": Checkout(CODE, None, (), self.top / "tree", made["base"]),
            "now": Checkout(CODE, None, (), self.top / "repository", made["now"]),
        }

    @property
    def repository(self) -> Any:
        return SimpleNamespace(top=self.top / "repository", package=Path("pkg"))

    def file(self, name: str, text: str = "x") -> Path:
        write(self.top / name, text)
        return self.top / name


def probed(*files: Path, asked: tuple[Path, ...] = (), opened: tuple[Path, ...] = (), **fields: Any) -> Probed:
    known = {"complete": True, "fine": True, "right": frozenset(), "software": {}}
    used = {file: digest(file) for file in files}
    return Probed(used, frozenset(asked), frozenset(opened), **{**known, **fields})
