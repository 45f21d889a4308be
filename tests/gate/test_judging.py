"""The base judges what the working tree computes, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.gate.inquiry import _named
from harness.gate.judging import judged
from harness.gate.records import Revision
from harness.gate.worktree import Checkout
from harness.model import Case, Job
from tests.one_test import one_test

JOB = Job(Case("twice", "plain", "float32", (("N", 64),), device="cpu"))


class Answers:
    """Workers that answer each step as they are told, else that all is well."""

    def __init__(self, **answers: tuple[str, str]) -> None:
        self.answers = answers

    def exchange(self, step: str, job: Job, folder: Path) -> tuple[str, str]:
        assert folder.is_dir()
        return self.answers.get(step, ("", ""))


def test_code_of_the_base_that_cannot_be_loaded_is_told_as_the_base_s(tmp_path: Path) -> None:
    """Its worktree is gone when the user reads that."""
    code = Checkout(Revision("main", "0" * 40, False, "d" * 64), None, (), tmp_path)
    with pytest.raises(UsageError, match=r"^main can't be loaded: mine\.py:3: SyntaxError$") as caught, _named(code):
        raise UsageError(f"{tmp_path}/mine.py:3: SyntaxError", "the file isn't valid Python: correct that line")
    assert "name a base whose code can be loaded" in caught.value.advice


@one_test(
    ("base", "now", "wrong", "unable"),
    [
        ({}, {}, "", ""),
        ({"give": ("", "its inputs are too large")}, {}, "", "its inputs are too large"),
        ({}, {"work": ("y has another dtype", "")}, "y has another dtype", ""),
        ({"judge": ("y is off", "")}, {}, "", "the base finds its own result wrong, too: y is off"),
        ({}, {"own": ("x", "")}, "", "it is timed with another input x than the base's, which may take less time"),
        # The base makes other inputs each time.
        ({"own": ("x", "")}, {"own": ("x", "")}, "", ""),
    ],
)
def test_what_is_wrong_is_told_and_why_it_cannot_be_judged(base: Any, now: Any, wrong: str, unable: str) -> None:
    found = judged(Answers(**base), Answers(**now), [JOB])
    assert [(each.wrong, each.unable) for each in found] == ([(wrong, unable)] if wrong or unable else [])
