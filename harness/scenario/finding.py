"""Scenario files on disk: which files a name stands for, and what the bundled ones measure, in a line."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness import foreign
from harness.errors import InputError, Problem, nearest
from harness.ops import Op
from harness.paths import data
from harness.scenario.documents import read

_MOST_FILES = 1_000
"""The most scenario files of a folder, and the most names that a misspelt one is compared with."""


@dataclass(frozen=True, slots=True)
class Overview:
    """A bundled scenario file in one line. op: 'several' where its scenarios are of several `ops`."""

    name: str
    title: str
    op: str
    tags: tuple[str, ...]
    ops: tuple[str, ...]


def find(names: Sequence[str], ops: Mapping[str, Op] = MappingProxyType({})) -> list[Path]:
    """Files that `names` stand for, each once: bundled scenarios by name, files, folders of *.yaml.

    ops: what there is to measure. Raises InputError for all names that stand for no file; where one is the name of an
    op, the advice names scenarios of the op, or is one.
    """
    files: dict[Path, Path] = {}
    problems: list[Problem] = []
    for name in names:
        try:
            for file in _named(name):
                files.setdefault(file.resolve(), file)
        except InputError as error:
            is_op = name in ops and not Path(f"{name}.yaml").is_file()
            problems += [_of_op(ops[name])] if is_op else error.problems
        except OSError as error:
            problems.append(Problem(name, f"can't be read: {error.strerror}"))
    if problems:
        raise InputError(problems)
    return list(files.values())


def _of_op(op: Op) -> Problem:
    """What to say of an op's name where a scenario's is wanted."""
    files = [file for file in _bundled() if op.name in file.read_text(encoding="utf-8")]
    names = [file.stem for file in files if op.name in (document.data.get("op") for document in read(file))]
    sizes = ", ".join(f"{symbol}: 1024" for symbol in op.symbols if symbol not in op.defaults)
    text = f"{{title: {op.name}, op: {op.name}, shapes: [{{{sizes}}}]}}"
    advice = f"scenarios with it: {', '.join(names)}" if names else f"write them in a file mine.yaml: {text}"
    return Problem(op.name, "is an op, no scenario, which says its sizes", advice)


def overview(text: str = "") -> list[Overview]:
    """The bundled scenarios, by name. Not checked, so that a listing is quick. text: only of files that have it."""
    files = [file for file in _bundled() if not text or text in file.read_text(encoding="utf-8")]
    return [_overview(file.stem, [document.data for document in read(file)]) for file in files]


def _overview(name: str, scenarios: Sequence[dict[str, Any]]) -> Overview:
    ops = [str(scenario.get("op", "")) for scenario in scenarios]
    tags = tuple(dict.fromkeys(tag for scenario in scenarios for tag in scenario.get("tags", ())))
    if len(scenarios) == 1:
        return Overview(name, str(scenarios[0].get("title", "")), ops[0], tags, tuple(ops))
    of = tuple(dict.fromkeys(ops))
    return Overview(name, f"{len(scenarios)} scenarios: {', '.join(of)}", "several", tags, of)


def _named(name: str) -> list[Path]:
    """The files that one name stands for. Raises InputError where there is none."""
    path = Path(name)
    bundled = {file.stem: file for file in _bundled()}
    if name in bundled:
        return [bundled[name]]
    if path.exists():
        foreign.refuse_special(path)
    if path.is_file() and path.suffix == ".py":
        raise InputError([Problem(name, "is a file of Python, no scenario", f"ops of yours are named by --ops {name}")])
    if path.is_file():
        return [path]
    inside = sorted(path.glob("*.yaml"))
    if len(inside) > _MOST_FILES:
        message = f"this folder holds {len(inside):,} scenarios; {_MOST_FILES:,} is the limit"
        raise InputError([Problem(name, message, "name some of its files")])
    if inside:
        return inside
    if path.is_symlink() and not path.exists():
        raise InputError([Problem(name, "is a link to nothing", f"{path.readlink()} isn't there")])
    if path.is_dir():
        raise InputError([Problem(name, "this folder holds no scenario", "scenarios are files named *.yaml")])
    known = [*bundled, *map(str, islice(path.parent.glob("[!.]*.yaml"), _MOST_FILES))]
    near = difflib.get_close_matches(name, known, n=1)
    # All bundled names would be a page of text.
    advice = nearest(name, near) if near else "'harness list scenarios' shows the bundled ones"
    raise InputError([Problem(name, "no scenario file or folder, and none bundled, has this name", advice)])


def _bundled() -> list[Path]:
    return sorted(data("scenarios").glob("*.yaml"))
