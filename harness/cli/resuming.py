"""What `harness run --resume FOLDER` takes from the run in the folder, which may be somebody else's.

The stored command says what to measure and how. It never says which code to execute, which file to read, or which file
to write: the user names plug-ins, scenario files and files for results again.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from harness import paths
from harness.errors import UsageError

STREAMS = ("stdout", "stderr")
"""Where --json may write to that is no file."""
_TAKEN = ("device", "only", "tag", "variants", "dtype", "repeat", "precision", "max_time", "fresh_ceilings", "quiet")
"""Options of a stored command that are taken. Each other option stays with who gave it, as a new one does."""

Parsed = Callable[[list[str]], Mapping[str, Any]]
"""Gives the values of options by name. `scenarios` are the words that belong to none."""


def spelled(args: Sequence[str]) -> list[str]:
    """The arguments with `stdout` added to a lone --json, and nothing to a --resume that is about --output."""
    named = any(word.partition("=")[0] == "--output" for word in args)
    words = []
    for word, following in pairwise([*args, ""]):
        if word == "--json" and following not in STREAMS and not following.endswith(".json"):
            words.append("--json=stdout")
        elif word == "--resume" and (named or not following or following.startswith("-")):
            words.append("--resume=")
        else:
            words.append(word)
    return words


def stored_arguments(folder: Path, parsed: Parsed, given: Mapping[str, Any]) -> list[str]:
    """The arguments of the run in `folder` that are taken: bundled scenarios, and options that say what to measure.

    given: the user's own options by name. Raises UsageError if the folder holds no run, if the run had a scenario that
    isn't bundled, or if it had plug-ins and the user names none.
    """
    from harness import store

    command = store.load(folder).header.command
    file = folder / store.HEADER
    if strange := [word for word in command if not word.isprintable()]:
        found = f"{file}: the stored command has characters that can't be shown: {strange[0]!a}"
        raise UsageError(found, "name scenarios and options yourself: harness run SCENARIO --output=FOLDER --resume")
    options = parsed(spelled(command[2:]))
    scenarios = options.get("scenarios") or ()
    taken = [argument for name in _TAKEN for argument in _given(f"--{name.replace('_', '-')}", options.get(name))]
    plugins = _given("--ops", options.get("ops"))
    if named := [name for name in scenarios if not _is_bundled(name)]:
        whole = ["harness", "run", *scenarios, *taken, *plugins, f"--output={folder}", "--resume"]
        raise UsageError(
            f"{folder}: the run was of {_listed(named)}, and a stored run doesn't say which files are read or executed",
            f"if you trust {_listed([*named, *(options.get('ops') or ())])}: {shlex.join(whole)}",
        )
    if plugins and not given.get("ops"):
        again = ["harness", "run", "--resume", str(folder), *plugins]
        raise UsageError(
            f"{folder}: the run had the plug-ins {_listed(options['ops'])}, and a stored run doesn't say which code is "
            "executed",
            f"if you trust this code: {shlex.join(again)}",
        )
    target = options.get("json")
    if target in STREAMS:
        taken.append(f"--json={target}")
    elif target and not given.get("json") and not given.get("quiet"):
        typer.echo(f"note: --json={target} of the stored run isn't written; name it again to have it written", err=True)
    return [*scenarios, *taken]


def told_command(
    folder: Path, scenarios: Sequence[str], ops: Sequence[object], *, output: object, resume: object
) -> str:
    """The command that goes on with the run which this process has begun in `folder`, by what the user has typed.

    output, resume: the options, None where they weren't given.
    """
    words = sys.argv[2:]
    if resume is None and all(map(_is_bundled, scenarios)):
        words = ["--resume", str(folder), *(f"--ops={plugin}" for plugin in ops)]
    elif resume is None:
        words = [*words, *([] if output else [f"--output={folder}"]), "--resume"]
    return shlex.join(["harness", "run", *words])


def _given(option: str, value: Any) -> list[str]:
    """An option as arguments, once for each of its values; none if it wasn't given."""
    if value is True:
        return [option]
    values = value if isinstance(value, list) else [value] if value is not None else []
    return [f"{option}={each}" for each in values]


def _is_bundled(scenario: str) -> bool:
    """Whether a word names a bundled scenario, which comes with the package."""
    return any(scenario == file.stem for file in paths.data("scenarios").glob("*.yaml"))


def _listed(words: Sequence[object]) -> str:
    return ", ".join(map(str, words))
