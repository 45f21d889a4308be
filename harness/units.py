"""How SI quantities are written. Inside, everything is in seconds and bytes; formatting happens here, at the edge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
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
    """A relative change with its sign: -0.0312 -> '-3.12%'. A change that rounds to zero has no sign: '0.00%'."""
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


def prefixed(value: float) -> tuple[float, str]:
    """The (scale, SI prefix) that suits a value of 1 and more: 2.5e9 -> (1e9, 'G')."""
    return next((p for p in _PREFIXES if abs(value) >= p[0]), _PREFIXES[-1])


def operations(value: float) -> str:
    """Operations a second, always in TFLOP/s so that columns compare: 7.4e14 -> '740.0 TFLOP/s'."""
    return f"{teraflops(value)} TFLOP/s"


def teraflops(value: float) -> str:
    """Operations a second as TFLOP/s without the unit, for table columns: 7.4e14 -> '740.0'."""
    return significant(value / 1e12)


def count(value: float) -> str:
    """A whole number."""
    return f"{value:.0f}"


def plural(number: int, noun: str) -> str:
    """'1 case', '2 cases'."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


Written = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Unit:
    """How a quantity is written: alone, in a column, on an axis.

    write: a value with its unit. column: given all values of a column and the name of what is counted, the unit to
    write in its head and how to write a cell. axis: given all values on an axis and the name of what is counted, the
    unit of the axis, and how much one of it is in SI units.
    """

    write: Written
    column: Callable[[Iterable[float], str], tuple[str, Written]]
    axis: Callable[[Iterable[float], str], tuple[str, float]]


def _fixed(name: str, scale: float, write: Written, cell: Written | None = None) -> Unit:
    """A unit that doesn't depend on the values. cell: how a column writes a value, if its head has the unit."""
    return Unit(
        write,
        lambda _values, _noun: (name, cell) if cell else ("", write),
        lambda _values, _noun: (name, scale),
    )


def _seconds_column(values: Iterable[float], _noun: str) -> tuple[str, Written]:
    scale, unit = time_scale(values)
    return unit, lambda value: significant(value / scale)


def _seconds_axis(values: Iterable[float], _noun: str) -> tuple[str, float]:
    scale, unit = time_scale([max(values, default=1.0)])
    return unit, scale


_MOST_DIGITS = 1e6
"""Above it a number needs a prefix, even if the smallest number beside it is then below 1."""


def _counted_scale(values: Iterable[float]) -> tuple[float, str]:
    """The (scale, SI prefix) of the smallest value, so that none is written as 0.98 k; a larger one if it must be."""
    known = [*values] or [1.0]
    scale, prefix = prefixed(min(known))
    return prefixed(max(known) / 1e3) if max(known) >= _MOST_DIGITS * scale else (scale, prefix)


def _counted_column(values: Iterable[float], noun: str) -> tuple[str, Written]:
    scale, prefix = prefixed(min(values, default=1.0))
    return _a_second(prefix, noun), lambda value: significant(value / scale)


def _counted_axis(values: Iterable[float], noun: str) -> tuple[str, float]:
    scale, prefix = _counted_scale(values)
    return _a_second(prefix, noun), scale


def _a_second(prefix: str, noun: str) -> str:
    return f"{prefix} {noun or 'items'}/s".strip()


SECONDS = Unit(seconds, _seconds_column, _seconds_axis)
MICROSECONDS = _fixed("us", 1e-6, seconds, lambda value: significant(value * 1e6))
"""Seconds in a column beside much longer times, which are all written in the unit of the shortest time."""
ITEMS = Unit(lambda value: f"{significant(value)}/s", _counted_column, _counted_axis)
"""Items a second: how many of the things that users count, such as images, are done in a second."""
TOKENS = Unit(
    ITEMS.write,
    lambda values, _noun: _counted_column(values, "tokens"),
    lambda values, _noun: _counted_axis(values, "tokens"),
)
BANDWIDTH = _fixed("GB/s", 1e9, rate, gigabytes)
OPERATIONS = _fixed("TFLOP/s", 1e12, operations, teraflops)
BYTES = _fixed("B", 1.0, size)
SHARE = _fixed("%", 0.01, percent)
FINE_SHARE = _fixed("%", 0.01, lambda value: percent(value, 2))
CHANGE = _fixed("%", 0.01, change)
RATIO = _fixed("x", 1.0, ratio)
FINE_RATIO = _fixed("x", 1.0, lambda value: f"{value:.3f}x")
DECIBELS = _fixed("dB", 1.0, lambda value: f"{value:.1f} dB")
COUNT = _fixed("", 1.0, count)
PLAIN = _fixed("", 1.0, significant)
"""A number whose unit isn't known."""
