"""What reports say of an op beside the table of its cases: pictures, sections, and verdicts for a console.

An op brings it along. Its `pages` names a module, or is a function that gives a module or an object. This has any of:

- `figures(lines)`: pictures that stand beside the plots of a scenario;
- `sections(lines)`: sections of the page, below the scenario's table;
- `verdicts(lines)`: sentences for a console, and for `harness profile`;
- `ELSEWHERE`: beginnings of names of figures that tools found, such as 'mytool.', which the sections show, so that the
  table doesn't.

lines: the cases of one scenario, each with its metrics (`harness.report.frame.Line`). What the functions give are
blocks of `harness.report.tree`. The format `plots` draws each Figure that says how it is drawn; `figure` makes one.

Only what makes reports imports a module of pages, so it may import what a listing of ops mustn't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

from harness.discover import entry_points, load
from harness.errors import UsageError, brief, described
from harness.model import Run
from harness.ops.catalogue import LOADED
from harness.report.frame import Line, by_scenario
from harness.report.plotting import FOLDER, file_name
from harness.report.tree import Block, Figure, Note, Section, figures_in

B = TypeVar("B", bound=Block)
_OFFERS = ("figures", "sections", "verdicts")


def figures(lines: Sequence[Line]) -> list[Figure | Note]:
    """The op's pictures of one scenario that stand beside its plots."""
    return _given("figures", lines)


def sections(lines: Sequence[Line]) -> list[Section | Note]:
    """The op's sections of one scenario."""
    return _given("sections", lines)


def verdicts(lines: Sequence[Line]) -> list[Note]:
    """What the op says of one scenario on a console."""
    return _given("verdicts", lines)


def drawings(run: Run, variants: Sequence[str] = ()) -> Iterator[Figure]:
    """Every picture of ops of a run that says how it is drawn. variants: only these; all if empty."""
    for _, every in by_scenario(run):
        lines = [line for line in every if not variants or line.case.variant in variants]
        if not lines:
            continue
        yield from (found for found in figures_in([*figures(lines), *sections(lines)]) if found.draw)


def is_elsewhere(op: str, key: str) -> bool:
    """Whether the op's sections show this figure that a tool found. key: '<tool>.<name>'."""
    try:
        return key.startswith(tuple(getattr(_of(op), "ELSEWHERE", ())))
    except Exception:  # the sections, which can't be made then, say why
        return False


def figure(alt: str, draw: Callable[[Path], list[Path]], scenario: str, *words: str) -> Figure:
    """A picture that `draw` writes to a path, which it gives. scenario, words: they make the name of its file."""
    return Figure(f"{FOLDER}/{file_name(scenario, *words)}.svg", alt, draw)


def _given(what: str, lines: Sequence[Line]) -> list[Any]:
    """What the pages of the op give. An error in them costs only their own part: a note stands in its place."""
    op = lines[0].case.op
    try:
        function = cast(Callable[[Sequence[Line]], Any], getattr(_of(op), what, lambda _: ()))
        return list(function(lines))
    except Exception as error:  # of a user's op, too; the results are more important
        return [Note(f"the {what} of op '{op}' can't be made: {brief(described(error))}", "warning")]


def _of(name: str) -> object:
    """What the op says of its reports; None if it says nothing, or isn't loaded."""
    op = LOADED.get(name)
    pages = op.pages if op else _of_ladder(name)
    return _pages(name, pages) if pages else None


def _of_ladder(name: str) -> str:
    """The pages of an op that `harness ladder` made of a user's step, whose plug-in isn't loaded; '' for other ops."""
    ladders = (load(entry) for entry in entry_points("harness.ladders"))
    return next((str(one.PAGES) for one in ladders if name.startswith(one.PREFIX)), "")


@cache
def _pages(name: str, pages: str | Callable[[], object]) -> object:
    found = import_module(pages) if isinstance(pages, str) else pages()
    if not any(hasattr(found, offer) for offer in _OFFERS):
        message = f"the pages of op '{name}' ({pages}) have no {', no '.join(_OFFERS[:-1])} and no {_OFFERS[-1]}"
        raise UsageError(message, "define one of these functions of the lines of a scenario")
    return found
