"""Whether a trace by torch.fx can stand for a module's forward.

A trace has the calls that a forward makes on its input. It has neither what the forward stores or draws besides, nor
`with` statements, nor a Function with a backward of its own; `x += y` is `x = x + y` in it; and what the forward asks
of its input's type, or reads of the module's settings, is decided once. So the source of a forward, and of what it
calls, may have nothing of that.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import operator
import textwrap
import types
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.overrides import get_overridable_functions

_STATEMENTS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.If, ast.For, ast.Expr,
    ast.Pass, ast.Break, ast.Continue, ast.Assert, ast.Raise,
)  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.Lambda, ast.Yield, ast.YieldFrom, ast.Await)
"""What isn't followed: functions that a function has in it, and what makes a function another kind of function."""
_BUILTINS = (range, len, zip, enumerate, reversed, list, tuple, int, float, min, max, sum, abs)
_CONSTANTS = (int, float, str, type(None), torch.dtype, torch.memory_format)
_Place = tuple[types.FunctionType, Any, nn.Module]
"""A function, the module whose method it is (None for no method), and the module whose forward is traced."""


def why_not(module: nn.Module) -> str:
    """Why a trace can't stand for the module's forward; '' if it can."""
    forward: Any = type(module).forward
    why = (
        "" if (forward.__module__ or "").startswith("torch.nn.modules.") else _why_not((forward, module, module), set())
    )
    return why and f"its forward {why}"


def _why_not(place: _Place, seen: set[tuple[Any, int]]) -> str:
    function, owner, _ = place
    if (function, id(owner)) in seen:
        return ""
    seen.add((function, id(owner)))
    tree = source_of(function)
    if tree is None:
        return "has no source that can be read"
    if hasattr(function, "__wrapped__") or not all(_is_static(one) for one in tree.decorator_list):
        return "has a decorator"
    reader = _Reader(place, tree, seen)
    for statement in tree.body:
        reader.visit(statement)
    return reader.why


def _is_static(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == "staticmethod"


@cache
def source_of(function: Any) -> ast.FunctionDef | None:
    """The source of a function, parsed; None where there is none, as for a function of C."""
    try:
        found = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        return None
    return found if isinstance(found, ast.FunctionDef) else None


class _Reader(ast.NodeVisitor):
    """Goes through a function. why: the first thing that a trace can't have; '' while there is none."""

    def __init__(self, place: _Place, tree: ast.FunctionDef, seen: set[tuple[Any, int]]) -> None:
        self.why = ""
        function, self._owner, self._traced = place
        self._seen = seen
        arguments = [one.arg for one in ast.walk(tree.args) if isinstance(one, ast.arg)]
        stored = (one for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
        self._own = arguments[0] if self._owner is not None and arguments else None
        self._locals = {*arguments, *(one.id for one in stored)} - {self._own}
        cells = function.__closure__ or ()
        held = dict(zip(function.__code__.co_freevars, cells, strict=True))
        self._fresh = set[str]()
        self._names = {**vars(builtins), **function.__globals__, **{name: _held(one) for name, one in held.items()}}

    def visit(self, node: ast.AST) -> None:
        """Go through a node, unless something was found."""
        if self.why:
            return
        if isinstance(node, _FUNCTIONS):
            self.why = "has a function in it"
        elif isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
            self.why = f"has a '{type(node).__name__.lower()}' statement"
        else:
            super().visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Keep account of which names stand for tensors that have no other name."""
        self._assign(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """The same, without the annotation."""
        if node.value is not None:
            self._assign([node.target], node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Refuse to change what has another name: in a trace it stays."""
        if isinstance(node.target, ast.Name) and node.target.id not in self._fresh:
            self.why = f"changes {node.target.id} in place, which may have other names"
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """Go both ways."""
        self.visit(node.test)
        before = set(self._fresh)
        self._visit_all(node.body)
        after, self._fresh = self._fresh, before
        self._visit_all(node.orelse)
        self._fresh &= after

    def visit_For(self, node: ast.For) -> None:
        """Go through the body twice, as the second time it finds what the first time has left."""
        self._assign([node.target], node.iter)
        before = set(self._fresh)
        self._visit_all([*node.body, *node.body, *node.orelse])
        self._fresh &= before

    def visit_List(self, node: ast.List) -> None:
        """What is in a list has another name."""
        self._fresh -= _names_in(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """So has what is given to a function, which may give a view of it, and to a list's append."""
        if not self._is_fresh(node):
            self._fresh -= set().union(*map(_names_in, node.args))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Refuse questions of what an argument is: a trace is made with none that is None."""
        terms = [node.left, *node.comparators]
        named = [one.id for one in terms if isinstance(one, ast.Name) and one.id in self._locals]
        if named and any(isinstance(one, ast.Is | ast.IsNot) for one in node.ops):
            self.why = f"asks what {named[0]} is"
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Refuse what is stored."""
        self._refuse_stored(node, node.ctx)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Look at what a name with its attributes stands for."""
        self._refuse_stored(node, node.ctx)
        names, base = [node.attr], node.value
        while isinstance(base, ast.Attribute):
            names, base = [base.attr, *names], base.value
        if isinstance(base, ast.Name):
            self._look(base.id, names)
        else:
            self.visit(base)

    def visit_Name(self, node: ast.Name) -> None:
        """Look at what a name stands for."""
        self._look(node.id, [])

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        self._visit_all([value, *targets])
        names = set().union(*map(_names_in, targets))
        is_fresh = len(targets) == 1 and self._is_fresh(value)
        self._fresh = self._fresh | names if is_fresh else self._fresh - names - _names_in(value)

    def _is_fresh(self, value: ast.expr) -> bool:
        """Whether an expression gives a new tensor: arithmetic, or a module's call. A function may give a view."""
        if not isinstance(value, ast.Call):
            return isinstance(value, ast.BinOp | ast.Constant)
        base = value.func
        while isinstance(base, ast.Attribute):
            base = base.value
        is_local = base is value.func and _names_in(base) <= self._locals  # a module of a list
        return isinstance(base, ast.Name) and (base.id == self._own or is_local)

    def _refuse_stored(self, node: ast.expr, context: ast.expr_context) -> None:
        if not isinstance(context, ast.Load):
            self.why = self.why or f"stores in {ast.unparse(node)}"

    def _look(self, name: str, attributes: list[str]) -> None:
        if self.why or name in self._locals:
            return
        told = ".".join((name, *attributes))
        if name == self._own:
            self.why = self._of_module(told, attributes)
        elif name in self._names:
            self.why = self._of_global(told, attributes)

    def _of_module(self, told: str, attributes: list[str]) -> str:
        value = self._owner
        if attributes == ["training"] and value is self._traced:  # a trace is made in training and in evaluation
            return ""
        for attribute in attributes:
            if not isinstance(value, nn.Module):
                break
            value = getattr(value, attribute, None)
        if isinstance(value, types.MethodType | types.FunctionType):
            return self._of_function(told, value)
        if value is self._owner:
            return f"hands {told} on"
        if value is None or isinstance(value, nn.Module | nn.Parameter):
            return ""
        return f"reads {told}, which may change"

    def _of_global(self, told: str, attributes: list[str]) -> str:
        value = self._names[told.partition(".")[0]]
        for attribute in attributes:
            value = getattr(value, attribute, None)
        is_error = isinstance(value, type) and issubclass(value, BaseException)
        if is_error or isinstance(value, _CONSTANTS) or _is_traced(value):
            return ""
        if isinstance(value, types.FunctionType) and not (value.__module__ or "").startswith("torch."):
            return self._of_function(told, value)
        return f"uses {told}"

    def _of_function(self, told: str, function: Any) -> str:
        owner = getattr(function, "__self__", None)
        why = _why_not((getattr(function, "__func__", function), owner, self._traced), self._seen)
        return why and f"calls {told}, which {why}"


def _held(cell: types.CellType) -> Any:
    """What a cell of a closure holds; None for an empty one."""
    return cell.cell_contents if cell != types.CellType() else None


def _names_in(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _is_traced(value: Any) -> bool:
    """Whether a trace has a call of it, or what it gives for numbers that aren't the input's."""
    try:
        return value in _BUILTINS or value in _overridable() or getattr(value, "__module__", "") in _OF_NUMBERS
    except TypeError:  # it has no hash
        return False


_OF_NUMBERS = (math.__name__, operator.__name__, "_operator")


@cache
def _overridable() -> frozenset[Any]:
    every = (one for functions in get_overridable_functions().values() for one in functions)
    return frozenset([*every, torch._assert])
