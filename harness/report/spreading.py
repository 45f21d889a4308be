"""Places along an axis, moved as far from each other as what stands there needs."""

from __future__ import annotations

from collections.abc import Sequence


def apart(places: Sequence[float], low: float, high: float, least: float) -> list[float]:
    """The places in their order between `low` and `high`, moved so that none is nearer than `least` to the next.

    None is nearer than half of that to an end. Where there is no room for that, all are equally far from each other.
    """
    least = min(least, (high - low) / max(1, len(places)))
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + least if moved else low + least / 2))
    for index in range(len(moved) - 1, -1, -1):
        most = moved[index + 1] - least if index + 1 < len(moved) else high - least / 2
        moved[index] = min(moved[index], most)
    return moved
