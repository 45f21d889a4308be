"""How the measurements of a case ended, as the rules tell it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from harness.model import FAILED, Measurement

_OF_CODE = frozenset({
    "AssertionError", "AttributeError", "FileNotFoundError", "ImportError", "IndexError", "KeyError",
    "ModuleNotFoundError", "NameError", "NotImplementedError", "SyntaxError", "TypeError", "ValueError",
})  # fmt: skip
_OF_TIMES = ("calls take ", "calls that took ", "the device works for ")
"""How complaints begin that compare times with each other, and no results."""


def never_timed(measurements: Sequence[Measurement]) -> bool:
    """Whether no process has a time."""
    return all(m.time is None for m in measurements)


def complaint(measurements: Sequence[Measurement]) -> str:
    """How a case ended where it wasn't ok, with the first line of the reason; empty if it always was."""
    bad = [m for m in measurements if m.time is None]
    if not bad:
        return ""
    often = "" if len(bad) == len(measurements) else f" in {len(bad)} of {len(measurements)} processes"
    reason = (bad[0].error or "").strip().splitlines()
    return f"ended as {bad[0].status.replace('_', ' ')}{often}" + (f": {reason[0]}" if reason else "")


def is_wrong(measurements: Sequence[Measurement]) -> bool:
    """Whether a process crashed, gave a wrong result or took too long."""
    return any(m.status in FAILED for m in measurements)


def is_worse(before: Sequence[Measurement], after: Sequence[Measurement]) -> bool:
    """Whether a case that the base has ends worse now: it isn't ok any more, or it is wrong and lost more often.

    A process of the base that failed once doesn't excuse any number of failures now, so the shares are compared.
    """
    if not complaint(after):
        return False
    more = _lost(after) > _lost(before)
    never = never_timed(after) and not never_timed(before)
    return not complaint(before) or never or (is_wrong(after) and (more or not is_wrong(before)))


def is_doubtful(measurements: Sequence[Measurement]) -> bool:
    """Whether fewer than half of the processes have no time, and each of these for a complaint about its times.

    Other work on the machine may make a call look so, by chance. A call that does less work where it's timed always
    looks so.
    """
    bad = [m for m in measurements if m.time is None]
    return 0 < 2 * len(bad) < len(measurements) and all((m.error or "").startswith(_OF_TIMES) for m in bad)


def _lost(measurements: Sequence[Measurement]) -> Fraction:
    """The share of the processes that have no time."""
    return Fraction(sum(m.time is None for m in measurements), len(measurements))


def is_of_code(measurements: Sequence[Measurement]) -> bool:
    """Whether every process raised an error that no state of the machine causes, such as a module that isn't there."""
    return all(m.status == "crashed" and (m.error or "").partition(":")[0] in _OF_CODE for m in measurements)


def needs_other(measurements: Sequence[Measurement]) -> bool:
    """Whether every process said that the case needs another machine or more software."""
    return all(m.status in ("unsupported", "skipped") for m in measurements)
