"""Places along an axis, moved as far from each other as what stands there needs."""

from __future__ import annotations

from collections.abc import Sequence


def apart(places: Sequence[float], low: float, high: float, least: float) -> list[float]:
    """The places in their order between `low` and `high`, moved so that none is nearer than `least` to the next.

    The ends count as places. Where there is no room for that, all are equally far from each other.
    """
    least = min(least, (high - low) / (len(places) + 1))
    moved: list[float] = []
    for place in places:
        moved.append(max(place, (moved[-1] if moved else low) + least))
    for index in range(len(moved) - 1, -1, -1):
        after = moved[index + 1] if index + 1 < len(moved) else high
        moved[index] = min(moved[index], after - least)
    return moved
