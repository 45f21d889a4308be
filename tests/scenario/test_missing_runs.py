"""The commands of reports/missing.md: each is one, and names cases that are there."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise, takewhile
from pathlib import Path

from harness.ops import Catalogue
from harness.scenario import Selection, find, load, plan
from tests.one_test import one_test
from tests.test_readme import complaint

PAGE = Path(__file__).parents[2] / "reports" / "missing.md"
TEXT = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
COMMANDS = [
    shlex.split(line.removeprefix("time "))[1:]
    for block in re.findall(r"```\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
    if line.removeprefix("time ").startswith("harness ")
]
RUNS = [words for words in COMMANDS if words[0] == "run"]


def options(words: list[str], name: str) -> tuple[str, ...]:
    return tuple(value for word, value in pairwise(words) if word == name)


@one_test("words", COMMANDS, ids=shlex.join)
def test_every_command_exists_with_its_options(words: list[str]) -> None:
    assert not complaint(words)


@one_test("words", RUNS, ids=shlex.join)
def test_every_run_has_cases_for_each_of_its_patterns(words: list[str]) -> None:
    ops = Catalogue()
    names = takewhile(lambda word: not word.startswith("--"), words[1:])
    variants = tuple(options(words, "--variants")[0].split(",")) if "--variants" in words else ()
    definitions = load(find(names), ops)
    # A pattern without a case is refused, and so is a variant that no op has.
    jobs = plan(definitions, ops, Selection("cuda", only=options(words, "--only"), variants=variants)).jobs
    assert {*variants} <= {job.case.variant for job in jobs}


@one_test("words", COMMANDS, ids=shlex.join)
def test_a_run_goes_to_a_folder_that_no_run_has(words: list[str]) -> None:
    """The command would end with an error, or take the place of another run."""
    for folder in options(words, "--output"):
        assert not (PAGE.parents[1] / folder / "run.json").exists(), folder
