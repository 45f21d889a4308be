"""Which waiver holds for a case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.gate.records import Waiver


def waiver_of(waivers: Sequence[Waiver], case: str, today: str) -> Waiver | None:
    """The waiver with the largest loss of those that hold today for the case with this id; None if none does."""
    fitting = (waiver for waiver in waivers if waiver.covers(case, today))
    return max(fitting, key=lambda waiver: waiver.largest_loss, default=None)


def waived(waivers: Sequence[Waiver], cases: Iterable[str], today: str) -> dict[str, float]:
    """The largest loss that a waiver lets pass, by id of the case. today: as YYYY-MM-DD, in UTC."""
    found = {case: waiver_of(waivers, case, today) for case in cases}
    return {case: waiver.largest_loss for case, waiver in found.items() if waiver}
