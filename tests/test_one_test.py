"""A test of many cases tries all of them, and names each one that fails."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.one_test import one_test
from tests.rare import rare


def test_all_cases_are_tried_with_the_fixtures_that_the_test_asks_for() -> None:
    seen = []

    @one_test("n, text", [(1, "a"), (2, "b")])
    @one_test(("kind",), [(int,), (str,)])
    def check(home: str, n: int, text: str, kind: type) -> None:
        seen.append((home, n, text, kind))

    assert [*inspect.signature(check).parameters] == ["home"]
    check(home="here")
    assert seen == [("here", n, text, kind) for n, text in ((1, "a"), (2, "b")) for kind in (int, str)]


def test_each_case_that_fails_is_named_and_the_first_ones_are_shown() -> None:
    @one_test("n", range(8))
    def check(n: int) -> None:
        assert n in (0, 3), f"{n} is wrong"

    with pytest.raises(ExceptionGroup) as caught:
        check()
    assert caught.value.message == "6 of 8 cases failed: 1, 2, 4, 5, 6, 7"
    assert [str(one).splitlines()[0] for one in caught.value.exceptions] == ["1 is wrong", "2 is wrong", "4 is wrong"]
    assert caught.value.exceptions[0].__notes__ == ["in the case [1]"]


def test_a_case_that_raises_nothing_where_it_should_is_named_too() -> None:
    @one_test("n", ["1", "x", "2"])
    def check(n: str) -> None:
        with pytest.raises(ValueError, match="invalid"):
            int(n)

    with pytest.raises(BaseExceptionGroup, match="2 of 3 cases failed: 1, 2"):
        check()


def named(cases: Any, ids: Any = None) -> str:
    """The names of all cases."""

    @one_test(("a", "b"), cases, ids)
    def check(a: object, b: object) -> None:
        raise ValueError

    with pytest.raises(ExceptionGroup) as caught:
        check()
    return caught.value.message.partition("failed: ")[2]


def test_a_case_is_named_by_its_id_or_its_values() -> None:
    assert named([(1, "x" * 99), (len, None)]) == f"1-{'x' * 57}..., len-None"
    assert named([(1, 2), (3, 4)], ids=iter(["first", "second"])) == "first, second"
    assert named([(1, 2), (3, 4)], ids=lambda value: value * 10) == "10-20, 30-40"


def test_a_case_with_a_mark_and_a_test_without_cases_are_refused() -> None:
    with pytest.raises(AssertionError, match="a case with a mark is a test of its own"):
        one_test("n", [1, rare(2)])
    with pytest.raises(AssertionError, match="no cases of n"):
        one_test("n", [])
    with pytest.raises(AssertionError, match="a value for each of"):
        named([(1, 2), (3,)])


def test_cases_of_pytest_param_are_taken() -> None:
    assert named([pytest.param(1, 2, id="a"), pytest.param(3, 4)]) == "a, 3-4"
