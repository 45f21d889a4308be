"""Which modules are a repository's, also where they were installed from it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlparse

INSTALLED = frozenset({"site-packages", "dist-packages"})
_GIT_LIMIT = 30.0
_LINK = "160000"  # the mode of a submodule


@dataclass(frozen=True, slots=True)
class OwnModules:
    """The modules of a repository.

    packages, modules: names as `import` takes them; files: of distributions that pip installed from the repository;
    places: the ends of paths of the repository's modules, of two names and more, such as kernels/fast.py.
    """

    packages: frozenset[str]
    modules: frozenset[str]
    files: frozenset[str]
    places: frozenset[str]

    @classmethod
    def of(cls, trees: Sequence[Path]) -> Self:
        """The modules of the repository in these folders, of which the last one is the working tree."""
        return cls(
            frozenset({*_packages(trees)} - {"harness"}),
            frozenset(_single_modules(trees)),
            frozenset(_installed_from(trees[-1])),
            frozenset(place for top in trees for place in _ends(top)),
        )

    def have(self, name: str, file: str) -> bool:
        """Whether a module is the repository's, by its name, or by its file."""
        words = name.split(".")
        alone = name in self.modules and Path(file).parent.name in INSTALLED
        known = alone or file in self.files or not self.packages.isdisjoint({words[0], ".".join(words[:2])})
        # A package without an __init__.py, or one that lies deep in the repository, is known by where its file lies.
        return known or (words[0] != "harness" and _installed_place(file) in self.places)


@cache
def _installed_place(file: str) -> str:
    """The path of an installed file below the folder of all packages; "" for one that isn't installed."""
    return next((file.rpartition(f"/{name}/")[2] for name in INSTALLED if f"/{name}/" in file), "")


def _ends(top: Path) -> Iterator[str]:
    """The ends of the paths of all modules that git knows in a folder, in submodules too."""
    # Not by a walk through the folder: git knows which files are code, and needn't look at millions of others.
    for entry in _known(top):
        about, _, path = entry.partition("\t")
        if about.startswith(_LINK):
            yield from _ends(top / path)
        elif path.endswith(".py"):
            parts = path.split("/")
            yield from ("/".join(parts[first:]) for first in range(len(parts) - 1))


def _known(top: Path) -> list[str]:
    """What git says of each file that it knows in a folder; nothing if the folder isn't the top of a checkout."""
    if not (top / ".git").exists():
        return []
    command = ["git", "--no-optional-locks", "-C", str(top), "ls-files", "--stage", "-z"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_GIT_LIMIT, env=own)
    except (OSError, subprocess.SubprocessError):
        return []
    return os.fsdecode(done.stdout).split("\0")


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


def _installed_from(top: Path) -> Iterator[str]:
    """The files of every distribution but the harness that pip installed from the repository, or from a wheel in it."""
    for distribution in importlib.metadata.distributions():
        try:
            url = urlparse(json.loads(distribution.read_text("direct_url.json") or "{}").get("url", ""))
        except ValueError:
            continue
        if url.scheme == "file" and Path(unquote(url.path)).resolve().is_relative_to(top):
            own = [file for file in distribution.files or () if file.parts[0] != "harness"]
            yield from (os.path.realpath(file.locate()) for file in own)
