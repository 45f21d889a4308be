"""Scenario files: their YAML is read so that every key keeps its line.

A file holds one scenario, or several as YAML documents, which `---` separates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from harness import foreign
from harness.errors import InputError, Problem, clipped

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML built without libyaml: the same, ten times slower
    from yaml import SafeLoader  # type: ignore[assignment]

KeyPath = tuple[str | int, ...]

_EXAMPLE = "'harness list scenario quick' names the file of an example"
_MOST_NESTED = 20
"""Levels. No scenario needs six."""
_MOST_BYTES = 4 << 20
_MOST_VALUES = 20_000
"""The most keys and values of a file, each as often as it is referred to. The largest bundled file has 500."""
_MOST_DOCUMENTS = 500
_LETTERS = 1_000
"""A text counts as one more value for each so many letters."""
_LONGEST_NUMBER = 100  # characters, also of true, false, null and dates
_MOST_KEYS = 10  # of a mapping that messages show
_SHOWN = 80  # characters of a value, or of a key, that messages show
_FEWER = "write products in place of lists of shapes, or several files"
# What the user can do about an error of the YAML parser, by a part of the parser's message.
_EXPLANATIONS = (
    ("cannot start any token", "a tab or a special character starts a word; indent with spaces, quote the text"),
    ("mapping values are not allowed", "a second ': ' in one line, or wrong indentation; quote text that holds ': '"),
    ("could not find expected ':'", "a key without ': ' after it, or a bracket or quote left open"),
    ("while parsing a flow", "a bracket is left open, or a comma is missing"),
    ("alias", "'*' starts a reference to an anchor, which stands above, after the last '---'; or quote the text"),
)


class _Loader(SafeLoader):
    """YAML 1.1 as PyYAML reads it, but 1350e9 is a number, as in YAML 1.2 and in editors."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML mapping with the nodes it was made of. problems: mistakes that leave the rest readable.

    name: the scenario's. It is '<stem>' for the only scenario of a file, '<stem>.<op>' for one of several, and
    '<stem>.<op>.2' for the second one with that op.
    """

    name: str
    file: Path
    data: dict[str, Any]
    root: yaml.Node
    problems: tuple[Problem, ...]

    def problem(self, path: KeyPath, message: str, advice: str = "") -> Problem:
        """A problem at `path`, with file, line and key. Where the last keys are missing, the line above them."""
        node, mark, key = self.root, self.root.start_mark, ""
        for part in path:
            if isinstance(part, int) and isinstance(node, yaml.MappingNode):
                continue  # keys are text, so this is an index of a list, in whose place the file has a single item
            found = _child(node, part)
            if found is None:
                key = _joined(key, part) if isinstance(node, yaml.MappingNode) else key
                break
            at, node = found
            mark, key = at.start_mark, _joined(key, part)
        return _problem(self.file, mark, key, message, advice)


def read(file: Path) -> tuple[Document, ...]:
    """The mappings in a YAML file, one for each document. Raises InputError if it has none or can't be read."""
    text = _text(file)
    try:
        _check_size(file, text)
        return _documents(file, _Loader(text))
    except yaml.MarkedYAMLError as error:
        # libyaml of PyYAML 6.0.4 refuses 1000 levels, and looks so far ahead that it hasn't told of any.
        if "nesting depth" in _reason(error):
            raise InputError([_too_deep(file)]) from error
        mark, message = error.problem_mark, f"isn't valid YAML: {_reason(error)}"
        raise InputError([_problem(file, mark, "", message, _advice(error))]) from error
    except yaml.YAMLError as error:
        message = "holds control characters, so it isn't YAML text"
        raise InputError([Problem(str(file), message, _EXAMPLE)]) from error


def _documents(file: Path, loader: _Loader) -> tuple[Document, ...]:
    read_: list[tuple[yaml.Node, _Builder, dict[str, Any]]] = []
    problems: list[Problem] = []
    values = 0
    try:
        # One by one: an anchor holds within its document.
        while loader.check_node():
            root = loader.get_node()
            if isinstance(root, yaml.MappingNode):
                builder = _Builder(file, loader, _MOST_VALUES - values)
                read_.append((root, builder, builder.build(root)))
                values += builder.size(root)
            else:
                problems.append(_no_scenario(file, root))
    finally:
        loader.dispose()
    if not read_ and not problems:
        problems = [Problem(str(file), "is empty", _EXAMPLE)]
    if problems:
        raise InputError(problems)
    names = _names(file.stem, [data.get("op") for _, _, data in read_])
    return tuple(
        Document(name, file, data, root, tuple(builder.problems))
        for name, (root, builder, data) in zip(names, read_, strict=True)
    )


def _no_scenario(file: Path, root: yaml.Node | None) -> Problem:
    assert root is not None  # check_node() had said that there is one
    if isinstance(root, yaml.ScalarNode) and not root.value:
        return _problem(
            file, root.start_mark, "", "nothing stands between one '---' and the next", "remove one of them"
        )
    message = f"holds a {_kind(root)}; a scenario is a mapping of keys such as title, op and shapes"
    return _problem(file, root.start_mark, "", message, _EXAMPLE)


def _names(stem: str, ops: Sequence[object]) -> list[str]:
    """A name for each scenario of a file, from what it gives as its op."""
    if len(ops) == 1:
        return [stem]
    nth = [1 + ops[:index].count(op) for index, op in enumerate(ops)]
    return [f"{stem}.{clipped(str(op), _SHOWN)}" + (f".{n}" if n > 1 else "") for op, n in zip(ops, nth, strict=True)]


class _Builder:
    """Makes plain data of YAML nodes. Keys stay text: 'on' is a key like any other, and so is '1'.

    most: values that the document may have. Raises InputError for a document that has more, or is nested too deeply,
    when each value counts wherever it is referred to: what reads the data goes through it as often.
    """

    def __init__(self, file: Path, loader: _Loader, most: int) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._loader = loader
        self._most = most
        self._containers: dict[int, Any] = {}
        self._weights: dict[int, tuple[int, int]] = {}

    def build(self, node: yaml.Node, key: str = "") -> Any:
        # An alias is the node that it names. Each node is built once, so an alias inside its own node makes no loop.
        if id(node) in self._containers:
            return self._containers[id(node)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            items: list[Any] = []
            self._containers[id(node)] = items
            items.extend(self.build(item, _joined(key, index)) for index, item in enumerate(node.value))
            self._weigh(node, node.value)
            return items
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node, key)

    def size(self, node: yaml.Node) -> int:
        """Values of a node that was built, each as often as it is referred to. An alias inside its own node is one."""
        if isinstance(node, yaml.ScalarNode):
            return 1 + len(node.value) // _LETTERS
        return self._weights.get(id(node), (1, 1))[0]

    def _weigh(self, node: yaml.Node, inside: Iterable[yaml.Node]) -> None:
        parts = list(inside)
        size = 1 + sum(map(self.size, parts))
        depth = 1 + max((self._weights.get(id(part), (1, 0))[1] for part in parts), default=0)
        self._weights[id(node)] = size, depth
        if size > self._most:
            message = f"has more than {_MOST_VALUES:,} keys and values, the limit; what '*' refers to counts each time"
            raise InputError([_problem(self._file, node.start_mark, "", message, _FEWER)])
        if depth > _MOST_NESTED:
            raise InputError([_too_deep(self._file)])

    def _scalar(self, node: yaml.ScalarNode, key: str) -> Any:
        """The value of a scalar; its text, and a problem, where its tag is one that the text doesn't suit."""
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        try:
            if kind == "str" or len(node.value) <= _LONGEST_NUMBER:
                made = self._loader.construct_object(node)
                if made is None or isinstance(made, str | int | float | date):
                    return made
        except Exception:  # what constructors raise for text that doesn't suit a tag isn't said anywhere
            pass
        message = f"'{clipped(node.value, _SHOWN)}' can't be read as {clipped(kind, _SHOWN)}"
        self._report(node, key, message, "quote it if it is text")
        return node.value

    def _mapping(self, node: yaml.MappingNode, key: str) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        lines: dict[str, int] = {}
        self._containers[id(node)] = mapping
        for name_node, value in node.value:
            name = name_node.value
            if not isinstance(name_node, yaml.ScalarNode):
                self._report(name_node, key, f"a key must be a word, found a {_kind(name_node)}")
            elif name in mapping:
                self._report(name_node, _joined(key, name), f"is written twice, first in line {lines[name]}")
            else:
                if name == "<<":
                    self._report(name_node, _joined(key, name), "mappings aren't merged here", "write the keys out")
                elif ":" in name and value.value == "":
                    self._report(name_node, _joined(key, name), "has no value", "write a space after ':'")
                lines[name] = name_node.start_mark.line + 1
                mapping[name] = self.build(value, _joined(key, name))
        self._weigh(node, (part for pair in node.value for part in pair))
        return mapping

    def _report(self, node: yaml.Node, key: str, message: str, advice: str = "") -> None:
        self.problems.append(_problem(self._file, node.start_mark, key, message, advice))


def shown(value: object) -> str:
    """A value as it stands in the file."""
    if isinstance(value, Mapping):
        keys = ", ".join(islice(value, _MOST_KEYS)) + (", ..." if len(value) > _MOST_KEYS else "")
        return f"a mapping with the keys {clipped(keys, 2 * _SHOWN)}" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return f"'{clipped(value, _SHOWN)}'" if isinstance(value, str) else str(value)


def _text(file: Path) -> str:
    try:
        return foreign.read(file, _MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise InputError([Problem(str(file), f"can't be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise InputError([Problem(str(file), "isn't UTF-8 text", "a scenario is a YAML file")]) from error


def _check_size(file: Path, text: str) -> None:
    """Refuse a text nested so deeply that libyaml, which recurses, would crash, and one of more than the limits."""
    depth = values = documents = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        documents += isinstance(event, yaml.DocumentStartEvent)
        values += isinstance(event, yaml.NodeEvent)
        if depth > _MOST_NESTED:
            raise InputError([_too_deep(file)])
        if values > _MOST_VALUES:
            raise InputError([Problem(str(file), f"has more than {_MOST_VALUES:,} keys and values, the limit", _FEWER)])
        if documents > _MOST_DOCUMENTS:
            raise InputError([Problem(str(file), f"has more than {_MOST_DOCUMENTS} scenarios, the limit", _FEWER)])


def _too_deep(file: Path) -> Problem:
    return Problem(str(file), f"is nested more than {_MOST_NESTED} levels deep", _EXAMPLE)


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "mapping"
    return "list" if isinstance(node, yaml.SequenceNode) else "single value"


def _reason(error: yaml.MarkedYAMLError) -> str:
    return ", ".join(part for part in (error.context, error.problem) if part)


def _advice(error: yaml.MarkedYAMLError) -> str:
    reason = _reason(error)
    return next((advice for fragment, advice in _EXPLANATIONS if fragment in reason), "")


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """The node to point at for `part` (a key, or an item) and the value under it; None if there is none."""
    if isinstance(node, yaml.MappingNode):
        return _pairs(node).get(part)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return node.value[part], node.value[part]
    return None


@lru_cache(maxsize=8)
def _pairs(node: yaml.MappingNode) -> dict[str | int, tuple[yaml.Node, yaml.Node]]:
    """The keys and values of a mapping by key, the first where one is written twice. Many problems may look one up."""
    return {key.value: (key, value) for key, value in reversed(node.value) if isinstance(key, yaml.ScalarNode)}


def _problem(file: Path, mark: yaml.Mark | None, key: str, message: str, advice: str) -> Problem:
    where = [f"{file}:{mark.line + 1}" if mark else str(file), *([key] if key else [])]
    return Problem(": ".join(where), message, advice)


def _joined(key: str, part: str | int) -> str:
    """A key path as people write it: 'shapes[0].N'."""
    if isinstance(part, int):
        return f"{key}[{part}]"
    name = clipped(part, _SHOWN)
    return f"{key}.{name}" if key else name
