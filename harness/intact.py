"""Whether what times rest on is what was there before any code of a user ran.

Python lets a variant replace it: torch's clock, the comparison, the statistics, the layers that a reference is made of,
the numbers that inputs are drawn by. `remember` notes the functions, classes and constants of the instrument, and the
functions of the modules of torch and of Python that it rests on; `watch` notes the op of a case. `replaced` names what
differs. This finds what a variant does by mistake or for show. No check in the process of a variant can hold one that
wants to hide; nothing in Python can.
"""

from __future__ import annotations

import builtins
import copy
import functools
import itertools
import json
import math
import random
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

_OF_TORCH = (
    "torch", "torch.cuda", "torch.cuda.streams", "torch.cuda.graphs", "torch.fft", "torch.linalg",
    "torch.nn.functional", "torch.random", "torch.special",
)  # fmt: skip
_LAYERS = "torch.nn.modules."
_OF_PYTHON = (builtins, copy, functools, itertools, json, math, random, secrets, statistics, time)
_STATE = "state"
_CLOCK = "torch.cuda.streams.Event"
_WRAPPING = {MethodType, classmethod, staticmethod}
_IMMUTABLE = 1 << 8  # a flag of types whose functions Python itself keeps
_ADDING = "transformers"
"""The library that gives torch's modules a method of its own, `smart_apply`, when its first model is made."""
_NOTHING = object()
_UNBELIEVED = "what it measured can't be believed"
_remembered: dict[str, dict[str, tuple[Any, Any]]] = {}
_others: dict[str, ModuleType] = {}
_watched: dict[str, tuple[Any, dict[str, Any]]] = {}


def remember(others: Iterable[ModuleType] = ()) -> None:
    """Note what is there now. Modules that are loaded later are noted when `replaced` first sees them.

    others: modules that are nobody's of these, and must stay as they are too.
    """
    _others.update((module.__name__, module) for module in others)
    for owner, things in _things():
        _remembered.setdefault(owner, things)


@contextmanager
def remembering() -> Iterator[None]:
    """Note what is there now, and forget it in the end, in a process that may go on to run any code."""
    before = dict(_remembered)
    _remembered.clear()
    remember()
    try:
        yield
    finally:
        _remembered.clear()
        _remembered.update(before)


def watch(name: str, thing: Any) -> None:
    """Note the fields of a dataclass, in place of what had the name before."""
    _watched[name] = thing, _noted(thing)


def replaced(meanwhile: str = "the case ran") -> str | None:
    """The first thing that isn't as it was noted, or a mode of torch that is on, as a complaint; None if all is well.

    meanwhile: what has happened since then, for the complaint. A name that is new where functions were noted counts,
    too, where it hides a function of a base class, or of Python.
    """
    for owner, things in _things() if _remembered else ():
        known = _remembered.setdefault(owner, things)
        # What can't be called any more is gone.
        for name, (value, inside) in (things | dict.fromkeys(known.keys() - things.keys(), (None, None))).items():
            before, then = known.get(name, (_NOTHING, None))
            if before is _NOTHING and (not _hides(owner, name) or _is_of(_ADDING, owner, value)):
                continue
            if inside != then if before is value else not _is_of("torch", owner, value):
                # A function whose code was changed is found in every module that has it.
                home = value.__module__ if before is value and isinstance(value, FunctionType) else owner
                what = name if owner == _STATE else f"{home}.{name}"
                return f"{what} was {'changed' if owner == _STATE else 'replaced'} while {meanwhile}: {_UNBELIEVED}"
    for name, (thing, then) in _watched.items():
        if changed := next((field for field, value in _noted(thing).items() if value != then[field]), ""):
            return f"{name}: '{changed}' was changed while {meanwhile}: {_UNBELIEVED}"
    return _mode()


def precisions() -> tuple[Any, ...]:
    """The parts of torch that may round float32 in products: 'ieee' in their `fp32_precision` forbids that."""
    torch: Any = sys.modules["torch"]
    libraries = torch.backends.cudnn, torch.backends.mkldnn
    products = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    return (*products, *(one for of in libraries for one in (of.conv, of.rnn)))


@contextmanager
def settings_kept() -> Iterator[None]:
    """Give torch its settings back in the end, so that what a variant sets makes no other case faster or slower."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    reduced = [f"allow_{kind}_reduced_precision_reduction" for kind in ("fp16", "bf16")]
    places = [(part, "fp32_precision") for part in precisions()] + [(products, name) for name in reduced]
    places += [(cudnn, name) for name in ("enabled", "benchmark", "deterministic")]
    calls: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (torch.is_grad_enabled, torch.set_grad_enabled),
    ]
    calls += [(partial(getattr, owner, name), partial(setattr, owner, name)) for owner, name in places]
    before = [_setting(read) for read, _ in calls]
    try:
        yield
    finally:
        for (read, write), value in zip(calls, before, strict=True):
            if value is not _NOTHING and _setting(read) != value:
                write(value)


def _setting(read: Callable[[], Any]) -> Any:
    """A setting's value; nothing where torch refuses to tell, since it was set in the older and the newer way."""
    try:
        return read()
    except RuntimeError:
        return _NOTHING


def _hides(owner: str, name: str) -> bool:
    """Whether a new name hides something: a class's that of a base class, a module's that of Python's builtins."""
    return owner not in sys.modules or (owner != builtins.__name__ and name in _remembered[builtins.__name__])


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


def _is_of(library: str, owner: str, value: Any) -> bool:
    """Whether the library wrote it for torch, but for the clock. Torch replaces functions when its compiler is loaded.

    What was there before under another name isn't written for that.
    """
    if isinstance(value, FunctionType):  # what torch wraps for others has their module's name, but torch's globals
        modules: set[Any] = {value.__module__, value.__globals__.get("__name__")}
    else:  # an object of a class of torch may be anybody's
        modules = {value.__module__} if isinstance(value, (type, BuiltinFunctionType)) else set()
    if not owner.startswith("torch") or owner == _CLOCK or {str(one).split(".")[0] for one in modules} != {library}:
        return False
    return not any(value is other for things in _remembered.values() for other, _ in things.values())


def _things() -> Iterator[tuple[str, dict[str, tuple[Any, Any]]]]:
    """Each module and class with its functions, and its constants if it is the instrument's.

    Each is noted as itself, and what is inside: a function's code and defaults, a constant's value.
    """
    torch = sys.modules.get("torch")
    if torch is not None:  # first, since a setting has functions replaced as well
        yield _STATE, {name: (None, value) for name, value in _state(torch)}
    own = [module for name, module in sorted(sys.modules.items()) if _is_instrument(name, module)]
    of_torch = [module for name, module in sorted(sys.modules.items()) if name in _OF_TORCH or name.startswith(_LAYERS)]
    for place, owner in enumerate((*own, *of_torch, *_OF_PYTHON, *_others.values())):
        functions = _called(owner)
        if owner is torch:
            functions["default_generator"] = torch.default_generator, None
        yield owner.__name__, functions | (_constants(owner) if place < len(own) else {})
        for name, (value, _) in functions.items():
            if isinstance(value, type) and value.__module__ == owner.__name__ and not value.__flags__ & _IMMUTABLE:
                yield f"{owner.__name__}.{name}", _called(value)
    if torch is not None:
        yield "torch.Tensor", _called(torch.Tensor)


def _is_instrument(name: str, module: ModuleType) -> bool:
    """Whether it is a module of the harness, but not of the collection: also the one that runs as the program."""
    name = getattr(getattr(module, "__spec__", None), "name", "") if name == "__main__" else name
    return name.startswith("harness.") and not name.startswith("harness.collection")


def _state(torch: Any) -> Iterator[tuple[str, object]]:
    """What else changes what calls do, or the numbers that inputs are drawn as: each in words, with its value."""
    yield "torch's default dtype", torch.get_default_dtype()
    # Meta has no values, and torch's compiler enters itself there.
    own = sorted(name for name in torch.library._impls if name.startswith("aten/") and not name.endswith("/Meta"))
    yield "a function of torch's dispatcher", tuple(own)
    monitoring = getattr(sys, "monitoring", None)
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    yield "what Python calls at each call (sys.setprofile, sys.settrace)", (sys.getprofile(), sys.gettrace(), *tools)


def _called(owner: Any) -> dict[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {}
    for name, value in list(vars(owner).items()):
        kind = type(value)
        if kind is FunctionType:
            found[name] = value, _inside(value)
        elif kind in _WRAPPING:
            found[name] = value, _inside(value.__func__)
        elif kind is property or callable(value):
            found[name] = value, None
    return found


def _inside(function: Any) -> tuple[Any, ...] | None:
    """A function's code, and the defaults of its parameters."""
    if type(function) is not FunctionType:
        return None
    named = function.__kwdefaults__
    return function.__code__, function.__defaults__, tuple(named.items()) if named else None


def _noted(thing: Any) -> Any:
    """A copy of what a dataclass, a dict or a list holds, all the way down; anything else as it is."""
    if is_dataclass(thing) and not isinstance(thing, type):
        # A field that isn't shown is no part of what it is, such as the variants that other files add to an op.
        return {field.name: _noted(getattr(thing, field.name)) for field in fields(thing) if field.repr}
    if isinstance(thing, dict):
        return {key: _noted(value) for key, value in thing.items()}
    return [_noted(value) for value in thing] if isinstance(thing, (list, tuple)) else thing


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
