"""How a case gets its plan: the one that is tried, else a table's, else the rule's; and what it says of that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import metrics, paths, plans
from harness.errors import UsageError
from harness.model import Case
from harness.ops import Catalogue, Context, Op, Tuning
from harness.ops.tuning import declare_facts, kernels_digest
from harness.plans import Entry, PlanTable, TimedPlan

PLUGIN = Path(__file__).parents[1] / "plugins" / "tunable.py"
RULE, BETTER = {"rows": 1, "way": "neg"}, {"rows": 64, "way": "neg"}


@pytest.fixture
def op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Op]:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(paths, "data", lambda name: tmp_path / name)
    plans.forget()
    yield Catalogue([PLUGIN])["chunked"]
    plans.forget()


def context(op: Op, rows: int = 256, variant: str = "tuned") -> Context:
    case = Case("chunked", variant, "float32", (("M", rows), ("N", 64)), device="cpu")
    return Context(case, None, None, SimpleNamespace(initial_seed=lambda: 0), op)


def write(made: Op, **changes: Any) -> None:
    timed = (TimedPlan(BETTER, 1.0, 1.0, 1.0), TimedPlan(RULE, 2.0, 2.0, 2.0, rule=True))
    shape, source = {"M": 256, "N": 64}, kernels_digest(made, "tuned")
    entry = Entry("chunked", "tuned", "float32", shape, {}, timed, source, "", "", "", "", 2, 0)
    plans.write(PlanTable(plans.device_name("cpu"), (replace(entry, **changes),)))


def test_without_a_table_it_is_the_rule(op: Op) -> None:
    ctx = context(op)
    assert ctx.plan() == RULE
    assert (ctx.facts, ctx.notes) == ({}, [])


def test_from_a_table_with_the_facts_of_the_neighbour(op: Op) -> None:
    write(op)
    ctx = context(op, rows=512)
    assert ctx.plan() == BETTER
    assert ctx.facts == {"neighbour": 1.0, "neighbour_M": 256.0, "neighbour_N": 64.0}
    assert ctx.notes == []


def test_a_plan_that_is_not_legal_at_the_size_is_left(op: Op) -> None:
    write(op, shape={"M": 100, "N": 64})
    assert context(op, rows=64).plan() == BETTER
    assert context(op, rows=63).plan() == RULE


def test_a_table_of_other_kernels_is_left_with_a_note(op: Op) -> None:
    write(op, source="another")
    ctx = context(op)
    assert (ctx.plan(), ctx.plan()) == (RULE, RULE)
    [note] = ctx.notes
    assert note.code == "old-plans"
    assert "1 sizes aren't used: other kernels" in note.message
    assert "harness tune chunked" in note.advice


@pytest.mark.parametrize(
    "changes", [{"dtype": "float16"}, {"variant": "other"}, {"op": "other"}, {"choices": {"a": 1}}]
)
def test_a_table_of_something_else_is_none(op: Op, changes: dict[str, Any]) -> None:
    write(op, **changes)
    assert context(op).plan() == RULE


def test_sizes_that_are_not_alike_are_no_neighbours(op: Op) -> None:
    write(op)
    variant = op.variants["tuned"]
    assert variant.tuning
    alike = replace(variant.tuning, alike=lambda case: case.symbols["M"] % 3)
    op.variants["tuned"] = replace(variant, tuning=alike)
    try:
        assert context(op, rows=259).plan() == BETTER
        assert context(op, rows=258).plan() == RULE
    finally:
        op.variants["tuned"] = variant


def test_what_is_tried_comes_first(op: Op) -> None:
    write(op)
    ctx = context(op)
    ctx.tried = {"rows": 8, "way": "neg"}
    assert ctx.plan() == {"rows": 8, "way": "neg"}
    assert ctx.facts == {}


def test_a_plan_with_other_parameters_is_refused(op: Op) -> None:
    case, tuning = context(op).case, op.variants["tuned"].tuning
    assert tuning
    assert tuning.obstacle(case, BETTER) is None
    assert tuning.obstacle(case, {"rows": 1}) == "it has the parameters rows, the variant has rows, way"
    assert tuning.obstacle(case, {"rows": 2, "way": "neg"}) == "rows can't be 2"
    assert tuning.obstacle(case, {"rows": 512, "way": "neg"}) == "more rows than there are"


def test_a_variant_without_plans_and_a_wrong_declaration(op: Op) -> None:
    with pytest.raises(UsageError, match="variant 'eager' of op 'chunked' has no tuning"):
        context(op, variant="eager").plan()
    with pytest.raises(UsageError, match="tuning of variant 'x' is 3"):
        op.variant("x", "wrong", tuning=3)(lambda _: lambda _t: None)
    with pytest.raises(UsageError, match="refuse of a Tuning doesn't take 2 arguments"):
        Tuning(parameters=lambda _: {}, rule=lambda _: {}, refuse=lambda _: None)  # type: ignore[misc]


def test_the_measured_size_of_a_plan_is_a_figure_of_each_symbol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))
    declare_facts(["QQ"])
    assert metrics.METRICS["neighbour_QQ"].reported
