"""Lists of tensors by name: the parameters of models, kept as files of names and shapes.

Each file is scenarios/lists/<name>.csv, with the header `name,shape` and a line for each tensor, such as
`encoder.weight,768x3072`. A tensor without dimensions has an empty shape. A new file there is a new list.
"""

from __future__ import annotations

import csv
import math
from functools import cache
from pathlib import Path

from harness import paths
from harness.errors import UsageError
from harness.model import Case
from harness.ops import Choice, Shape, Symbols

EQUAL = "equal"
SYMBOLS = {"T": "tensors beside the model's", "N": "elements of each of these"}
DEFAULTS = {"T": "0", "N": "0"}
MOST_COMPILED = 500
"""Tensors of the longest list that torch.compile is asked for: it makes kernels for each of them."""


def _folder() -> Path:
    return paths.data("scenarios") / "lists"


def choice() -> Choice:
    """The choice of a list: each list that has a file, and `equal`, which has only T tensors of N elements each."""
    return Choice("whose tensors", (EQUAL, *sorted(file.stem for file in _folder().glob("*.csv") if file.is_file())))


@cache
def tensors(name: str) -> tuple[tuple[str, Shape], ...]:
    """Name and shape of each tensor of a model. Raises UsageError where the file isn't as described above."""
    file = _folder() / f"{name}.csv"
    with file.open(encoding="utf-8", newline="") as lines:
        header, *rows = [*csv.reader(lines)] or [[]]
    if header != ["name", "shape"]:
        raise UsageError(f"{file}: the first line isn't 'name,shape'", "begin the file with this line")
    return tuple(_tensor(file, number, row) for number, row in enumerate(rows, 2))


def _tensor(file: Path, number: int, row: list[str]) -> tuple[str, Shape]:
    sizes = row[1].split("x") if len(row) == 2 and row[1] else []
    if len(row) != 2 or not all(size.isascii() and size.isdigit() for size in sizes):
        advice = "write a name, a comma, and the sizes with an x between them, such as fc.weight,1000x2048"
        raise UsageError(f"{file}:{number}: '{','.join(row)}' isn't a tensor", advice)
    return row[0], tuple(map(int, sizes))


def shapes(symbols: Symbols) -> list[Shape]:
    """The shapes of a case's list: the model's, then T tensors of N elements."""
    name = symbols["tensors"]
    return [*(() if name == EQUAL else _shapes(name)), *[(symbols["N"],)] * symbols["T"]]


@cache
def _shapes(name: str) -> tuple[Shape, ...]:
    return tuple(shape for _, shape in tensors(name))


def count(symbols: Symbols) -> int:
    """Elements of all tensors of a case's list."""
    name = symbols["tensors"]
    own = 0 if name == EQUAL else sum(map(math.prod, _shapes(name)))
    return int(own + symbols["T"] * symbols["N"])


def too_long_to_compile(case: Case) -> str | None:
    """Why torch.compile isn't asked for a function of this list; None if it is."""
    tensors = len(shapes(case.values))
    if tensors > MOST_COMPILED:
        return f"torch.compile takes minutes for a list of {tensors} tensors: for up to {MOST_COMPILED}"
    return None if tensors else "torch.compile is given no empty list"
