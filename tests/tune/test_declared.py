"""The names of the variants that stand for plans: safe, and different for different plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UnwritableError, UsageError
from harness.ops.declarations import check_name
from harness.tune.candidates import Candidate
from harness.tune.declared import TriedPlans, name_of, sheet_of, write

ODD = ("a/b", "a_b", "a b", "../a", "..", "a\nb", "", "[ab]*", "é", "a+b")


def test_every_value_gives_a_name_that_a_variant_may_have_and_no_two_the_same() -> None:
    names = [name_of("tuned", f"way{value}") for value in ODD]
    for name in names:
        check_name("a variant", name)
        assert "/" not in name
    assert len({*names}) == len(ODD)
    assert name_of("tuned", "rows1.wayneg") == "tuned:rows1.wayneg"


def test_plans_of_several_sizes_are_on_the_sheet_once() -> None:
    plans = [Candidate({"way": value}) for value in (*ODD, *ODD)]
    assert [*sheet_of("op", "tuned", plans).plans.values()] == [{"way": value} for value in ODD]


def test_plans_of_two_sizes_that_are_written_alike_are_refused() -> None:
    """Else the times of one would count for the other."""
    with pytest.raises(UsageError, match="two plans are written 'rows8'"):
        sheet_of("op", "tuned", [Candidate({"rows": 8}), Candidate({"rows": "8"})])


def test_a_sheet_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnwritableError, match="can't be written"):
        write(TriedPlans("op", "tuned", {}), Path("/proc/nothing/here"))
