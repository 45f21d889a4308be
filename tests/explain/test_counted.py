"""What explain says of the texts' own slow kernels, and of ours, by the counters of committed runs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from harness import store
from harness.explain import all_rules, explain, known
from harness.model import Run

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


@pytest.mark.parametrize(("case", "told"), VERDICTS, ids=[case for case, _ in VERDICTS])
def test_the_page_says_what_explain_says(case, told):
    run = next(run for run in counted() if case in {result.case.id for result in run.results})
    found = [reason.rule for reason in explain(known(run, case)) if not reason.aside]
    assert ", ".join(dict.fromkeys(found)) == ("" if told == NOT_KNOWN else told)


def test_a_kernel_at_the_ceiling_gets_no_reason():
    found = [known(run, result.case.id) for run in counted() for result in run.results if result.time is not None]
    at = [one for one in found if one.best and one.of_ceiling >= 0.99]
    assert len(at) > 30
    assert not [one.case.id for one in at if any(not reason.aside for reason in explain(one))]
