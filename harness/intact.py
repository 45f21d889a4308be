"""Whether functions that times rest on are the ones that were there before any code of a user ran.

Python lets a variant replace them: torch's clock, the comparison, the statistics. `remember` notes the functions and
classes of the instrument, of torch's CUDA module, of its tensors, and of the clocks; `replaced` names what differs.
This finds what a variant does by mistake or for show. No check in the process of a variant can hold one that wants to
hide; nothing in Python can.
"""

from __future__ import annotations

import builtins
import json
import statistics
import sys
import time
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

_OF_TORCH = ("torch", "torch.cuda", "torch.cuda.streams", "torch.cuda.graphs")
_CALLED = (FunctionType, BuiltinFunctionType, MethodType, type, classmethod, staticmethod, property)
_remembered: dict[str, dict[str, Any]] = {}


def remember() -> None:
    """Note what is there now. Modules that are loaded later are noted when `replaced` first sees them."""
    for owner, functions in _functions():
        _remembered.setdefault(owner, functions)


def replaced() -> str | None:
    """The first function that isn't the one that was noted, as a complaint; None if all are, or none was noted.

    A name that is new where functions were noted counts, too: it hides a function of a base class, or of Python.
    """
    if not _remembered:
        return None
    for owner, functions in _functions():
        known = _remembered.setdefault(owner, functions)
        for name, value in functions.items():
            if known.get(name) is not value and not _is_of_torch(value):
                return f"{owner}.{name} was replaced while the case ran: what it measured can't be believed"
    return None


def _is_of_torch(value: Any) -> bool:
    """Whether torch wrote it, which replaces functions of its own when its compiler is loaded."""
    module = value.__globals__.get("__name__") if isinstance(value, FunctionType) else getattr(value, "__module__", "")
    return str(module).split(".")[0] == "torch"


def _functions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each module and class with its functions."""
    torch = sys.modules.get("torch")
    owners: list[Any] = [*map(sys.modules.__getitem__, _modules()), builtins, json, statistics, time]
    for owner in owners:
        functions = _called(owner)
        yield owner.__name__, functions
        for name, value in functions.items():
            if isinstance(value, type) and value.__module__ == owner.__name__:
                yield f"{owner.__name__}.{name}", _called(value)
    if torch is not None:
        yield "torch.Tensor", _called(torch.Tensor)


def _modules() -> list[str]:
    """The instrument's modules, but not the collection's, and torch's."""
    own = [name for name in sys.modules if name.startswith("harness.") and not name.startswith("harness.collection")]
    return [*own, *(name for name in _OF_TORCH if name in sys.modules)]


def _called(owner: Any) -> dict[str, Any]:
    return {name: value for name, value in list(vars(owner).items()) if isinstance(value, _CALLED)}
