"""Whether what times rest on is what was there before any code of a user ran.

Python lets a variant replace it: torch's clock, the comparison, the statistics. `remember` notes the functions, classes
and constants of the instrument, and the functions of torch's CUDA module, of its tensors, and of the clocks; `replaced`
names what differs. This finds what a variant does by mistake or for show. No check in the process of a variant can hold
one that wants to hide; nothing in Python can.
"""

from __future__ import annotations

import builtins
import json
import statistics
import sys
import time
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

_OF_TORCH = ("torch", "torch.cuda", "torch.cuda.streams", "torch.cuda.graphs")
_CLOCK = "torch.cuda.streams.Event"
_CALLED = (FunctionType, BuiltinFunctionType, MethodType, type, classmethod, staticmethod, property)
_NOTHING = object()
_remembered: dict[str, dict[str, tuple[Any, Any]]] = {}


def remember() -> None:
    """Note what is there now. Modules that are loaded later are noted when `replaced` first sees them."""
    for owner, things in _things():
        _remembered.setdefault(owner, things)


def replaced() -> str | None:
    """The first thing that isn't as it was noted, or a mode of torch that is on, as a complaint; None if all is well.

    A name that is new where functions were noted counts, too: it hides a function of a base class, or of Python.
    """
    for owner, things in _things() if _remembered else ():
        known = _remembered.setdefault(owner, things)
        for name, (value, inside) in things.items():
            before, then = known.get(name, (_NOTHING, None))
            if inside != then if before is value else not _is_of_torch(owner, value):
                # A function whose code was changed is found in every module that has it.
                home = value.__module__ if before is value and isinstance(value, FunctionType) else owner
                return f"{home}.{name} was replaced while the case ran: what it measured can't be believed"
    return _mode()


def _mode() -> str | None:
    """A complaint about a mode of torch that changes what torch's functions do, also when results are compared."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    modes = [torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())]
    modes += [torch._C._get_dispatch_stack_at(place) for place in range(torch._C._len_torch_dispatch_stack())]
    # torch.set_default_device() is such a mode.
    names = [type(mode).__name__ for mode in modes if type(mode).__module__ != "torch.utils._device"]
    return f"torch's functions are in the mode {names[0]}: end a mode in the call that begins it" if names else None


def _is_of_torch(owner: str, value: Any) -> bool:
    """Whether torch wrote it, which replaces functions of its own when its compiler is loaded; but never the clock."""
    module = value.__globals__.get("__name__") if isinstance(value, FunctionType) else getattr(value, "__module__", "")
    return owner.startswith("torch") and owner != _CLOCK and str(module).split(".")[0] == "torch"


def _things() -> Iterator[tuple[str, dict[str, tuple[Any, Any]]]]:
    """Each module and class with its functions, and its constants if it is the instrument's.

    Each is noted as itself, and what is inside: a function's code, a constant's value.
    """
    torch = sys.modules.get("torch")
    own = [module for name, module in sorted(sys.modules.items()) if _is_instrument(name, module)]
    of_torch = [sys.modules[name] for name in _OF_TORCH if name in sys.modules]
    owners: list[Any] = [*own, *of_torch, builtins, json, statistics, time]
    for place, owner in enumerate(owners):
        functions = _called(owner)
        yield owner.__name__, functions | (_constants(owner) if place < len(own) else {})
        for name, (value, _) in functions.items():
            if isinstance(value, type) and value.__module__ == owner.__name__:
                yield f"{owner.__name__}.{name}", _called(value)
    if torch is not None:
        yield "torch.Tensor", _called(torch.Tensor)


def _is_instrument(name: str, module: ModuleType) -> bool:
    """Whether it is a module of the harness, but not of the collection: also the one that runs as the program."""
    name = getattr(getattr(module, "__spec__", None), "name", "") if name == "__main__" else name
    return name.startswith("harness.") and not name.startswith("harness.collection")


def _called(owner: Any) -> dict[str, tuple[Any, Any]]:
    called = {name: value for name, value in list(vars(owner).items()) if isinstance(value, _CALLED)}
    return {
        name: (value, getattr(getattr(value, "__func__", value), "__code__", None)) for name, value in called.items()
    }


def _constants(module: ModuleType) -> dict[str, tuple[Any, Any]]:
    """What has a name in capital letters: numbers, texts, tuples of them, and tables of numbers, as copies."""
    named = {name: value for name, value in list(vars(module).items()) if name.isupper() and _is_plain(value)}
    return {name: (None, dict(value) if isinstance(value, dict) else value) for name, value in named.items()}


def _is_plain(value: Any) -> bool:
    """Whether it is a constant. A table of anything but numbers may be a list that modules enter themselves in."""
    if isinstance(value, dict):
        return bool(value) and all(map(_is_number, value.values()))
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, (str, bytes, int, float))


def _is_number(value: Any) -> bool:
    return all(map(_is_number, value)) if isinstance(value, tuple) else isinstance(value, (int, float))
