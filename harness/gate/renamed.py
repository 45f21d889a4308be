"""What seems to have another name now: an op or a variant that is gone, beside a new one with the same cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.gate.ended import needs_other
from harness.gate.records import CaseEvidence
from harness.model import Case


@dataclass(frozen=True, slots=True)
class Renamed:
    """Two names of what may be one thing. kind: 'op' or 'variant'; cases: how many are gone with the first name."""

    kind: str
    before: str
    now: str
    cases: int


def renamed(cases: Sequence[CaseEvidence]) -> Iterator[Renamed]:
    """Each op, and each variant of an op that stays, whose cases are gone where one new name has the like of each.

    What the machine of the base couldn't run is no case that is gone.
    """
    for kind, parts in (("op", 1), ("variant", 2)):
        before = _by_name((found.case for found in cases if found.base and not needs_other(found.base)), parts)
        now = _by_name((found.case for found in cases if found.now), parts)
        known = {_split(found.case, parts)[0] for found in cases if found.base}
        for old in sorted(before.keys() - now.keys()):
            fitting = [new for new in now.keys() - known if before[old] <= now[new] and _is_beside(old, new)]
            if len(fitting) == 1:
                yield Renamed(kind, old, fitting[0], len(before[old]))


def _by_name(cases: Iterator[Case], parts: int) -> dict[str, set[str]]:
    """What the ids of cases say after the name, by the name, which is as many parts of the id."""
    found: dict[str, set[str]] = {}
    for name, rest in (_split(case, parts) for case in cases):
        found.setdefault(name, set()).add(rest)
    return found


def _split(case: Case, parts: int) -> tuple[str, str]:
    words = case.id.split("/")
    return "/".join(words[:parts]), "/".join(words[parts:])


def _is_beside(old: str, new: str) -> bool:
    """Whether two variants are of one op; all ops are beside each other."""
    return old.rpartition("/")[0] == new.rpartition("/")[0]
