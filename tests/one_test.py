"""One test for many cases: a test for each case costs some milliseconds, most of them to tell other processes of it.

For cases that are checked in less, and that need nothing which is made anew for each test, such as `tmp_path`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

SHOWN = 3
"""Failures that are shown whole. Of other ones the case is named."""

LONGEST = 60
"""Characters of a value in the name of its case."""


def one_test(
    names: str | Sequence[str], cases: Iterable[Any], ids: Iterable[str] | Callable[[Any], object] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Do what `pytest.mark.parametrize` does with the same arguments, in one test, which goes through all cases.

    The test fails in the end if any case does. It names each case that failed, and shows the first ones.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    alone = isinstance(names, str) and len(arguments) == 1
    made = [case if hasattr(case, "marks") else pytest.param(*((case,) if alone else case)) for case in cases]
    rows = [one.values for one in made]
    assert rows, f"no cases of {names}"
    assert {len(row) for row in rows} == {len(arguments)}, f"each case must have a value for each of {names}"
    assert not any(one.marks for one in made), "a case with a mark is a test of its own: use pytest.mark.parametrize"
    given = ["-".join(map(str, map(ids, row))) for row in rows] if callable(ids) else ids
    named = list(given or (str(one.id or "-".join(map(_word, one.values))) for one in made))

    def merged(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_cases(**fixtures: Any) -> None:
            failed: list[str] = []
            shown: list[BaseException] = []
            for name, row in zip(named, rows, strict=True):
                try:
                    test(**fixtures, **dict(zip(arguments, row, strict=True)))
                except (Exception, pytest.fail.Exception) as error:  # the latter is none of the former
                    error.add_note(f"in the case [{name}]")
                    failed.append(name)
                    shown = [*shown, error][:SHOWN]
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(rows)} cases failed: {', '.join(failed)}", shown)

        # What pytest is to give are fixtures alone.
        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        vars(all_cases)["__signature__"] = signature.replace(parameters=fixtures)
        return all_cases

    return merged


def _word(value: Any) -> str:
    """A value in few characters."""
    text = str(getattr(value, "__qualname__", value))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
