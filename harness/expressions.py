"""Integer expressions of symbols. They are evaluated over a syntax tree, without `eval`; the only names are symbols."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

LIMIT = 2**63 - 1
_MAX_SHIFT = 64


class ExpressionError(ValueError):
    """The expression can't be read or has no value; the text says why. `symbol` is set if one is unknown."""

    def __init__(self, message: str, symbol: str | None = None) -> None:
        super().__init__(message)
        self.symbol = symbol


class MalformedError(ExpressionError):
    """The expression has no value, whatever the sizes are."""


def _floor_div(a: int, b: int) -> int:
    if b == 0:
        raise ExpressionError("divides by zero")
    return a // b


def _modulo(a: int, b: int) -> int:
    if b == 0:
        raise ExpressionError("takes a remainder by zero")
    return a % b


def _power(a: int, b: int) -> int:
    if b < 0:
        raise ExpressionError("has a negative exponent, which isn't an integer")
    # 2**64 is past the limit already; without this check 9**9**9 would run for hours.
    if b > _MAX_SHIFT and abs(a) > 1:
        raise ExpressionError("overflows 64 bits")
    return int(a**b)


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _floor_div,
    ast.Mod: _modulo,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "min": min,
    "max": max,
    "cdiv": lambda a, b: -_floor_div(-a, b),
}
_LONGEST = 10_000  # characters of an expression
_DEEPEST = 100
"""Levels of an expression's tree. Python's own limit isn't always the same: torch raises it for the process."""
ALLOWED = "integers, symbols, + - * // % **, parentheses, min(), max(), cdiv() (division rounded up)"


def evaluate(text: str | int, symbols: Mapping[str, Any]) -> int:
    """The integer value of `text`, e.g. '2**27 // N' with {'N': 512}. Symbols that it doesn't use may be anything.

    Raises ExpressionError for anything but integer arithmetic over known symbols within 64 bits.
    """
    tree, depth, _ = _parsed(_text(text))
    if tree is None:
        raise MalformedError(f"isn't an expression ({ALLOWED})")
    if depth > _DEEPEST:
        raise MalformedError("is nested too deeply")
    return _value(tree.body, symbols)


def symbols_in(text: str | int) -> frozenset[str]:
    """Names of the symbols that an expression uses; empty where it can't be read."""
    return _parsed(_text(text))[2]


def _text(text: str | int) -> str:
    """The expression as text; '' for one that is too long, which is no expression either."""
    if isinstance(text, int):
        return str(text) if abs(text) <= LIMIT else str(LIMIT + 1)
    return text.strip() if len(text) <= _LONGEST else ""


@lru_cache(maxsize=1024)
def _parsed(text: str) -> tuple[ast.Expression | None, int, frozenset[str]]:
    """The tree of an expression, its levels and its symbols; no tree for what can't be read.

    It is kept, since each case evaluates the few expressions of its op again.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, 0, frozenset()
    names = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return tree, _depth(tree), frozenset(names) - _FUNCTIONS.keys()


def _depth(tree: ast.AST) -> int:
    """Levels of a tree."""
    depth, level = 0, [tree]
    while level:
        depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


def _value(node: ast.expr, symbols: Mapping[str, Any]) -> int:
    result = _unchecked(node, symbols)
    if abs(result) > LIMIT:
        raise ExpressionError("overflows 64 bits")
    return result


def _unchecked(node: ast.expr, symbols: Mapping[str, Any]) -> int:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int(value)):
            return value
        case ast.Constant(value=float(value)):
            raise MalformedError(f"holds the fraction {value}; only integers are allowed")
        case ast.Name(id=name):
            return _size(name, symbols)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, symbols)
        case ast.BinOp(op=ast.Div()):
            raise MalformedError("divides with '/', which gives a fraction; write '//'")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, symbols), _value(right, symbols))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and len(args) == 2:
            return _FUNCTIONS[name](*(_value(arg, symbols) for arg in args))
    raise MalformedError(f"isn't integer arithmetic ({ALLOWED})")


def _size(name: str, symbols: Mapping[str, Any]) -> int:
    if name not in symbols:
        raise ExpressionError(f"uses '{name}', which isn't a symbol here", symbol=name)
    if not isinstance(symbols[name], int):
        raise ExpressionError(f"uses '{name}', which is {symbols[name]!r}, not an integer")
    return int(symbols[name])
