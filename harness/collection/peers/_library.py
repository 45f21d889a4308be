"""What the files of libraries share: whether a library is there, and which cases it takes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection
from dataclasses import dataclass

from harness import cuda
from harness.model import Case

Unsupported = Callable[[Case], str | None]
HALVES = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class PeerLibrary:
    """A library. module: what is imported. package: what pip installs, with the oldest version that has these names."""

    name: str
    module: str
    package: str

    def obstacle(
        self,
        *,
        row: str = "N",
        longest: int = 0,
        dtypes: Collection[str] = (),
        clusters: bool = False,
        multiple: int = 1,
    ) -> Unsupported:
        """Why a case can't be run, as a function of the case.

        row: the symbol of a row's columns. longest: columns of a row at most. dtypes: the only ones it takes.
        clusters: it needs them, as sm_90 has them. multiple: of bytes that a row must have.
        """

        def reason(case: Case) -> str | None:
            columns, itemsize = case.symbols[row], 4 if case.dtype == "float32" else 2
            if importlib.util.find_spec(self.module) is None:
                return f"{self.name} isn't installed: pip install '{self.package}'"
            if dtypes and case.dtype not in dtypes:
                return f"{self.name} takes {' and '.join(dtypes)} only"
            if longest and columns > longest:
                return f"{self.name} takes rows of up to {longest} elements"
            if columns * itemsize % multiple:
                return f"{self.name} takes rows of a multiple of {multiple} bytes"
            if clusters and not cuda.has_clusters():
                return f"{self.name} needs compute capability 9.0"
            return None

        return reason
