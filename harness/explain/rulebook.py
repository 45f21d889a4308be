"""The rules, found by the names of their files, and the order of what they find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast

from harness import units
from harness.discover import discover
from harness.explain.records import AT, Known, Reason
from harness.explain.words import share
from harness.metrics import ABOVE_CEILING
from harness.model import STALL

LEAST = 0.03
"""A reason that saves less than this share of the time isn't told: ceilings are no more exact than that."""
ACCOUNTED = 0.5
"""An effect stands behind a cause that saves at least this share of what the effect does."""


class CauseRule(Protocol):
    """What the file of a rule offers.

    SUMMARY: what it looks at, in a few words. EFFECT_OF: rules whose reasons are the cause of what this one finds.
    """

    SUMMARY: str
    EFFECT_OF: tuple[str, ...]

    def judge(self, known: Known) -> Iterator[Reason]:
        """The reasons of this rule, in a case that has a time."""


def all_rules() -> dict[str, CauseRule]:
    """Every rule by name. Raises UsageError for a file in rules/ that isn't one."""
    found = discover("harness.explain.rules", ["SUMMARY", "EFFECT_OF", "judge"])
    return {name: cast(CauseRule, module) for name, module in found.items()}


def explain(known: Known, rules: Mapping[str, CauseRule] | None = None) -> tuple[Reason, ...]:
    """The reasons of all rules: what could save most first, an effect behind its cause, asides last.

    rules: what `all_rules` gives, for a caller that explains many cases and so looks for the rules once.
    """
    rules = all_rules() if rules is None else rules
    found = [reason for rule in rules.values() for reason in _told(list(rule.judge(known)), known)]
    ordered = sorted(found, key=lambda reason: (not reason.aside, _saves(reason)), reverse=True)
    for effect in tuple(ordered):
        causes = [reason for reason in ordered if reason.rule in rules[effect.rule].EFFECT_OF]
        cause = next((reason for reason in causes if _saves(reason) >= ACCOUNTED * _saves(effect)), None)
        if cause and ordered.index(cause) > ordered.index(effect):
            ordered.remove(effect)
            ordered.insert(ordered.index(cause) + 1, effect)
    return tuple(ordered)


def verdict(known: Known, reasons: Sequence[Reason]) -> str:
    """What bounds the case, in a sentence or two: the first reason that is no aside, or why there is none."""
    if first := next((reason for reason in reasons if not reason.aside), None):
        return first.verdict
    if known.best is None:
        return "Not known: the run has no ceiling for this work, and no rule finds anything."
    rest = units.seconds(known.time - known.best)
    if known.near_ceiling:
        return _near(known, known.of_ceiling or 0.0, rest)
    if known.resident is not None:
        return (
            f"Not known: {rest} above the ceiling. Its data lie in the L2 ({units.size(known.resident)} of "
            f"{units.size(known.work.moved)} needed come through memory), so the rules about memory don't apply."
            f"{_longest(known)}"
        )
    if known.has_counters:
        told = f"no rule finds a cause in what '{known.tool}' told."
        return f"Not known: {rest} above the ceiling, and {told}{_longest(known)}"
    return (
        f"Not known: {rest} above the ceiling. What is known without counters (bytes by count, local memory, "
        "registers, the host) doesn't explain it."
    )


def _near(known: Known, of_ceiling: float, rest: str) -> str:
    told = f"{units.percent(of_ceiling)} of what this machine can do."
    if of_ceiling > ABOVE_CEILING and known.case.cache == "hot":
        return f"Above the ceiling: {told} The cache is hot, so data come from it that the ceiling takes from memory."
    if of_ceiling > ABOVE_CEILING and known.resident is not None:
        return (
            f"Above the ceiling: {told} The L2 has what the ceiling takes from memory: {units.size(known.resident)} of "
            f"{units.size(known.work.moved)} needed come through memory."
        )
    if of_ceiling > ABOVE_CEILING:
        return (
            f"Above the ceiling: {told} The time or the ceiling is wrong, so nothing is known of what is left to gain: "
            "the warning above-ceiling in the report says what to check."
        )
    if of_ceiling >= AT:
        return f"At the ceiling: {told} Nothing is left to gain."
    return f"Near the ceiling: {told} No more than {rest} are left to gain."


def _longest(known: Known) -> str:
    """What the warps of the largest kernel wait for most, as a sentence to add; '' if that isn't known."""
    kernel = max(known.kernels, key=lambda kernel: kernel.share)
    name, part = max(kernel.beginning(STALL).items(), key=lambda item: item[1], default=("", 0.0))
    return f" Its warps spend most of their time in '{STALL}{name}': {share(part)}." if name else ""


def _told(reasons: list[Reason], known: Known) -> list[Reason]:
    """The reasons of a rule that matter. If several matter only together, the largest stands for all of them."""
    alone = [reason for reason in reasons if _matters(reason, known)]
    total = known.gain(sum(map(_saves, reasons)))
    if alone or len(reasons) < 2 or len(known.kernels) < 2 or total < LEAST * known.time:
        return alone
    first = max(reasons, key=_saves)
    others = units.plural(len(reasons) - 1, "other kernel")
    line = f"the same in {others}: together they save at most {units.seconds(total)}"
    return [replace(first, sums=(*first.sums, line), saves=total)]


def _matters(reason: Reason, known: Known) -> bool:
    if reason.saves is None:
        return reason.aside or not known.near_ceiling
    return reason.saves >= LEAST * known.time


def _saves(reason: Reason) -> float:
    return reason.saves or 0.0
