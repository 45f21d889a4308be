"""Values of options: what a user may write, and what the harness makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from harness.errors import UsageError

_DIGITS = 5
"""The most digits of a number in a list: ranks."""


def names(values: Sequence[str] | None) -> tuple[str, ...]:
    """Names, each by itself or several with commas: ['eager,naive', 'tuned'] -> ('eager', 'naive', 'tuned')."""
    return tuple(name for value in values or () for name in (part.strip() for part in value.split(",")) if name)


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from 0 on, and ranges of them: '0,4-6' -> (0, 4, 5, 6). Raises UsageError for anything else."""
    found: set[int] = set()
    for part in names([text]):
        first, dash, last = part.partition("-")
        ends = (first, last if dash else first)
        are_numbers = all(end.isascii() and end.isdigit() and len(end) <= _DIGITS for end in ends)
        if not are_numbers or int(ends[0]) > int(ends[1]):
            raise UsageError(f"'{part}' is no number and no range of numbers", "write them as 0,4-7")
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(found))


def share(text: str) -> float:
    """A share between 0 and 1: '0.002' and '0.2%' are the same."""
    value = _number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value < 1:
        raise typer.BadParameter(f"'{text}' isn't between 0 and 1; write 0.002 or 0.2%.")
    return value


def seconds(text: str) -> float:
    """A positive number of seconds, up to a day."""
    from harness.model import LONGEST_CASE

    value = _number(text)
    if not value > 0:  # nan isn't either
        raise typer.BadParameter(f"'{text}' isn't a positive number of seconds.")
    if value > LONGEST_CASE:
        raise typer.BadParameter(f"'{text}' is more than {LONGEST_CASE:g} seconds, a day, which is the limit.")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' isn't a number.") from None
