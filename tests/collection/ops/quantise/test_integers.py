"""How values become integers of 8 bits, and which integers the check takes."""

from __future__ import annotations

import math

from harness.collection.ops.quantise import _integers as integers
from harness.ops import comparer
from tests.one_test import one_test

BOUNDARY = 1e-9


def complaint(got, value, error, scale=1.0):
    """What the check says of an integer for one value."""
    import torch

    of = integers.Approximate(*(torch.tensor([number], dtype=torch.float64) for number in (value, error)))
    part = integers.expected("y", torch.tensor([got], dtype=torch.int8), of, torch.tensor([scale]), 0)
    return comparer.complaint([part])


def taken(value, error=0.0, scale=1.0):
    """The integers that the check takes, of some at both ends and between."""
    return [
        got
        for got in (*range(-128, -124), *range(-6, 7), 99, 100, 101, *range(124, 128))
        if complaint(got, value, error, scale) is None
    ]


@one_test(
    ("value", "wanted"),
    [
        (0.0, 0),
        (0.5, 0),  # halves go to the even integer
        (1.5, 2),
        (2.5, 2),
        (-0.5, 0),
        (-1.5, -2),
        (126.5, 126),
        (127.4, 127),
        (127.5, 127),
        (1e30, 127),
        (math.inf, 127),
        (-127.5, -128),
        (-128.0, -128),
        (-129.0, -128),
        (-math.inf, -128),
        (math.nan, 0),
    ],
)
def test_rounding_and_saturation(value, wanted):
    """The scale is 1, a power of two, so that nothing is lost and one integer is right."""
    import torch

    assert taken(value) == [wanted]
    one = torch.tensor([value])
    assert integers.to_integers(one, torch.ones(1)).tolist() == [wanted]
    assert integers.to_integers(one.repeat(64), torch.ones(1)).tolist() == [wanted] * 64


@one_test("value", [-1.0, -1e-30, 0.0, 1e-30, 3.0, math.nan])
def test_a_scale_of_0(value):
    import torch

    wanted = 0 if value == 0 or math.isnan(value) else int(math.copysign(127.5, value) - 0.5)
    assert taken(value, scale=0.0) == [wanted]
    assert integers.to_integers(torch.tensor([value]), torch.zeros(1)).tolist() == [wanted]


def test_two_integers_are_right_where_a_boundary_lies_within_the_error_and_else_one():
    assert taken(2.5, BOUNDARY) == [2, 3]
    assert taken(2.5 - 2 * BOUNDARY, BOUNDARY) == [2]
    assert taken(2.5 + 2 * BOUNDARY, BOUNDARY) == [3]
    assert taken(-2.5, BOUNDARY) == [-3, -2]
    assert taken(2.0, 0.4) == [2]
    assert taken(127.5, BOUNDARY) == [127]
    assert taken(-128.5, BOUNDARY) == [-128]


def test_the_division_may_lose_a_little_unless_the_scale_is_a_power_of_two():
    assert taken(2.5 * 0.25, scale=0.25) == [2]
    assert taken(2.5 * 3.0, scale=3.0) == [2, 3]
    assert taken(2.5 * 3.0 * (1 + 2**-20), scale=3.0) == [3]
    assert taken(100.5 * 3.0 * (1 - 2**-20), scale=3.0) == [100]


def test_a_negative_scale():
    assert taken(3.0, scale=-1.0) == [-3]
    assert taken(2.5, BOUNDARY, scale=-1.0) == [-3, -2]


def test_each_channel_has_its_scale():
    import torch

    x = torch.tensor([[1.0, 1.0], [3.0, 3.0]])
    assert integers.to_integers(x, torch.tensor([1.0, 0.5])).tolist() == [[1, 2], [3, 6]]
