"""Files that say what both sides run with: constraints, lock files, dependencies, images, the workflow of the gate."""

from __future__ import annotations

import ast
import configparser
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

_FILES = (
    "*constraints*.txt", "*constraints*.in", "*requirements*.txt", "*requirements*.in", "*.lock", "*.lockb",
    "*-lock.json", "*conda-lock*.yml", "environment*.yml", "environment*.yaml", "pylock*.toml", "pixi.toml", "Pipfile",
    ".python-version", ".tool-versions", "Dockerfile*", "*.dockerfile", "Containerfile*",
)  # fmt: skip
_DEPENDS = (
    ("project", "dependencies"), ("project", "optional-dependencies"), ("project", "requires-python"),
    ("build-system", "requires"), ("dependency-groups",), ("tool", "uv"), ("tool", "poetry"), ("tool", "pdm"),
)  # fmt: skip
_IN_SETUP = ("install_requires", "setup_requires", "python_requires", "extras_require")


def changed(files: Iterable[str], base: Path, now: Path) -> list[str]:
    """Those of the changed files by which other software would be installed. base, now: the folders of both sides.

    The file of the job that runs now is one, unless it is new: it names an image, variables, and what is gated.
    """
    job = _job(os.environ)
    own = {job} if job and (base / job).is_file() else set()
    return [file for file in files if file in own or _names_software(file) or _depends_otherwise(file, base, now)]


def differing(base: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Which versions the two sides ran with where they aren't the same, one text each. Software is told by name.

    A side that tells nothing has an earlier harness.
    """
    for name in sorted(base.keys() | now.keys()) if base and now else ():
        if base.get(name) != now.get(name):
            yield f"{name} {base.get(name, 'none')}, now {now.get(name, 'none')}"


def _job(environ: Mapping[str, str]) -> str:
    """The file of the repository that describes the job that runs now, as GitHub or GitLab tells it; "" for none."""
    # Such as OWNER/REPOSITORY/.github/workflows/gate.yml@refs/pull/1/merge, also where that calls another workflow.
    _, _, file = environ.get("GITHUB_WORKFLOW_REF", "").partition("@")[0].partition("/")[2].partition("/")
    return file or environ.get("CI_CONFIG_PATH", "")


def _names_software(file: str) -> bool:
    path = PurePosixPath(file)
    names = (path.name, "/".join(path.parts[-2:]))
    return any(fnmatchcase(name, pattern) for name in names for pattern in _FILES)


def _depends_otherwise(file: str, base: Path, now: Path) -> bool:
    read = _PROJECTS.get(PurePosixPath(file).name)
    return read is not None and _needs(base / file, read) != _needs(now / file, read)


def _needs(file: Path, read: Callable[[str], list[Any]]) -> list[Any]:
    """What a project says that it needs; nothing where there is no such file, or it can't be read."""
    try:
        return read(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, configparser.Error):
        return []


def _of_pyproject(text: str) -> list[Any]:
    project = tomllib.loads(text)
    return [_at(project, keys) for keys in _DEPENDS]


def _of_setup_cfg(text: str) -> list[Any]:
    told = configparser.ConfigParser(interpolation=None)
    told.read_string(text)
    options = [item for item in _section(told, "options") if item[0] in _IN_SETUP]
    return options + _section(told, "options.extras_require")


def _section(told: configparser.ConfigParser, name: str) -> list[tuple[str, str]]:
    return told.items(name) if told.has_section(name) else []


def _of_setup_py(text: str) -> list[Any]:
    """The arguments of `setup`, as they are written: what a variable holds isn't known."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    setups = (call for call in calls if ast.unparse(call.func).rpartition(".")[2] == "setup")
    return [ast.unparse(each) for call in setups for each in call.keywords if each.arg in _IN_SETUP]


def _at(table: Any, keys: Iterable[str]) -> Any:
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table


_PROJECTS = {"pyproject.toml": _of_pyproject, "setup.cfg": _of_setup_cfg, "setup.py": _of_setup_py}
