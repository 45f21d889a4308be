"""Scenario files -> definitions. Every name is checked against the op, and all problems are reported at once."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from harness.errors import InputError, Problem, nearest
from harness.expressions import ExpressionError
from harness.model import Case, Claim, Curve, Expectation, Timing, Value
from harness.model.case import written
from harness.ops import ITEMSIZE, Op
from harness.ops.known_cases import recognised
from harness.scenario.definition import MOST_CASES, Definition, Setting
from harness.scenario.documents import Document, KeyPath, read, shown
from harness.scenario.names import Names
from harness.scenario.schema import ScenarioKeys, validate
from harness.scenario.shapes import expand, value

_MOST_CASES = 5 * MOST_CASES
"""The most cases of all files together. Nearly 10,000 are bundled."""
_SURELY_MEANT = 0.75
"""Similarity of names from which on an unknown one is taken for a spelling mistake."""


def load(paths: Sequence[Path], catalogue: Mapping[str, Op]) -> tuple[Definition, ...]:
    """The scenarios in the files at `paths`. Raises InputError with all problems of all files."""
    problems: list[Problem] = []
    definitions: dict[str, Definition] = {}
    count = 0
    for path in paths:
        found, wrong = _definitions(path, catalogue)
        problems += wrong
        count += sum(len(own.settings) * len(own.dtypes) * len(own.variants) for own in found)
        if count > _MOST_CASES:
            message = f"with the files before it, it makes {count:,} cases; {_MOST_CASES:,} is the limit of a command"
            problems.append(Problem(str(path), message, "name fewer files"))
            break
        for definition in found:
            first = definitions.setdefault(definition.name, definition)
            if first is not definition:
                message = f"another scenario is named '{definition.name}' too: {first.file}"
                problems.append(Problem(str(path), message, "rename one of the files"))
                break
    if problems:
        raise InputError(problems)
    return tuple(definitions.values())


def _definitions(path: Path, catalogue: Mapping[str, Op]) -> tuple[list[Definition], list[Problem]]:
    """The scenarios of one file that are right, and what is wrong with the rest."""
    found: list[Definition] = []
    problems: list[Problem] = []
    try:
        documents = read(path)
    except InputError as error:
        return [], list(error.problems)
    for document in documents:
        try:
            found.append(_definition(document, catalogue))
        except InputError as error:
            problems += error.problems
    return found, problems


def _definition(document: Document, catalogue: Mapping[str, Op]) -> Definition:
    """The scenario in one document. Raises InputError with all of its problems."""
    names = _names(document.data, catalogue)
    keys, wrong, structure = validate(document, names)
    problems = [*document.problems, *structure]
    settings: tuple[Setting, ...] = ()
    if names.op is None:
        problems += _impossible_dtypes(document)
    elif names.op.variants and not wrong & {"shapes", "choices"}:
        settings, unfit = expand(document, keys, names.op, names.dtypes, names.variants)
        # A claim about a shape that is wrong would only report the same mistake again.
        problems += unfit or [
            *_places(document, keys, names.op, names.dtypes, settings),
            *_curve(document, keys, names.op, settings),
        ]
    if problems:
        raise InputError(_one_each(problems))
    return Definition(
        name=document.name,
        file=document.file,
        title=keys.title,
        op=keys.op,
        settings=settings,
        dtypes=names.dtypes,
        variants=names.variants,
        baseline=keys.baseline if keys.baseline in names.variants else names.variants[0],
        shows=keys.shows,
        source=keys.source,
        rows=tuple(keys.rows),
        tags=tuple(keys.tags),
        cache=keys.cache,
        timing=Timing(**keys.timing.model_dump()),
        expect=tuple(_floors(keys)),
        claims=tuple(Claim(**{**claim.model_dump(), "base": tuple(claim.base.items())}) for claim in keys.claims),
        curve=Curve(**keys.curve.model_dump()) if keys.curve else None,
        plot=keys.plot,
    )


def _floors(keys: ScenarioKeys) -> Iterator[Expectation]:
    for variant, entries in keys.expect.items():
        for entry in entries:
            yield from (Expectation(variant, metric, least, entry.where) for metric, least in entry.floors.items())


def _names(data: Mapping[str, object], catalogue: Mapping[str, Op]) -> Names:
    """The names that a file may use, by the data before it is checked, so that one wrong name hides no other.

    The op is the one named, or where there is none the one that is surely meant.
    """
    name = data.get("op")
    if not isinstance(name, str):
        return Names(catalogue)
    close = [name] if name in catalogue else difflib.get_close_matches(name, catalogue, n=1, cutoff=_SURELY_MEANT)
    if not close:
        return Names(catalogue)
    op = catalogue[close[0]]
    return Names(catalogue, op, _chosen(data.get("dtypes"), op.dtypes), _chosen(data.get("variants"), op.variants))


def _impossible_dtypes(document: Document) -> Iterator[Problem]:
    """A problem for each dtype that no op can have, where the op itself isn't known."""
    listed = document.data.get("dtypes")
    for index, name in enumerate(listed if isinstance(listed, list) else [listed]):
        if isinstance(name, str) and name not in ITEMSIZE:
            yield document.problem(("dtypes", index), f"no dtype is named '{name}'", nearest(name, ITEMSIZE))


def _chosen(listed: object, every: Collection[str]) -> tuple[str, ...]:
    """The listed names that exist, each once; every name where none is listed."""
    known = [name for name in listed if isinstance(name, str) and name in every] if isinstance(listed, list) else []
    return tuple(dict.fromkeys(known or every))


def _places(
    document: Document, keys: ScenarioKeys, op: Op, dtypes: Sequence[str], settings: Sequence[Setting]
) -> Iterator[Problem]:
    """Claims and floors about cases that this scenario doesn't have."""
    made = [
        Case(op.name, "", dtype, setting.shape, setting.choices, setting.world, cache=keys.cache)
        for dtype in dtypes
        for setting in settings
    ]
    groups = list(dict.fromkeys(recognised(case, {op.name: op}).group for case in made))
    # A glob may also name what is at the op's default. All at once, since a scenario may have thousands of both.
    names = list(dict.fromkeys((*groups, *(case.group for case in made))))
    globs: dict[KeyPath, str] = {("claims", index): claim.where for index, claim in enumerate(keys.claims)}
    for variant, entries in keys.expect.items():
        globs |= {("expect", variant, index): entry.where for index, entry in enumerate(entries)}
    such = f"cases are such as {min(groups, default='')}"
    for path, where in globs.items():
        if not fnmatch.filter(names, where):
            yield document.problem((*path, "where"), f"{shown(where)} matches no case of this scenario", such)
    have = {_written(setting.values) for setting in settings}
    for index, claim in enumerate(keys.claims):
        if claim.base and not any(_written({**setting.values, **claim.base}) in have for setting in settings):
            yield document.problem(
                ("claims", index, "base"), f"{shown(claim.base)} is of no case of this scenario", such
            )


def _written(values: Mapping[str, int | Value]) -> tuple[tuple[str, str], ...]:
    """Sizes and choices that can be compared, whatever the types that a file gives them."""
    return tuple((name, written(value)) for name, value in values.items())


def _curve(document: Document, keys: ScenarioKeys, op: Op, settings: Sequence[Setting]) -> Iterator[Problem]:
    """A problem if the curve's expression has no place on a logarithmic axis, for the first shape where that is so."""
    if keys.curve is None:
        return
    try:
        for setting in settings:
            value(keys.curve.over, {"world": setting.world, **dict(setting.shape)}, what="what a curve is over")
    except ExpressionError as error:
        advice = nearest(error.symbol, op.symbols) if error.symbol else ""
        yield document.problem(("curve", "over"), str(error), advice)


def _one_each(problems: Sequence[Problem]) -> list[Problem]:
    """The first problem at each place, in the order of the file."""
    first = {problem.where: problem for problem in reversed(problems)}
    return sorted(first.values(), key=lambda problem: (_line(problem.where), problem.where))


def _line(where: str) -> int:
    """The line in 'file.yaml:12: key'; 0 for the whole file."""
    number = where.partition(": ")[0].rpartition(":")[2]
    return int(number) if number.isdigit() else 0
