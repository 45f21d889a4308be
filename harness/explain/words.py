"""How rules write figures in their sums."""

from __future__ import annotations

from harness import units
from harness.explain.records import Known, Seen


def amount(value: float) -> str:
    """A large count: 67108864 -> '67.11 M', 12.5 -> '12.50'."""
    scale, prefix = units.prefixed(value)
    return f"{units.significant(value / scale)} {prefix}".rstrip()


def share(value: float) -> str:
    """A share with three digits, so that sums can be checked by hand: 0.125 -> '12.5%', 0.9 -> '90%'."""
    return f"{100 * value:.3g}%"


def above_stream(known: Known, kernel: Seen) -> tuple[float, str]:
    """Seconds of a kernel beyond a plain stream of its bytes, and how they are computed."""
    rest = known.streaming(kernel) or 0.0
    return kernel.seconds - rest, f"{units.seconds(rest)} is what its bytes take as a plain stream"


def above_busy(known: Known, kernel: Seen) -> tuple[float, str]:
    """Seconds of a kernel beyond its stream and its instructions, and how they are computed."""
    busy = known.busy(kernel)
    return kernel.seconds - busy, f"{units.seconds(busy)} go to streaming and to instructions"


def spared(known: Known, of: float, seconds: float, text: str) -> tuple[float, str]:
    """The seconds that could be spared, and the last line of a sum, which says so.

    of: what is looked at, in seconds. seconds: what could be spared of it, by the computation in `text`. No more can be
    spared than lies above the ceiling; the line says so where that is less.
    """
    saves = known.gain(seconds)
    # A stream of the bytes that are needed takes about what the ceiling does: then both say the same.
    capped = f"; no more than {units.seconds(saves)} lie above the ceiling" if seconds > 1.01 * saves else ""
    return saves, f"saves at most {units.seconds(saves)} of {units.seconds(of)}: {text}{capped}"
