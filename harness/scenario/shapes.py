"""Shapes and choices as a scenario writes them (lists, products, zips, expressions) -> settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from harness.errors import HarnessError, Problem, nearest
from harness.expressions import LIMIT, ExpressionError, evaluate, symbols_in
from harness.model import COMPUTE_KINDS, Value
from harness.ops import Choice, Op, Tensor
from harness.scenario.definition import MOST_CASES, Setting
from harness.scenario.documents import Document, KeyPath, shown
from harness.scenario.schema import Product, ScenarioKeys, Zip

_COUNTED = 10**12
"""Cases that are counted; the product of some lists has more digits than a number that is shown."""
Written = list[dict[str, Any]] | Product | Zip


@dataclass(frozen=True, slots=True)
class _Row:
    """One shape before its expressions have values, and where each size is written."""

    path: KeyPath
    sizes: Mapping[str, object]
    paths: Mapping[str, KeyPath]

    def at(self, symbol: str) -> KeyPath:
        """Path of the key where `symbol` is written; where it would be, if its size is the op's default."""
        return self.paths.get(symbol, (*self.path, symbol))


def expand(
    document: Document, keys: ScenarioKeys, op: Op, dtypes: Sequence[str], variants: Sequence[str]
) -> tuple[tuple[Setting, ...], list[Problem]]:
    """Each setting once, in the order written, with all of the op's sizes and choices; and what is wrong.

    dtypes, variants: the ones to be measured, whose tensors must be countable in 64 bits.
    """
    problems = [*_symbols(document, keys.shapes, op), *_unknown_choices(document, keys, op)]
    if too_many := _too_many(document, keys, op, len(dtypes) * len(variants)):
        return (), [*problems, too_many]
    rows, uneven = _rows(document, keys.shapes)
    problems += uneven
    tensors = list(dict.fromkeys(t for name in variants for group in op.tensors(op.variants[name]) for t in group))
    settings: dict[Setting, None] = {}
    for row in rows:
        sizes, wrong = _resolve(document, row, op)
        chosen, unfit = _choices(document, row, keys.choices, op)
        wrong += unfit
        if not wrong and len(sizes) == len(op.symbols):
            shape = tuple((symbol, sizes[symbol]) for symbol in op.symbols)
            made = [
                Setting(shape, tuple(zip(op.choices, values, strict=True)), world)
                for values in itertools.product(*chosen)
                for world in keys.world
            ]
            misfits = dict.fromkeys(text for setting in made for text in obstacles(op, tensors, setting, dtypes))
            wrong = [document.problem(row.path, message) for message in misfits]
            settings |= dict.fromkeys(made)
        problems += wrong
    return tuple(settings), problems


def _too_many(document: Document, keys: ScenarioKeys, op: Op, each: int) -> Problem | None:
    """A problem if the scenario makes more cases than the limit, before any is made. each: cases of a setting."""
    written = keys.shapes
    choices = [len(values) for name, values in keys.choices.items() if name in op.choices]
    if isinstance(written, Product):
        rows = [len(column) for column in written.product.values()]
    elif isinstance(written, Zip):
        rows = [max(map(len, written.zip.values()))]
    else:
        rows = [len(written)]
    count = 1
    for length in (each, *rows, *choices, len(keys.world)):
        count *= length
        if count > _COUNTED:
            break
    if count <= MOST_CASES:
        return None
    found = f"more than {_COUNTED:,}" if count > _COUNTED else f"{count:,}"
    message = f"makes {found} cases; {MOST_CASES:,} is the limit of a scenario"
    return document.problem(("shapes",), message, "shorten its lists, or make several scenarios of it")


def _unknown_choices(document: Document, keys: ScenarioKeys, op: Op) -> Iterator[Problem]:
    """Names in the key `choices` that the op doesn't have."""
    for name in keys.choices.keys() - op.choices.keys():
        advice = nearest(name, op.choices) if op.choices else "leave it out: this op has no choices"
        yield document.problem(("choices", name), f"op '{op.name}' has no such choice", advice)


def _choices(
    document: Document, row: _Row, everywhere: Mapping[str, Sequence[object]], op: Op
) -> tuple[list[list[Value]], list[Problem]]:
    """The values of each choice of the op in one shape: the shape's own, else the scenario's, else the default."""
    found: list[list[Value]] = []
    problems: list[Problem] = []
    for name, choice in op.choices.items():
        if name in row.sizes and name in everywhere:
            problems.append(document.problem(row.at(name), "is set in 'choices' too", "remove one of the two"))
        if name in row.sizes:
            places = [(row.at(name), row.sizes[name])]
        else:
            places = [(("choices", name, at), value) for at, value in enumerate(everywhere.get(name, [choice.usual]))]
        values = [_spelled(choice, value) for _, value in places]
        problems += [
            document.problem(path, f"{shown(value)} isn't a value of this choice", f"allowed: {choice.allowed}")
            for path, value in places
            if not choice.accepts(_spelled(choice, value))
        ]
        found.append(list(dict.fromkeys(values)))
    return found, problems


def _spelled(choice: Choice, value: Any) -> Any:
    """The value as the op spells it: YAML reads a bare yes or no as true or false."""
    word = {True: "yes", False: "no"}[value] if isinstance(value, bool) else None
    return word if word in choice.values else value


def _mappings(written: Written) -> list[tuple[KeyPath, Mapping[str, object]]]:
    """The mappings of symbols in the file, each with its key path."""
    if isinstance(written, Product):
        return [(("shapes", "product"), written.product)]
    if isinstance(written, Zip):
        return [(("shapes", "zip"), written.zip)]
    return [(("shapes", index), sizes) for index, sizes in enumerate(written)]


def _symbols(document: Document, written: Written, op: Op) -> Iterator[Problem]:
    """Symbols that the op doesn't have, and symbols that it needs."""
    known = [*op.symbols, *op.choices]
    for path, mapping in _mappings(written):
        for symbol in mapping.keys() - set(known):
            yield document.problem((*path, symbol), f"op '{op.name}' has no such symbol", nearest(symbol, known))
        missing = [symbol for symbol in op.symbols if symbol not in mapping and symbol not in op.defaults]
        if missing:
            needed = ", ".join(op.symbols)
            yield document.problem(path, f"no size for {', '.join(missing)}", f"op '{op.name}' has {needed}")


def _rows(document: Document, written: Written) -> tuple[list[_Row], list[Problem]]:
    if isinstance(written, list):
        return [
            _Row(("shapes", index), sizes, {symbol: ("shapes", index, symbol) for symbol in sizes})
            for index, sizes in enumerate(written)
        ], []
    [(path, _)] = _mappings(written)
    columns = written.product if isinstance(written, Product) else written.zip
    lengths = {symbol: len(column) for symbol, column in columns.items() if len(column) > 1}
    places: Iterator[tuple[int, ...]]
    if isinstance(written, Product):
        places = itertools.product(*(range(len(column)) for column in columns.values()))
    elif len(set(lengths.values())) > 1:
        found = ", ".join(f"{symbol} has {length}" for symbol, length in lengths.items())
        return [], [document.problem(path, f"the lists must be of one length: {found}")]
    else:
        count = max(lengths.values(), default=1)
        places = (tuple(row % len(column) for column in columns.values()) for row in range(count))
    rows = []
    for place in places:
        picked = dict(zip(columns, place, strict=True))
        sizes = {symbol: columns[symbol][index] for symbol, index in picked.items()}
        rows.append(_Row(path, sizes, {symbol: (*path, symbol, index) for symbol, index in picked.items()}))
    return rows, []


def _resolve(document: Document, row: _Row, op: Op) -> tuple[dict[str, int], list[Problem]]:
    """Sizes of the symbols that have one, and what is wrong with the other symbols."""
    problems = [
        document.problem(
            row.at(symbol), f"a size is an integer or an expression such as 2**27 // N, found {shown(size)}"
        )
        for symbol, size in row.sizes.items()
        if symbol not in op.choices and not _is_size(size)
    ]
    written: dict[str, Any] = {**op.defaults, **row.sizes}
    texts: dict[str, int | str] = {s: written[s] for s in op.symbols if s in written and _is_size(written[s])}
    uses = {symbol: symbols_in(text) & op.symbols.keys() for symbol, text in texts.items()}
    try:
        order = list(TopologicalSorter(uses).static_order())
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        return {}, [*problems, document.problem(row.at(circle[0]), f"depends on itself: {' -> '.join(circle)}")]
    sizes: dict[str, int] = {}
    for symbol in order:
        if symbol not in texts or uses[symbol] - sizes.keys():
            continue  # missing, or made of sizes that are missing or wrong: reported already
        try:
            sizes[symbol] = value(texts[symbol], sizes, least=0 if op.defaults.get(symbol) == "0" else 1)
        except ExpressionError as error:
            advice = nearest(error.symbol, op.symbols) if error.symbol else _advice(texts[symbol])
            problems.append(document.problem(row.at(symbol), str(error), advice))
    return sizes, problems


def _advice(text: int | str) -> str:
    """What to do about an expression that YAML cut: {N: max(M, 2)} is cut at the comma, inside of the parentheses."""
    cut = isinstance(text, str) and text.count("(") > text.count(")")
    return "inside {} and [], quote an expression that holds a comma" if cut else ""


def _is_size(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def value(text: int | str, sizes: Mapping[str, int], least: int = 1, what: str = "a size") -> int:
    """The value of an expression of sizes. what: what it is, for the message.

    Raises ExpressionError, with the values of the symbols that the expression uses.
    """
    given = ", ".join(f"{name} = {sizes[name]}" for name in sorted(symbols_in(text) & sizes.keys()))
    expression = f"'{text}'" + (f" (with {given})" if given else "")
    try:
        found = evaluate(text, sizes)
    except ExpressionError as error:
        raise ExpressionError(f"{expression} {error}", error.symbol) from error
    if found < least:
        shown_ = f"{expression} is {found}" if isinstance(text, str) else f"found {found}"
        raise ExpressionError(f"{what} must be {least} or more; {shown_}")
    return found


def _reason(error: BaseException) -> str:
    if isinstance(error, HarnessError):
        return f"{error.message} ({error.advice})" if error.advice else error.message
    return str(error) if isinstance(error, ExpressionError) else f"{type(error).__name__}: {error}"


def obstacles(op: Op, tensors: Sequence[Tensor], setting: Setting, dtypes: Sequence[str]) -> Iterator[str]:
    """Why the op can't have this shape: tensors of negative size, numbers that 64 bits can't hold."""
    try:
        bytes_ = [(tensor.name, tensor.bytes(setting.values, dtype)) for tensor in tensors for dtype in dtypes]
        works = [op.work_of(setting.values, dtype) for dtype in dtypes]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the op may be a plug-in, whose functions raise anything, SystemExit too
        reason = _reason(error)
        yield f"op '{op.name}' can't have this shape: {reason}"
        return
    for kind in {kind for work in works for kind, _ in work.flops} - set(COMPUTE_KINDS):
        allowed = ", ".join(COMPUTE_KINDS)
        yield f"op '{op.name}' counts operations in '{kind}', whose peak can't be measured (allowed: {allowed})"
    for name, count in bytes_:
        if count > LIMIT:
            yield f"tensor '{name}' overflows 64 bits: it has {count:.3g} bytes"
        elif count < 0:
            yield f"tensor '{name}' has a negative size"
