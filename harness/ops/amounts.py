"""What a call has to do, and what it moves, as functions of an op and of its variants give it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from harness.errors import shown
from harness.expressions import LIMIT
from harness.model import COMPUTE_KINDS, Traffic, Work
from harness.ops.declarations import at, check_one_of, place_of
from harness.ops.tensors import ITEMSIZE, Symbols
from harness.ops.variant import Variant

Amounts = TypeVar("Amounts", Work, Traffic)


def whole(amounts: Amounts, kind: type[Amounts], function: Callable[..., object]) -> Amounts:
    """The amounts that a declared function gave. Raises UsageError unless all are whole numbers from 0 on."""
    if problem := _problem(amounts, kind):
        raise at(place_of(function), f"gives {shown(amounts)}", problem)
    return amounts


def _problem(amounts: object, kind: type[Work | Traffic]) -> str:
    """What is allowed, where a function gave something else; '' where it didn't."""
    if not isinstance(amounts, kind):
        return f"it is to give a {kind.__name__}"
    flops = getattr(amounts, "flops", ())
    if not isinstance(flops, tuple) or not all(isinstance(part, tuple) and len(part) == 2 for part in flops):
        return "flops is a tuple of types with their operations, such as (('float16', 2 * M * N * K),); mind the comma"
    if not all(isinstance(text, str) for text in (getattr(amounts, "item", ""), *(name for name, _ in flops))):
        return "item, and a type of operations, is text"
    counts = [getattr(amounts, name, 0) for name in ("read", "written", "sent", "again", "items")]
    if any(type(count) is not int or not 0 <= count <= LIMIT for count in (*counts, *(count for _, count in flops))):
        return "bytes, operations and items are whole numbers (of type int) from 0 to 2**63 - 1: use // in place of /"
    return ""


def of_types(flops: Iterable[tuple[str, int]], dtype: str) -> tuple[tuple[str, int], ...]:
    """Operations by type, with the case's type in the place of 'case'."""
    return tuple((dtype if kind == "case" else kind, count) for kind, count in flops)


def done_by(variant: Variant, work: Work, symbols: Symbols, dtype: str) -> Work:
    """The work, with its operations in the types in which the variant does them.

    Raises UsageError where the variant gives another number of operations than the work has, or an unknown type.
    """
    given = variant.arithmetic
    if not given or not work.flops:
        return work
    if isinstance(given, str):
        return replace(work, flops=((given, work.operations),))
    done = whole(Work(flops=given(symbols, ITEMSIZE[dtype])), Work, given)
    whose, place = f"arithmetic of variant '{variant.name}'", place_of(given)
    for kind, _ in done.flops:
        check_one_of(whose, kind, "type", ("case", *COMPUTE_KINDS))
    if done.operations != work.operations:
        found = f"{whose} gives {done.operations} operations, and the work has {work.operations}"
        raise at(place, found, "it says in which types they are done, not how many there are")
    return replace(work, flops=of_types(done.flops, dtype))
