"""When a gate looks at its pairs, and which chance of an error each look may spend. All of it is fixed beforehand.

A look is a test of all confirming pairs so far. Looks come after 10, 20, 40, 80 pairs and so on, however the first ones
ended, so it does no harm that a person, who has seen them, asks for more pairs. The levels of all looks that there can
ever be add up to a fixed chance. By Bonferroni that holds whatever the looks have to do with each other.
"""

from __future__ import annotations

CONFIRM_PAIRS = 10
"""Pairs before the first look. Each later look comes after twice as many as the look before it."""
LOOKS = 2
"""Looks without --pairs."""
MOST_LOOKS = 7
LOOK_ALPHAS = (0.001, 0.003)
"""Levels for REGRESSED of the first looks. The first is strict, since ten pairs show rare slow processes badly."""
LATER_ALPHA = 0.002
"""What all later looks may spend together: the third a half, the fourth a quarter, and so on."""
PAIRS_ALPHA = sum(LOOK_ALPHAS) + LATER_ALPHA
PASS_LEVEL = 0.05
"""The level for OK of the screen and of the first looks. Later looks may spend as much again together, by halves."""


def pairs_at(look: int) -> int:
    """Confirming pairs that a case has at a look, counted from 1."""
    return CONFIRM_PAIRS << (look - 1)


def look_alpha(look: int) -> float:
    """The level for REGRESSED of a look, over all cases together."""
    later = look - len(LOOK_ALPHAS)
    return LOOK_ALPHAS[look - 1] if later <= 0 else LATER_ALPHA / (1 << later)


def pass_level(look: int) -> float:
    """The level for OK of a look, for each case."""
    return PASS_LEVEL / (1 << max(0, look - len(LOOK_ALPHAS)))


def looks_for(pairs: int) -> int:
    """The first look that has so many pairs, or the last look that there is."""
    return next((look for look in range(1, MOST_LOOKS) if pairs_at(look) >= pairs), MOST_LOOKS)
