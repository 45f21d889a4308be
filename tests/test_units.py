"""Numbers as people read them."""

from __future__ import annotations

import math

from harness import units
from tests.one_test import one_test


@one_test(
    ("value", "digits", "text"),
    [
        (1234.5, 4, "1234"),
        (123456.0, 4, "123456"),
        (12.346, 4, "12.35"),
        (0.1234, 4, "0.1234"),
        (0.00012345, 3, "0.000123"),
        (-1.5, 2, "-1.5"),
        (0.0, 4, "0"),
        (math.inf, 4, "inf"),
        (math.nan, 4, "nan"),
    ],
)
def test_significant(value: float, digits: int, text: str) -> None:
    assert units.significant(value, digits) == text


@one_test(
    ("value", "text"),
    [
        (7.2e-5, "72.00 us"),
        (1e-6, "1.000 us"),
        (9.99e-7, "999.0 ns"),
        (3e-10, "0.3000 ns"),
        (0.0123, "12.30 ms"),
        (90.0, "90.00 s"),
        (0.0, "0 s"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert units.seconds(value) == text


@one_test(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.000 kB"),
        (308281344, "308.3 MB"),
        (8589934592, "8.590 GB"),
        (2.5e12, "2.500 TB"),
        (-5000, "-5.000 kB"),
    ],
)
def test_size(value: float, text: str) -> None:
    assert units.size(value) == text


@one_test(
    ("value", "text"),
    [
        (4.3e12, "4300 GB/s"),
        (1e12, "1000 GB/s"),
        (999.6e9, "999.6 GB/s"),
        (12.34e9, "12.3 GB/s"),
        (9.876e9, "9.88 GB/s"),
        (5e6, "0.00500 GB/s"),
    ],
)
def test_rate(value: float, text: str) -> None:
    assert units.rate(value) == text


def test_shares_and_ratios() -> None:
    assert units.percent(0.987) == "98.7%"
    assert units.percent(1.02346, decimals=2) == "102.35%"
    assert units.change(-0.03124) == "-3.12%"
    assert units.change(0.5, decimals=0) == "+50%"
    assert units.change(-0.00001) == "0.00%"
    assert units.ratio(1.5) == "1.50x"


def test_a_noun_has_the_number_that_it_is_counted_by() -> None:
    assert [units.plural(number, "case") for number in (0, 1, 2)] == ["0 cases", "1 case", "2 cases"]


@one_test(
    ("value", "prefix"),
    [
        (1e12, "T"),
        (9.99e11, "G"),
        (1e9, "G"),
        (9.99e8, "M"),
        (1e6, "M"),
        (9.99e5, "k"),
        (1e3, "k"),
        (999.0, ""),
        (0.5, ""),
    ],
)
def test_a_prefix_suits_values_from_its_scale_on(value: float, prefix: str) -> None:
    scale = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0}[prefix]
    assert units.prefixed(value / 1e12) == (1.0, "")
    assert units.prefixed(value) == units.prefixed(-value) == (scale, prefix)


@one_test(
    ("values", "unit"),
    [([1.0, 2e-3], "ms"), ([5e-6, math.nan, 0.0], "us"), ([1e-12], "ns"), ([], "s"), ([0.0], "s"), ([-2e-3], "ms")],
)
def test_a_column_takes_the_unit_of_its_smallest_number(values: list[float], unit: str) -> None:
    scale, found = units.time_scale(values)
    assert found == unit
    assert scale == {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]


@one_test(
    ("unit", "values", "head", "cells"),
    [
        (units.SECONDS, [2e-3, 5e-6], "us", ["2000", "5.000"]),
        (units.BANDWIDTH, [4.3e12, 12.34e9], "GB/s", ["4300", "12.3"]),
        (units.OPERATIONS, [7.4e14], "TFLOP/s", ["740.0"]),
        (units.ITEMS, [2.5e6, 3e9], "M rows/s", ["2.500", "3000"]),
        (units.BYTES, [999.0, 308281344.0], "", ["999 B", "308.3 MB"]),
        (units.MICROSECONDS, [1.4e-6, 2.5e-8], "us", ["1.400", "0.02500"]),
        (units.SHARE, [0.987], "", ["98.7%"]),
        (units.FINE_SHARE, [0.00123], "", ["0.12%"]),
        (units.CHANGE, [-0.0312, 0.0], "", ["-3.12%", "0.00%"]),
        (units.RATIO, [1.5], "", ["1.50x"]),
        (units.DECIBELS, [38.64], "", ["38.6 dB"]),
        (units.FINE_RATIO, [1.5], "", ["1.500x"]),
        (units.COUNT, [40.0], "", ["40"]),
        (units.PLAIN, [0.5], "", ["0.5000"]),
    ],
)
def test_a_column_is_written_in_one_unit(unit: units.Unit, values: list[float], head: str, cells: list[str]) -> None:
    name, write = unit.column(values, "rows")
    assert (name, [write(value) for value in values]) == (head, cells)


@one_test(
    ("unit", "values", "axis"),
    [
        (units.SECONDS, [5e-6, 2e-3], ("ms", 1e-3)),
        (units.BANDWIDTH, [5e6], ("GB/s", 1e9)),
        (units.ITEMS, [2.5e6, 3e9], ("M rows/s", 1e6)),
        (units.ITEMS, [984.7, 6903.0], ("rows/s", 1.0)),
        (units.ITEMS, [984.7, 6.9e9], ("M rows/s", 1e6)),
        # From a million on a number has a prefix.
        (units.ITEMS, [1.0, 999_999.0], ("rows/s", 1.0)),
        (units.ITEMS, [1.0, 1e6], ("k rows/s", 1e3)),
        (units.ITEMS, [1.0, 6e8], ("k rows/s", 1e3)),
        (units.ITEMS, [1e3, 5e8], ("k rows/s", 1e3)),
        (units.ITEMS, [2.5e6, 3e6], ("M rows/s", 1e6)),
        (units.SECONDS, [], ("s", 1.0)),
        (units.MICROSECONDS, [1.0], ("us", 1e-6)),
        (units.OPERATIONS, [1.0], ("TFLOP/s", 1e12)),
        (units.BYTES, [5.0], ("B", 1.0)),
        (units.SHARE, [0.5], ("%", 0.01)),
        (units.FINE_SHARE, [0.5], ("%", 0.01)),
        (units.CHANGE, [0.5], ("%", 0.01)),
        (units.RATIO, [0.5], ("x", 1.0)),
        (units.FINE_RATIO, [0.5], ("x", 1.0)),
        (units.DECIBELS, [0.5], ("dB", 1.0)),
        (units.COUNT, [5.0], ("", 1.0)),
        (units.PLAIN, [5.0], ("", 1.0)),
    ],
)
def test_an_axis_takes_the_unit_of_its_largest_number(
    unit: units.Unit, values: list[float], axis: tuple[str, float]
) -> None:
    assert unit.axis(values, "rows") == axis


def test_alone_a_value_has_its_unit() -> None:
    written = {unit.write(1.5e12) for unit in (units.BANDWIDTH, units.OPERATIONS, units.BYTES)}
    assert written == {"1500 GB/s", "1.500 TFLOP/s", "1.500 TB"}
    assert units.ITEMS.write(512.0) == "512.0/s"
