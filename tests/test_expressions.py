"""Integer expressions: values, and refusals that say why."""

from __future__ import annotations

import pytest

from harness.expressions import LIMIT, ExpressionError, evaluate, symbols_in
from tests.one_test import one_test

SYMBOLS = {"N": 7, "C": 64, "zero": 0}


@one_test(
    ("text", "value"),
    [
        (12, 12),
        (" 12 ", 12),
        ("0x10", 16),
        ("-N + 10", 3),
        ("2**27 // C", 2097152),
        ("-N // 2", -4),
        ("-N % 4", 1),
        ("N - C * 2", -121),
        ("(N - C) * 2", -114),
        ("2**3**2", 512),
        ("min(N, C) + max(N, C)", 71),
        ("cdiv(C, N)", 10),
        ("cdiv(63, N)", 9),
        ("cdiv(-1, 2)", 0),
        ("1**9223372036854775807", 1),
        ("2**62 - 1 + 2**62", LIMIT),
    ],
)
def test_values(text: str | int, value: int) -> None:
    assert evaluate(text, SYMBOLS) == value


@one_test(
    ("text", "reason"),
    [
        ("N // zero", "divides by zero"),
        ("cdiv(N, zero)", "divides by zero"),
        ("N % zero", "takes a remainder by zero"),
        ("N / 2", "write '//'"),
        ("N * 0.5", "holds the fraction 0.5"),
        ("2**-N", "has a negative exponent"),
        ("2**63", "overflows 64 bits"),
        ("-2**63", "overflows 64 bits"),
        ("9**9**9", "overflows 64 bits"),
        ("C**65 - C**65", "overflows 64 bits"),
        ("9223372036854775808", "overflows 64 bits"),
        ("", "isn't an expression"),
        ("N +", "isn't an expression"),
        ("N C", "isn't an expression"),
        ("N; C", "isn't an expression"),
        ("N\0", "isn't an expression"),
        ("9" * 5000, "isn't an expression"),
        ("(" * 1000 + "N" + ")" * 1000, "isn't an expression"),
        ("-" * 900 + "N", "is nested too deeply"),
        ("True", "isn't integer arithmetic"),
        ("'7'", "isn't integer arithmetic"),
        ("N if C else 1", "isn't integer arithmetic"),
        ("N < C", "isn't integer arithmetic"),
        ("N << 2", "isn't integer arithmetic"),
        ("[N][0]", "isn't integer arithmetic"),
        ("N.real", "isn't integer arithmetic"),
        ("min(N)", "isn't integer arithmetic"),
        ("min(N, key=C)", "isn't integer arithmetic"),
        ("abs(N)", "isn't integer arithmetic"),
        ("__import__('os').getpid()", "isn't integer arithmetic"),
        ("(lambda: 1)()", "isn't integer arithmetic"),
    ],
)
def test_refusals_say_why(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, SYMBOLS)
    assert reason in str(caught.value)
    assert caught.value.symbol is None


def test_an_unknown_symbol_is_named() -> None:
    with pytest.raises(ExpressionError, match="uses 'K', which isn't a symbol here") as caught:
        evaluate("N * K", SYMBOLS)
    assert caught.value.symbol == "K"


@pytest.mark.parametrize(("value", "shown"), [(0.1, "0.1"), ("nhwc", "'nhwc'")])
def test_a_choice_is_no_size(value: float | str, shown: str) -> None:
    assert evaluate("2 * N", SYMBOLS | {"kind": value}) == 2 * SYMBOLS["N"]
    with pytest.raises(ExpressionError, match=f"uses 'kind', which is {shown}, not an integer"):
        evaluate("N * kind", SYMBOLS | {"kind": value})


@one_test(
    ("text", "symbols"),
    [("2**27 // N", {"N"}), ("max(N, C) - N", {"N", "C"}), ("7", set()), (7, set()), ("N +", set())],
)
def test_symbols_in(text: str | int, symbols: set[str]) -> None:
    assert symbols_in(text) == symbols
