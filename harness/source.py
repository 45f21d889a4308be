"""Which code makes the numbers: a hash for each op, one over everything, and what git says of it."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path

from harness import paths
from harness.comments import statements, without_comments
from harness.discover import entry_points
from harness.model import Code

_PACKAGE = Path(__file__).resolve().parent
_KERNEL_SUFFIXES = frozenset({".cu", ".cuh", ".h", ".hpp"})
_CODE_SUFFIXES = _KERNEL_SUFFIXES | {".py", ".c"}
_MEASURING = ("check.py", "cuda", "devices", "measure.py", "ranks.py", "session.py", "stats.py")
"""The files that every number depends on besides its op's: how inputs are made, how calls are timed."""
_FOLLOWED = frozenset({"intervals", "ops", *paths.COLLECTION})
"""The rooms whose modules count for an op that imports them."""
_GIT_TIMEOUT = 10
_COMMIT = re.compile("[0-9a-f]{7,64}")


def code(op: str, *files: Path, device: str = "") -> Code:
    """The code that makes the numbers of an op, or of a variant of it, which `files` declare.

    The code covers what measures every op, and the code of a package's device where `device` names one; the files,
    with the modules of the collection that they import; and the kernels that these files name, with the headers that
    the kernels include. Tables, reports, the command line and other ops aren't covered. For a file that isn't bundled,
    all kernels beside the file are covered too. Comments and docstrings don't count: they make no number.
    """
    places = (*(_PACKAGE / name for name in _MEASURING), *_of_package(device))
    measuring = [path for place in places for path in _code(place)]
    beside = [path for file in files for path in _kernels_of_plugin(file)]
    every = {*measuring, *beside, *(path for file in files for path in _needed(file))}
    return Code(op, _hash((path.name, without_comments(path.name, path.read_bytes())) for path in every))


def _of_package(device: str) -> Iterator[Path]:
    """The file, or the folder, of a device that a package brings. It isn't imported."""
    for entry in entry_points("harness.devices"):
        spec = importlib.util.find_spec(entry.module) if entry.name == device else None
        if spec and spec.origin:
            file = Path(spec.origin)
            yield file.parent if spec.submodule_search_locations else file


def digest(plugins: Sequence[Path] = (), root: Path | None = None) -> str:
    """SHA-256 over the names and contents of the package's sources (Python, C, kernels), and of plug-ins with theirs.

    root: a checkout of another revision, in place of this installation.
    """
    package, kernels = (root / "harness", root / "kernels") if root else (_PACKAGE, paths.data("kernels"))
    return _hash((name, path.read_bytes()) for name, path in _everything(package, kernels, plugins))


def kernels(*files: Path) -> str:
    """A hash of the kernels that files of ops name, without comments; of the files where they name none."""
    places = [path for file in files for path in (*_needed(file), *_kernels_of_plugin(file))]
    found = {path for path in places if path.suffix in _KERNEL_SUFFIXES} or {*files}
    return _hash((path.name, without_comments(path.name, path.read_bytes())) for path in found)


def revision() -> tuple[str, bool]:
    """The git commit that the package belongs to, and whether the package's code differs from that commit.

    ('', False) if there is no git or no checkout, or if the package isn't part of the checkout that it lies in.
    """
    # A package installed below somebody's project must not be given that project's revision.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return "", False
    code = [_PACKAGE, paths.data("kernels")]
    changes = _git("status", "--porcelain", "--", *map(str, code))
    return (_git("rev-parse", "HEAD") or "").strip(), bool(changes)


def to_read(*files: Path) -> list[Path]:
    """What a reader of an op's numbers may want to see: the files that declare a variant, and the kernels they name."""
    kernels = [path for file in files for path in _needed(file) if path.suffix == ".cu"]
    beside = [path for file in files for path in _kernels_of_plugin(file)]
    return list(dict.fromkeys((*files, *kernels, *(path for path in beside if path.suffix == ".cu"))))


def at_revision(revision: str, path: Path) -> str | None:
    """The text of a file of this checkout at a commit; None if git doesn't know the commit, or the file there.

    A file that lay in another folder then is found by its name, if one file alone had it.
    """
    root = _PACKAGE.parent
    if not _COMMIT.fullmatch(revision) or not path.is_relative_to(root):
        return None
    found = _git("show", f"{revision}:./../{path.relative_to(root).as_posix()}")
    if found is not None:
        return found
    named = [name for name in _files_of(revision) if Path(name).name == path.name]
    return _git("show", f"{revision}:{named[0]}") if len(named) == 1 else None


@lru_cache(maxsize=4)
def _files_of(revision: str) -> tuple[str, ...]:
    """Every file of a commit, from the top of the repository."""
    return tuple((_git("ls-tree", "-r", "--name-only", "--full-tree", revision) or "").splitlines())


def _hash(files: Iterable[tuple[str, bytes]]) -> str:
    total = hashlib.sha256()
    for name, content in sorted(set(files)):
        # Without names and lengths, two files and one file with the contents of both could give the same hash.
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def _everything(package: Path, kernels: Path, plugins: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    for name, place, suffixes in (("harness", package, _CODE_SUFFIXES), ("kernels", kernels, _KERNEL_SUFFIXES)):
        for inside in _files(place, suffixes):
            yield f"{name}/{inside}", place / inside
    for plugin in plugins:
        yield f"plugin/{plugin.name}", plugin
        for path in _kernels_beside(plugin):
            yield f"plugin/{plugin.name}/{path.name}", path


def _code(place: Path) -> list[Path]:
    """The Python files at a place, and the kernels and sources in C beside them, sorted."""
    return [place] if place.suffix == ".py" else sorted(place / inside for inside in _files(place, _CODE_SUFFIXES))


def _files(place: Path, suffixes: Collection[str]) -> Iterator[str]:
    """Paths of the files in a folder and its folders, from there on, with one of these suffixes.

    An editor's lock is a link to nothing with the name of a file. The kernels inside an installed package are bundled
    ones, which are counted as such. (Objects of Path for each file would take longer than to read all files.)
    """
    for folder, folders, files in os.walk(place):
        folders[:] = [name for name in folders if name != "_data"]
        for name in files:
            path = f"{folder}/{name}"
            if path[path.rfind(".") :] in suffixes and os.path.isfile(path):  # noqa: PTH113 - see above
                yield path[len(str(place)) + 1 :]


def _kernels_beside(file: Path) -> list[Path]:
    return [path for path in file.absolute().parent.iterdir() if path.suffix in _KERNEL_SUFFIXES and path.is_file()]


def _kernels_of_plugin(file: Path) -> list[Path]:
    return [] if file.is_relative_to(_PACKAGE) else _kernels_beside(file)


def _needed(file: Path) -> list[Path]:
    """The op's file, the modules that it imports, and the kernels that these name, each with what it needs."""
    modules = _closure(file, _imported)
    # Modules of harness.nn run the ops that they import, with the kernels of these.
    run = [op for module in modules if module.parent == _PACKAGE / "collection" / "nn" for op in _imported(module)]
    texts = [module.read_text("utf-8") for module in modules]
    named = {f"{op.stem}.cu" for op in (file, *run)}.union(*(re.findall(r'"(\w+\.cu)"', text) for text in texts))
    sources = [path for path in paths.data("kernels").glob("*/*.cu") if path.name in named]
    return [*modules, *(path for source in sources for path in _closure(source, _included))]


def _closure(first: Path, following: Callable[[Path], Sequence[Path]]) -> list[Path]:
    """`first` and everything that follows from it, each once."""
    found, known = [first], {first}
    for path in found:
        new = [other for other in following(path) if other not in known]
        found += new
        known.update(new)
    return found


@cache
def _imported(file: Path) -> tuple[Path, ...]:
    """Modules of the rooms in `_FOLLOWED` that a file imports, at its top or inside functions."""
    names: list[str] = []
    for node in statements(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    parts = [name.split(".") for name in names]
    places = [_PACKAGE.parent.joinpath(*part) for part in parts if part[0] == "harness" and {*part[1:2]} & _FOLLOWED]
    modules = [*(place.with_suffix(".py") for place in places), *(place / "__init__.py" for place in places)]
    return tuple(module for module in modules if module.is_file())


@cache
def _included(file: Path) -> tuple[Path, ...]:
    """Headers of ours that a kernel includes."""
    names = re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE)
    folders = (file.parent, paths.data("kernels") / "include")
    # Without "..", so that each header has one path.
    places = [[Path(os.path.normpath(folder / name)) for folder in folders] for name in names]
    found = [next((place for place in every if place.is_file()), None) for every in places]
    return tuple(path for path in found if path)


def _git(*arguments: str) -> str | None:
    """What git prints, or None if it can't be run or fails. Never waits for another git's lock."""
    command = ["git", "--no-optional-locks", "-C", str(_PACKAGE), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_TIMEOUT).stdout
    except (OSError, subprocess.SubprocessError):
        return None
