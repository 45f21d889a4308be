"""Checks of declarations, made where something is declared: each error names the file and the line of the declaration.

A misspelt field would otherwise show up as another timer, as a variant that no device runs, or as a crash far away.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import FunctionType
from typing import Any

from harness.discover import names
from harness.errors import UsageError, can_be_written, nearest, shown, shown_place, user_place
from harness.expressions import LIMIT

_NAME = re.compile(r"[\w.+:-]+")
"""What a part of a case's id may be: the id's parts are separated by '/', and choices by ','."""


ANY_DEVICE = "any"
"""In the place of a kind of device: every device that torch computes on."""


def at(place: str, message: str, advice: str = "") -> UsageError:
    """An error whose message begins with a place, where that is known."""
    return UsageError(f"{shown_place(place)}: {message}" if place else message, advice)


def refusal(message: str, advice: str = "") -> UsageError:
    """The error of a declaration, with its file and line where a user's code, or the collection's, made it."""
    return at(user_place(), message, advice)


def check_name(whose: str, name: object) -> None:
    """Raise UsageError unless it is a text that an id can hold."""
    if not isinstance(name, str):
        raise refusal(f"the name of {whose} is {shown(name)}, which isn't text", "a name is text, such as 'softmax'")
    if not _NAME.fullmatch(name):
        raise refusal(f"the name of {whose} is {shown(name)}", "a name has letters, digits, and any of _ . + : -")


def check_text(whose: str, **fields: object) -> None:
    """Raise UsageError for a field that isn't text, or is text that no file can hold."""
    for name, value in fields.items():
        if not isinstance(value, str):
            raise refusal(f"{name} of {whose} is {shown(value)}, which isn't text")
        if not can_be_written(value):
            raise refusal(f"{name} of {whose} is {shown(value)}, which has half a character", "write it whole")


def check_flag(whose: str, **fields: object) -> None:
    """Raise UsageError for a field that is neither True nor False."""
    for name, value in fields.items():
        if not isinstance(value, bool):
            raise refusal(f"{name} of {whose} is {shown(value)}", "allowed: True, False")


def check_numbers(whose: str, what: str, *values: object, least: float = -math.inf) -> None:
    """Raise UsageError for what isn't a number, is below `least`, or is an integer that 64 bits can't hold."""
    for value in values:
        fits = not isinstance(value, int) or abs(value) <= LIMIT
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least or not fits:
            at_least = "" if math.isinf(least) else f" from {least:g} on"
            raise refusal(f"{what} of {whose} has {shown(value)}", f"a number{at_least} is allowed")


def check_mapping(whose: str, value: object, what: str, kind: type | tuple[type, ...], example: str) -> None:
    """Raise UsageError unless it is a mapping of texts to objects of a type."""
    if not isinstance(value, Mapping):
        raise refusal(f"{what} of {whose} is {shown(value)}, which isn't a mapping", f"for example {example}")
    for key, entry in value.items():
        if not isinstance(key, str) or not isinstance(entry, kind):
            raise refusal(f"{what} of {whose} has {shown(key)}: {shown(entry)}", f"for example {example}")


def check_tuple(whose: str, value: object, what: str, kind: type | tuple[type, ...], example: str) -> None:
    """Raise UsageError unless it is a tuple of objects of a type. A text is none, though it has letters."""
    if not isinstance(value, tuple) or not all(isinstance(entry, kind) for entry in value):
        raise refusal(f"{what} of {whose} is {shown(value)}", f"a tuple is allowed, such as {example}; mind the comma")


def check_one_of(whose: str, value: object, what: str, allowed: Iterable[str]) -> None:
    """Raise UsageError unless the value is an allowed value."""
    known = [name for name in allowed if name]
    if not isinstance(value, str):
        raise refusal(f"the {what} of {whose} is {shown(value)}, which isn't text", nearest("", known))
    if value not in known:
        raise refusal(f"{whose} has the {what} {shown(value)}", nearest(value, known))


def check_callable(whose: str, arguments: int, **functions: object) -> None:
    """Raise UsageError for what is neither None nor a function that takes so many arguments."""
    for name, function in functions.items():
        if function is None:
            continue
        if not callable(function):
            raise refusal(f"{name} of {whose} is {shown(function)}, which isn't a function")
        if not _takes(function, arguments):
            takes = f"{arguments} argument{'s' if arguments != 1 else ''}"
            raise refusal(f"{name} of {whose} doesn't take {takes}", f"it is called with {takes}: see harness.ops")


def place_of(function: object) -> str:
    """The file and line of a function; '' where Python doesn't tell."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def check_devices(whose: str, devices: tuple[str, ...]) -> None:
    """Raise UsageError unless it is a tuple of kinds of device, of which there is one file or entry point each."""
    check_tuple(whose, devices, "devices", str, "('cuda', 'cpu')")
    for device in devices:
        check_one_of(whose, device, "device", _kinds_of_device())


@cache
def _kinds_of_device() -> tuple[str, ...]:
    """What a variant may name. Hundreds of variants ask, and a look at what is installed takes milliseconds."""
    return (*names("harness.devices"), ANY_DEVICE)


def check_fields(whose: str, given: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Raise UsageError for a field that doesn't exist."""
    known = list(allowed)
    for name in given:
        if name not in known:
            raise refusal(f"{whose} has the field '{name}', which doesn't exist", nearest(name, known))


def _takes(function: Callable[..., object], arguments: int) -> bool:
    if isinstance(function, FunctionType) and not vars(function):
        # Nearly all are such. To make their signatures would take a tenth of the time of loading all ops.
        code, defaults = function.__code__, len(function.__defaults__ or ())
        if not code.co_flags & inspect.CO_VARARGS and not code.co_kwonlyargcount:
            return code.co_argcount - defaults <= arguments <= code.co_argcount
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # a builtin, which has no signature
        return True
    return True
