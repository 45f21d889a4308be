"""Which modules are a repository's, also where they were installed from it."""

from __future__ import annotations

import ast
import configparser
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlparse

from harness.processes.installed import Installed

_GIT_LIMIT = 30.0
_LINK = "160000"  # the mode of a submodule
_OF_PIP = re.compile(r"harness$|__editable__|.*\.(dist|egg)-info$")
"""The harness, and what finds packages: no code of a repository."""


@dataclass(frozen=True, slots=True)
class OwnModules:
    """The modules of a repository.

    packages, modules: names as `import` takes them; files: of distributions that pip installed from the repository, or
    that have the name of one of its projects; places: the ends of paths of the repository's modules, of two names and
    more, such as kernels/fast.py. installed: where pip has installed packages.
    """

    packages: frozenset[str]
    modules: frozenset[str]
    files: frozenset[str]
    places: frozenset[str]
    installed: Installed

    @classmethod
    def of(cls, trees: Sequence[Path], installed: Installed) -> Self:
        """The modules of the repository in these folders, of which the last one is the working tree."""
        return cls(
            frozenset({*_packages(trees)} - {"harness"}),
            frozenset(_single_modules(trees)),
            frozenset(_installed_from(trees, (*sys.path, *installed.folders))),
            frozenset(place for top in trees for place in _ends(top)),
            installed,
        )

    def have(self, name: str, file: str) -> bool:
        """Whether a module is the repository's, by its name, or by its file."""
        words = name.split(".")
        alone = name in self.modules and self.installed.place(file) == Path(file).name
        known = alone or file in self.files or not self.packages.isdisjoint({words[0], ".".join(words[:2])})
        # A package without an __init__.py, or one that lies deep in the repository, is known by where its file lies.
        return known or (words[0] != "harness" and self.installed.place(file) in self.places)


def _ends(top: Path) -> Iterator[str]:
    """The ends of the paths of all modules that git knows in a folder, in submodules too."""
    # Not by a walk through the folder: git knows which files are code, and needn't look at millions of others.
    for _, path, _ in _known(top):
        if path.endswith(".py"):
            parts = path.split("/")
            yield from ("/".join(parts[first:]) for first in range(len(parts) - 1))


@cache
def _known(top: Path) -> tuple[tuple[Path, str, str], ...]:
    """Each file that git knows in a folder, in submodules too: the checkout, the path there, git's name of the content.

    Nothing if the folder isn't the top of a checkout.
    """
    listed = _git(top, "ls-files", "--stage", "-z") if (top / ".git").exists() else ""
    entries = [entry.partition("\t") for entry in listed.split("\0") if entry]
    own = ((top, path, about.split()[1]) for about, _, path in entries if not about.startswith(_LINK))
    links = [top / path for about, _, path in entries if about.startswith(_LINK)]
    return (*own, *(found for link in links for found in _known(link)))


def _git(top: Path, *arguments: str) -> str:
    """What git prints; nothing where it fails."""
    command = ["git", "--no-optional-locks", "-C", str(top), *arguments]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_GIT_LIMIT, env=own)
    except (OSError, subprocess.SubprocessError):
        return ""
    return os.fsdecode(done.stdout)


def _packages(trees: Iterable[Path]) -> Iterator[str]:
    """Names of the packages whose sources lie in a repository: at its top, in a folder such as src, or one deeper.

    A package one deeper is of a namespace, such as company.kernels in src.
    """
    for top in trees:
        for place in _places(top):
            for found in (*place.glob("*/__init__.py"), *place.glob("*/*/__init__.py")):
                inside = found.parent.relative_to(place)
                if len(inside.parts) == 1 or not (found.parents[1] / "__init__.py").is_file():
                    yield ".".join(inside.parts)


def _single_modules(trees: Iterable[Path]) -> Iterator[str]:
    """Names of modules of one file that lie in a repository, at its top or in a folder such as src."""
    yield from (found.stem for top in trees for place in _places(top) for found in place.glob("*.py"))


def _places(top: Path) -> Iterator[Path]:
    """The folders of a repository that hold modules and packages, as far as these may have been installed from there.

    A folder that is itself a package isn't one.
    """
    yield top
    yield from (place for place in top.glob("[!.]*/") if place.is_dir() and not (place / "__init__.py").is_file())


def _installed_from(trees: Sequence[Path], path: Sequence[str]) -> Iterator[str]:
    """The files of every distribution but the harness that is the repository's, without what only pip and Python read.

    pip has installed it from there, or from a wheel there; or a project there has its name, wherever the wheel was.
    path: the folders of modules.
    """
    projects = {name for top in trees for name in _projects(top)}
    for distribution in importlib.metadata.distributions(path=[*path]):
        try:
            url = urlparse(json.loads(distribution.read_text("direct_url.json") or "{}").get("url", ""))
        except ValueError:
            continue
        from_here = url.scheme == "file" and Path(unquote(url.path)).resolve().is_relative_to(trees[-1])
        if from_here or _normal(_name(distribution)) in projects:
            own = [file for file in distribution.files or () if not _OF_PIP.match(file.parts[0])]
            yield from (os.path.realpath(file.locate()) for file in own)


def _name(distribution: importlib.metadata.Distribution) -> str:
    """The name of a distribution, by its folder: to read its metadata would tell that a side uses them."""
    return Path(str(getattr(distribution, "_path", ""))).name.partition("-")[0].removesuffix(".egg-info")


def _projects(top: Path) -> Iterator[str]:
    """The names of the projects whose files lie in a folder, as pip compares names."""
    for place, path, content in _known(top):
        if read := _NAMED_IN.get(Path(path).name):
            # From git: to open the file would tell that a side uses it.
            with suppress(ValueError, SyntaxError, configparser.Error):
                yield from map(_normal, read(_git(place, "cat-file", "blob", content)))


def _of_pyproject(text: str) -> Iterator[str]:
    told = tomllib.loads(text)
    tables = (told.get("project"), told.get("tool", {}).get("poetry"))
    yield from (table["name"] for table in tables if isinstance(table, dict) and isinstance(table.get("name"), str))


def _of_setup_cfg(text: str) -> Iterator[str]:
    told = configparser.ConfigParser(interpolation=None)
    told.read_string(text)
    yield from filter(None, [told.get("metadata", "name", fallback="")])


def _of_setup_py(text: str) -> Iterator[str]:
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    setups = (call for call in calls if ast.unparse(call.func).rpartition(".")[2] == "setup")
    named = (keyword.value for call in setups for keyword in call.keywords if keyword.arg == "name")
    yield from (value.value for value in named if isinstance(value, ast.Constant) and isinstance(value.value, str))


_NAMED_IN = {"pyproject.toml": _of_pyproject, "setup.cfg": _of_setup_cfg, "setup.py": _of_setup_py}


def _normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()
