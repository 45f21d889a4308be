"""Formatting of SI quantities. Inside, everything is in seconds and bytes; this is the edge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def significant(value: float, digits: int = 4) -> str:
    """`value` with that many significant digits and no exponent: 1234.5 -> '1234', 0.1234 -> '0.1234'."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def seconds(value: float, digits: int = 4) -> str:
    """A duration: 7.2e-05 -> '72.00 us'."""
    scale, unit = time_scale([value])
    return f"{significant(value / scale, digits)} {unit}"


def size(value: float, digits: int = 4) -> str:
    """A number of bytes, in powers of ten: 308281344 -> '308.3 MB'."""
    scale, unit = next((s for s in _SIZES if abs(value) >= s[0]), _SIZES[-1])
    if unit == "B":
        return f"{value:.0f} B"
    return f"{significant(value / scale, digits)} {unit}"


def rate(value: float) -> str:
    """A bandwidth, always in GB/s so that columns compare: 4.3e12 -> '4300 GB/s'."""
    return f"{gigabytes(value)} GB/s"


def gigabytes(value: float) -> str:
    """Bytes a second as GB/s without the unit, for table columns: 4.3e12 -> '4300', 12.3e9 -> '12.3'."""
    scaled = value / 1e9
    return f"{scaled:.0f}" if scaled >= 1000 else f"{scaled:.1f}" if scaled >= 10 else significant(scaled, 3)


def percent(value: float, decimals: int = 1) -> str:
    """A share: 0.987 -> '98.7%'."""
    return f"{100 * value:.{decimals}f}%"


def change(value: float, decimals: int = 2) -> str:
    """A relative change with its sign: -0.0312 -> '-3.12%'. What rounds to nothing has none: '0.00%'."""
    rounded = round(100 * value, decimals)
    return f"{rounded:+.{decimals}f}%" if rounded else f"{0:.{decimals}f}%"


def ratio(value: float) -> str:
    """A speed-up: 1.5 -> '1.50x'."""
    return f"{value:.2f}x"


def time_scale(values: Iterable[float]) -> tuple[float, str]:
    """The (scale in seconds, unit) that suits the smallest of `values`, to be used for a whole column."""
    finite = [abs(v) for v in values if math.isfinite(v) and v != 0]
    smallest = min(finite, default=1.0)
    return next((s for s in _TIMES if smallest >= s[0]), _TIMES[-1])


METRICS: Mapping[str, Callable[[float], str]] = {
    "speedup": ratio,
    "traffic": ratio,
    "bandwidth": rate,
    "of_peak": percent,
    "of_ceiling": percent,
    "time": seconds,
}
"""How a value of each metric of a claim or a floor is written."""
