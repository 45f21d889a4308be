"""An op that learns a choice, or a size with a default, keeps the ids of its cases; stored cases are recognised."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import store
from harness.cli import app
from harness.errors import Exit
from harness.model import Case
from harness.ops import Choice, Op
from harness.ops.known_cases import load, named, recognised, recognised_run, translated
from tests.one_test import one_test

SIZES, LAYOUT = {"M": "rows", "N": "columns"}, Choice("the layout", ("nchw", "nhwc"))
BEFORE = Op("mine", "", SIZES, choices={"layout": LAYOUT})


def ops(**fields: Any) -> dict[str, Op]:
    return {"mine": Op("mine", "", **{"symbols": SIZES, "choices": {"layout": LAYOUT}, **fields})}


def case(shape: dict[str, int], **choices: Any) -> Case:
    return Case("mine", "tuned", "float32", tuple(shape.items()), tuple(choices.items()))


def test_what_is_at_its_default_is_not_in_the_id_and_all_else_is() -> None:
    usual = recognised(case({"M": 2, "N": 3}, layout="nchw"), ops())
    assert (usual.id, usual.whole_id) == ("mine/tuned/float32/M2-N3", "mine/tuned/float32/M2-N3/layout=nchw")
    assert usual.group == "mine/float32/M2-N3"
    other = recognised(case({"M": 2, "N": 3}, layout="nhwc"), ops())
    assert other.id == other.whole_id == "mine/tuned/float32/M2-N3/layout=nhwc"


@pytest.mark.parametrize("stored", [case({"M": 2, "N": 3}, layout="nchw"), case({"M": 2, "N": 3}, layout="nhwc")])
def test_an_op_that_learns_a_choice_and_a_size_keeps_its_ids(stored: Case) -> None:
    before = recognised(stored, ops())
    learned = ops(
        symbols={"M": "rows", "K": "more", "N": "columns"},
        defaults={"K": "2 * N"},
        choices={"p": Choice("probability", low=0.1, high=1), "layout": LAYOUT},
    )
    now = recognised(before, learned)
    assert now.id == before.id
    assert now.shape == (("M", 2), ("K", 6), ("N", 3))
    assert dict(now.choices)["p"] == 0.1
    assert recognised(now, ops()) == before, "the code of before knows the case, too"
    elsewhere = case({"M": 2, "K": 7, "N": 3}, layout="nchw", p=0.5)
    assert recognised(elsewhere, learned).id == "mine/tuned/float32/M2-K7-N3/p=0.5"
    assert recognised(elsewhere, ops()) is elsewhere, "the code of before can't have this case"


def test_a_case_at_an_old_default_is_another_case_than_one_at_todays() -> None:
    stored = recognised(case({"M": 2, "N": 3}, layout="nchw"), ops())
    changed = ops(choices={"layout": Choice("the layout", ("nchw", "nhwc"), default="nhwc")})
    assert recognised(stored, changed).id == "mine/tuned/float32/M2-N3/layout=nchw"
    assert recognised(case({"M": 2, "N": 3}, layout="nhwc"), changed).id == "mine/tuned/float32/M2-N3"


def test_a_size_at_a_default_that_other_sizes_make() -> None:
    square = ops(defaults={"N": "M"}, choices={})
    assert recognised(case({"M": 4}), square).shape == (("M", 4), ("N", 4))
    assert recognised(case({"M": 4, "N": 4}), square).id == "mine/tuned/float32/M4"
    assert recognised(case({"M": 4, "N": 5}), square).id == "mine/tuned/float32/M4-N5"
    assert recognised(case({"N": 5}), square).id == "mine/tuned/float32/N5", "no size of M is known"
    fixed = ops(defaults={"N": "8", "M": "N // 2"}, choices={})
    assert recognised(case({}), fixed).id == "mine/tuned/float32/usual"
    assert named("mine/tuned/float32/usual", fixed) == recognised(case({}), fixed)


def test_a_size_stays_in_the_id_where_it_could_be_read_as_another() -> None:
    ambiguous = ops(symbols={"N": "", "N1": ""}, defaults={"N": "8", "N1": "2"}, choices={})
    ids = [recognised(case({"N": n, "N1": m}), ambiguous).id for n, m in ((11, 2), (8, 1), (8, 2))]
    assert len(set(ids)) == 3


def test_an_id_of_before_the_op_learned_a_choice_is_todays() -> None:
    learned = ops(choices={"layout": LAYOUT, "p": Choice("probability", low=0.1, high=1)})
    assert translated("mine/tuned/float32/M2-N3/layout=nchw", learned) == "mine/tuned/float32/M2-N3"


@one_test(
    "made",
    [
        case({"M": 2, "N": 3}, layout="nchw"),
        case({"M": 20, "N": 3}, layout="nhwc"),
        Case("mine", "eager", "float16", (("M", 1), ("N", 1)), (("layout", "nhwc"),), 4, cache="hot"),
        Case("mine", "eager", "float16", (("M", 1), ("N", 1)), (("layout", "nchw"),), 2),
    ],
)
def test_an_id_names_its_case_whether_it_is_whole_or_not(made: Case) -> None:
    made = recognised(made, ops())
    assert named(made.id, ops()) == named(made.whole_id, ops()) == made
    assert translated(made.whole_id, ops()) == made.id


@one_test("key", ["mine", "mine/tuned/float32/M2", "mine/tuned/float32/X2-N3", "yours/a/b/N1", "mine/a/b/M2-N3/z=1"])
def test_an_id_of_no_case_stays_as_it_is(key: str) -> None:
    assert named(key, ops()) is None
    assert translated(key, ops()) == key


def test_globs_fit_the_id_and_the_whole_id() -> None:
    usual = recognised(case({"M": 2, "N": 3}, layout="nchw"), ops())
    for glob in ("*/M2-N3", "*/layout=nchw", "mine/*/float32/*", usual.id, usual.whole_id):
        assert usual.matches(glob), glob
    assert not usual.matches("*/layout=nhwc")
    assert usual.group_matches("*/layout=nchw")
    assert usual.group_matches("mine/float32/M2-N3")
    assert not usual.group_matches("*/tuned/*")


@pytest.fixture
def long_and_short(tmp_path: Path) -> tuple[Path, Path]:
    """A committed run, whose ids are whole, and the same as a run of today stores it, measured at another time."""
    long = Path(__file__).parents[2] / "reports" / "h200" / "dropout"
    run = recognised_run(store.load(long), {})
    assert any(m.case.choices and m.case.id == m.case.whole_id for m in run.measurements)
    short = tmp_path / "short"
    shutil.copytree(long, short)
    today = load(long)
    header = json.loads((short / "run.json").read_text())
    header["started"] = "2026-11-24T00:00:00+00:00"
    for stored, scenario in zip(header["scenarios"], today.header.scenarios, strict=True):
        stored["cases"] = scenario.cases
    (short / "run.json").write_text(json.dumps(header))
    with (short / "results.jsonl").open("w") as file:
        file.writelines(store.dump(m) + "\n" for m in today.measurements)
    return long, short


def test_a_run_with_whole_ids_has_the_cases_of_one_without_to_compare_and_to_the_gate(
    long_and_short: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.report.gate.formats.plot.write", lambda *_: [])  # a second for what nobody looks at
    long, short = map(str, long_and_short)
    compared = CliRunner().invoke(app, ["compare", long, short])
    assert compared.exit_code == 0, compared.output
    assert "missing" not in compared.output
    gated = CliRunner().invoke(app, ["gate", long, short, "--output", str(tmp_path / "gate"), "--advisory"])
    assert "gone" not in gated.output, gated.output
    assert "the scenarios, cases or their timing differ" not in gated.output
    assert gated.exit_code in (0, Exit.UNDECIDED), gated.output
