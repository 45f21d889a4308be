"""Which op is searched first where the time is too short for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness import paths, plans
from harness.model import Case
from harness.ops import Catalogue
from harness.ops.tuning import kernels_digest
from harness.plans import Entry, PlanTable, TimedPlan
from harness.tune import ToTune, in_order
from harness.tune import parts as parts_module
from harness.tune.procedure import home_of

TUNABLE = Path(__file__).parents[1] / "plugins" / "tunable.py"
DIGEST = kernels_digest(Catalogue((TUNABLE,))["chunked"], "tuned")


def wanted(*rows: int) -> ToTune:
    cases = [Case("chunked", "tuned", "float32", (("M", each), ("N", 16)), device="cpu") for each in rows]
    return ToTune("chunked", "tuned", tuple(cases), "cpu", (TUNABLE,))


FEW, MANY, MORE = wanted(4), wanted(64, 65), wanted(64, 65, 66)  # 2, 12 and 18 plans


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own, no table of the package, and parts of one case."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(paths, "data", lambda name: tmp_path / name)
    monkeypatch.setattr(parts_module, "_OF_A_PART", 6)
    plans.forget()
    yield
    plans.forget()


def table(rows: Sequence[int], file: Path | None = None, source: str = DIGEST) -> None:
    timed = (TimedPlan({"rows": 1, "way": "neg"}, 1.0, 1.0, 1.0, rule=True),)
    entry = Entry("chunked", "tuned", "float32", {}, {}, timed, source, "", "", "", "", 6, 0)
    entries = tuple(replace(entry, shape={"M": each, "N": 16}) for each in rows)
    plans.write(PlanTable(plans.device_name("cpu"), entries), file)


def ordered(*every: ToTune) -> list[ToTune]:
    return [each.wanted for each in in_order(every)]


def test_the_op_with_the_fewest_plans_comes_first() -> None:
    assert ordered(MORE, FEW, MANY) == [FEW, MANY, MORE]
    assert [(each.plans, each.sizes, each.done) for each in in_order([MORE, FEW])] == [(2, 1, 0), (18, 3, 0)]


def test_an_op_with_a_size_that_the_table_lacks_comes_before_one_that_the_table_has() -> None:
    table([4, 64, 65])
    assert ordered(FEW, MANY, MORE) == [MORE, FEW, MANY]
    table([4, 64, 65, 66], source="other kernels made it")
    assert ordered(MORE, FEW, MANY) == [FEW, MANY, MORE]


def test_the_table_that_is_to_be_written_says_what_is_lacking(tmp_path: Path) -> None:
    table([64, 65])
    table([4], tmp_path / "mine.json")
    assert ordered(MANY, FEW) == [FEW, MANY]
    few, many = (replace(each, output=tmp_path / "mine.json") for each in (FEW, MANY))
    assert ordered(few, many) == [many, few]


def test_a_search_that_is_begun_goes_on_first_and_the_sizes_that_it_has_done_count() -> None:
    (home_of(MORE) / "part-0").mkdir(parents=True)
    (home_of(MORE) / "part-0" / "done.json").touch()
    assert ordered(FEW, MANY, MORE) == [MORE, FEW, MANY]
    assert [each.done for each in in_order([FEW, MORE])] == [1, 0]


def test_a_search_that_is_done_comes_before_one_that_is_begun() -> None:
    """It takes no time, and what it has found is in the table whenever the time is over."""
    for place in range(3):
        (home_of(MORE) / f"part-{place}").mkdir(parents=True)
        (home_of(MORE) / f"part-{place}" / "done.json").touch()
    home_of(FEW).mkdir()
    assert ordered(MANY, FEW, MORE) == [MORE, FEW, MANY]


def test_an_op_whose_plans_cannot_be_listed_has_all_its_sizes_left_and_one_without_plans_has_none() -> None:
    [case] = FEW.cases
    broken = replace(FEW, variant="eager", cases=(replace(case, variant="eager"),))
    assert [(each.plans, each.sizes) for each in in_order([broken, wanted(7)])] == [(0, 0), (0, 1)]
