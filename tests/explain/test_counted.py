"""What explain says of the texts' own slow kernels, and of ours, by the counters of committed runs."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from harness import store
from harness.explain import all_rules, explain, known
from harness.model import Run
from harness.subject import Subject
from tests.one_test import one_test

RUNS = Path(__file__).parents[2] / "reports" / "h200"
PAGE = RUNS / "verdicts.md"
NOT_KNOWN = "not known"
VERDICTS = re.findall(r"`([\w/=.,-]+)` \|(?:[^|\n]*\|)?? ((?:[a-z_]+(?:, )?)+|not known) \|", PAGE.read_text("utf-8"))
"""Cases, and the names of rules that the page gives for each."""


@cache
def counted() -> tuple[Run, ...]:
    return tuple(store.load(RUNS / name) for name in ("counters", "counters_rows", "counters_more"))


def test_the_page_has_cases():
    assert len(VERDICTS) == sum(line.count("`") == 2 and line.startswith("|") for line in PAGE.read_text().splitlines())
    assert len({case for case, _ in VERDICTS}) == len(VERDICTS) > 40
    assert {rule for _, told in VERDICTS for rule in told.split(", ")} <= {*all_rules(), NOT_KNOWN}


def test_the_page_begins_with_how_often_explain_finds_the_texts_reason():
    page = PAGE.read_text("utf-8")
    counts = Counter(re.findall(r"^\| [A-Z]\d+ \|.* \| (yes|second|no) \|$", page, re.MULTILINE))
    told = " ".join(page.split())
    assert f"names the text's reason first for {counts['yes']} of {counts.total()} slow kernels" in told
    assert f"and for {counts['no']} kernels the counters name another cause" in told
    assert counts["second"] == 1


@cache
def first_with() -> dict[str, Run]:
    """The first run that has a case, by id."""
    return {result.case.id: run for run in reversed(counted()) for result in run.results}


@pytest.mark.slow  # test_verdicts.py has what explain says
@one_test(("case", "told"), VERDICTS, ids=[case for case, _ in VERDICTS])
def test_the_page_says_what_explain_says(case, told):
    found = [reason.rule for reason in explain(known(first_with()[case], case)) if not reason.aside]
    assert ", ".join(dict.fromkeys(found)) == ("" if told == NOT_KNOWN else told)


def test_a_kernel_at_the_ceiling_gets_no_reason():
    timed = [(run, result) for run in counted() for result in run.results if result.time is not None]
    at = [(run, result) for run, result in timed if (Subject.of(result, run.limits).best or 0) >= 0.99 * result.time]
    assert len(at) > 30
    found = [known(run, result.case.id) for run, result in at]
    assert not [one.case.id for one in found if any(not reason.aside for reason in explain(one))]
