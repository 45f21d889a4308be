"""The mutants of a file: each is one change of its source, such as `<=` for `<`, or a call left out."""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

_OPPOSITES: dict[type[ast.AST], tuple[Any, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,), ast.Mod: (ast.Mult,), ast.Pow: (ast.Mult,), ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.BitXor: (ast.BitOr,),
    ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
_TWINS = {"min": "max", "any": "all", "floor": "ceil", "median": "fmean"}
_TWINS |= {twin: name for name, twin in _TWINS.items()}


Key = tuple[str, str, str, str]
"""A mutant: its file, its scope, and its lines before and after."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a file. scope: the classes and the function around it. was, now: its lines, without what indents.

    lines: of its statement, or where what it makes is used: of a private constant the lines that name it, of a default
    the function's. Empty where that isn't known.
    """

    file: str
    line: int
    scope: str
    was: str
    now: str
    lines: Sequence[int] = field(compare=False)
    source: bytes = field(compare=False, repr=False)
    """The whole file with the change."""

    @property
    def key(self) -> Key:
        """What it is known by when its line has moved."""
        return self.file, self.scope, self.was, self.now

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.scope or 'the module'}\n  - {self.was}\n  + {self.now}"


@dataclass(frozen=True, slots=True)
class _Place:
    """A node that can be changed. decides: it is the condition of a branch, a loop or a filter."""

    node: Any
    scope: str
    lines: Sequence[int]
    decides: bool


def mutants(file: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, in the order of its lines."""
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    found = []
    tree = ast.parse(source)
    for place in _places(tree, "", _uses(tree), ()):
        node = place.node
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        left, right = starts[node.lineno - 1], starts[node.end_lineno]
        for text in dict.fromkeys(_changes(node, place.decides)):
            changed = source[:begin] + text.encode() + source[end:]
            now = changed[left : right + len(changed) - len(source)]
            made = Mutant(
                file, node.lineno, place.scope, _plain(source[left:right]), _plain(now), place.lines, source=changed
            )
            found.append(made)
    return sorted(found, key=lambda mutant: mutant.line)


def _plain(source: bytes) -> str:
    return " ".join(source.decode().split())


def _uses(tree: ast.Module) -> dict[str, list[int]]:
    """By name, the lines in functions that name it."""
    found: dict[str, list[int]] = defaultdict(list)
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node in (node for statement in function.body for node in ast.walk(statement)):
            if isinstance(node, ast.Name):
                found[node.id].append(node.lineno)
    return found


def _places(
    node: ast.AST, scope: str, uses: dict[str, list[int]], lines: Sequence[int], *, decides: bool = False
) -> Iterator[_Place]:
    """The nodes that can be changed: nothing that is only told to readers and type checkers."""
    if isinstance(node, (ast.stmt, ast.expr)):
        yield _Place(node, scope, lines, decides)
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # of zip(): as an assertion, it says what is so
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        scope = f"{scope}.{node.name}".lstrip(".")
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                own = _run_at(node, child, uses, lines)
                yield from _places(child, scope, uses, own, decides=name in ("test", "ifs"))


def _run_at(node: ast.AST, child: ast.AST, uses: dict[str, list[int]], lines: Sequence[int]) -> Sequence[int]:
    """The lines that run where a child of the node does. lines: the node's."""
    if isinstance(child, ast.stmt) and (lines or isinstance(node, ast.FunctionDef)):
        return _lines(child)
    if isinstance(child, ast.arguments) and isinstance(node, ast.FunctionDef):
        return range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)
    if isinstance(child, (ast.Assign, ast.AnnAssign)) and isinstance(node, ast.Module):
        targets = child.targets if isinstance(child, ast.Assign) else [child.target]
        names = [ast.unparse(target) for target in targets]
        # Other modules may use a constant that isn't private.
        return [line for name in names if name.startswith("_") for line in uses.get(name, ())]
    return lines


def _lines(statement: ast.stmt) -> Sequence[int]:
    """The lines of a statement, of a compound one only its head's."""
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno
    return range(statement.lineno, max(statement.lineno, last or 0) + 1)


def _changes(node: ast.AST, decides: bool) -> Iterator[str]:
    """Texts to put in the place of a node."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.Compare):
        yield from (f"({text})" for text in _other_comparisons(node))
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, (ast.Not, ast.USub)):
            yield f"({ast.unparse(node.operand)})"
    else:
        yield from _of_value(node)
        if decides:
            yield f"(not ({ast.unparse(node)}))"


def _of_statement(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.AugAssign():
            yield from _other_operators(node)
        case ast.Return() if node.value and not _is_none(node.value):
            yield "return None"
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.Raise():
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"


def _of_value(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.BinOp() | ast.BoolOp():
            yield from (f"({text})" for text in _other_operators(node))
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)):
            yield from (f"{value + 1}", f"({value - 1})")
        case ast.Constant(value=float(value)):
            yield from (f"{2 * value}", f"{value / 2}") if value else ("1.0",)
        case ast.Call(func=ast.Name(id="abs"), args=[argument]):
            yield f"({ast.unparse(argument)})"
        case ast.Call(func=ast.Name(id=name)) if name in _TWINS:
            yield ast.unparse(ast.Call(ast.Name(_TWINS[name]), node.args, node.keywords))
        case ast.Call(func=ast.Attribute(value=of, attr=name)) if name in _TWINS:
            yield ast.unparse(ast.Call(ast.Attribute(of, _TWINS[name]), node.args, node.keywords))


def _other_comparisons(node: ast.Compare) -> Iterator[str]:
    for at, operator in enumerate(node.ops):
        for other in _OPPOSITES[type(operator)]:
            changed = copy.copy(node)
            changed.ops = [*node.ops[:at], other(), *node.ops[at + 1 :]]
            yield ast.unparse(changed)


def _other_operators(node: Any) -> Iterator[str]:
    for other in _OPPOSITES.get(type(node.op), ()):
        changed = copy.copy(node)
        changed.op = other()
        yield ast.unparse(changed)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
