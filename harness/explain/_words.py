"""How rules write figures in their sums."""

from __future__ import annotations

from harness import units


def amount(value: float) -> str:
    """A large count: 67108864 -> '67.11 M', 12.5 -> '12.50'."""
    scale, prefix = units.prefixed(value)
    return f"{units.significant(value / scale)} {prefix}".rstrip()


def share(value: float) -> str:
    """A share with three digits, so that sums can be checked by hand: 0.125 -> '12.5%', 0.9 -> '90%'."""
    return f"{100 * value:.3g}%"


def spared(of: float, text: str, saves: float) -> str:
    """The last line of a sum: what of `of` seconds could be spared, by the computation in `text`."""
    return f"saves at most {units.seconds(saves)} of {units.seconds(of)}: {text}"
