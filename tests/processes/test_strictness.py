"""How strictly two codes check the outputs of an op."""

from __future__ import annotations

from typing import Any

from harness.ops import Extremes, Op, Tensor
from harness.processes.strictness import laxer, newly_spared, spared, strictness
from tests.one_test import one_test


def op(**fields: Any) -> Op:
    known: dict[str, Any] = {"dtypes": ("float32", "float16"), "reference": lambda *_: {}}
    return Op("mine", "y = x", {"N": "elements"}, **{**known, **fields})


def checked(*_: Any) -> list[str]:
    return []


def test_the_tolerance_of_each_dtype_is_told_and_what_is_not_checked_is_not() -> None:
    assert strictness([op(tolerance={"float32": (0.1, 0.2)})]) == (
        ("mine", "float32", 0.1, 0.2),
        ("mine", "float16", 1e-3, 1e-6),
    )
    assert strictness([op(check=checked, dtypes=("float32",))]) == (("mine", "float32", -1.0, -1.0),)
    assert strictness([op(reference=None)]) == ()


@one_test(
    ("before", "now", "words"),
    [
        ({}, {}, []),
        ({"tolerance": {"float32": (1e-2, 1e-2)}}, {}, []),
        ({"reference": None}, {}, []),
        # What a check of its own allows isn't known.
        ({}, {"check": checked}, ["mine has a check of its own now, and nobody can tell"]),
        ({"check": checked}, {"check": checked}, []),
        ({}, {"dtypes": ("float32",), "tolerance": {"float16": (1, 1)}}, []),
        ({}, {"tolerance": {"float16": (1e-2, 1e-6)}}, ["mine in float16 may be off by 0.01 (relative) and 1e-06"]),
        (
            {},
            {"tolerance": {"float32": (1e-6, 1.0)}},
            ["mine in float32 may be off by 1e-06 (relative) and 1 (absolute)"],
        ),
        ({}, {"reference": None}, ["mine has neither a reference nor a check now"]),
        ({"check": checked}, {"reference": None}, ["mine has neither a reference nor a check now"]),
        ({"check": checked}, {}, []),
    ],
)
def test_what_became_laxer_is_told(before: dict[str, Any], now: dict[str, Any], words: list[str]) -> None:
    found = laxer(strictness([op(**before)]), {"mine": op(**now)})
    assert len(found) == len(words)
    assert all(text.startswith(start) for text, start in zip(found, words, strict=True))


def test_an_op_that_is_gone_is_left_to_others() -> None:
    assert laxer(strictness([op()]), {}) == ()


def exempt(*names: str, **largest: float) -> dict[str, Any]:
    return {"extremes": Extremes(dict.fromkeys(names, "a reason"), largest, "a reason" if largest else "")}


OWN_INPUTS = {"make": lambda ctx: None}


@one_test(
    ("before", "now", "words"),
    [
        ({}, {}, []),
        ({}, exempt("nan"), ["extreme values (nan)"]),
        (exempt("nan"), exempt("nan", "x.infinity"), ["extreme values (x.infinity)"]),
        (exempt("nan", "x"), exempt("x.nan", "x.infinity"), []),
        (exempt("all"), exempt("nan", float32=10.0), []),
        (exempt("nan"), {}, []),
        ({}, exempt(float32=2.0**60), ["numbers above 1.15292e+18 (largest float32)"]),
        (exempt(float32=100.0), exempt(float32=10.0), ["numbers above 10 (largest float32)"]),
        (exempt(float32=10.0), exempt(float32=100.0), []),
        ({}, OWN_INPUTS, ["extreme values (all)"]),
        (OWN_INPUTS, exempt("nan"), []),
    ],
)
def test_extreme_values_that_are_no_longer_tried_are_told(
    before: dict[str, Any], now: dict[str, Any], words: list[str]
) -> None:
    inputs = {"inputs": (Tensor("x", ("N",)),)}
    found = newly_spared(spared([op(**inputs, **before)]), ["mine", "gone"], {"mine": op(**inputs, **now)})
    assert found == tuple(f"mine isn't checked with {text} in its inputs now" for text in words)
