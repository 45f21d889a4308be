"""The page of all rows: what each row must have, that figures are the runs', and that nothing gets worse unnoticed."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness import scenario
from harness.ops import Catalogue

ROOT = Path(__file__).parent.parent.parent
MEASURED = re.compile(r"\d+(?:\.\d+)?%|\d+\.\d+x\b|\b\d+(?:\.\d+)? (?:us|ns|ms|GB/s|TB/s|times)\b")
"""What a figure of a run looks like."""


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(ROOT / "scripts"))  # what scripts share lies beside them
    spec.loader.exec_module(module)
    return module


# All of them read each run. scenario/test_rows.py has the rows that scenarios name.
pytestmark = pytest.mark.slow
SCRIPT, FIGURE_CASES = script("make_rows"), script("figure_cases")
COMMITTED = script("committed")
COUNTED = COMMITTED.COUNTED


@pytest.fixture(scope="module")
def register() -> Any:
    return SCRIPT.Register(SCRIPT.read())


@pytest.fixture
def changed(register: Any) -> Any:
    """A register with the same runs, whose rows and scenarios a test may change."""
    copy = SCRIPT.Register.__new__(SCRIPT.Register)
    assert register.answers
    copy.__dict__.update(
        {**register.__dict__, "_timed": {}, "scenarios": dict(register.scenarios), "runs": dict(register.runs)}
    )
    return copy


def of_run(register: Any, name: str) -> Any:
    """The register with this run alone, and its answers to be found anew."""
    register.runs = {name: register.runs[name]}
    register.__dict__.pop("answers", None)
    return register


def named(register: Any, name: str) -> Any:
    return next(row for row in register.rows if row.name == name)


def with_row(register: Any, row: Any) -> None:
    register.rows = [row if one.name == row.name else one for one in register.rows]


# ---- What is committed.


def test_the_pages_are_as_the_runs_have_them(register: Any) -> None:
    assert SCRIPT.page(register) == SCRIPT.PAGE.read_text(encoding="utf-8"), "run scripts/make_rows.py"
    text = SCRIPT.LIST.read_text(encoding="utf-8")
    assert SCRIPT.listed(text, register.rows) == text, "run scripts/make_rows.py"


def test_every_row_is_there_once(register: Any) -> None:
    texts = {"P": 2, "O": 23, "S": 18, "D": 5, "R": 4}
    assert [row.name for row in register.rows] == [
        f"{text}{number}" for text, last in texts.items() for number in range(1, last + 1)
    ]


def test_no_row_lacks_more_than_the_register_says_and_every_outcome_has_its_reason(register: Any) -> None:
    assert list(SCRIPT.problems(register)) == []


def test_no_reason_has_a_typed_figure(register: Any) -> None:
    """A run that is made again would make it wrong."""
    whys = [why for row in register.rows for figure in row.figures for why in figure.whys.values()]
    assert [why for why in whys if MEASURED.search(why)] == []
    assert len(whys) > 20


def test_every_row_has_a_line_and_every_figure_too(register: Any) -> None:
    page = SCRIPT.PAGE.read_text(encoding="utf-8")
    for row in register.rows:
        lines = re.findall(rf"^\| (?:\*\*{row.name}\*\*|{row.name}) .*$", page, re.MULTILINE)
        assert len(lines) == max(1, len(row.figures)), row.name


# ---- What a row may lose.


def test_a_row_that_loses_its_scenario_is_noticed(changed: Any) -> None:
    changed.scenarios["dropout_grad"] = replace(changed.scenarios["dropout_grad"], rows=())
    assert changed.lacks(named(changed, "D4"))[0] == "a scenario"
    assert any(text.startswith("D4: lacks a scenario") for text in SCRIPT.problems(changed))


@pytest.mark.parametrize(("end", "lost"), [("before", "a before"), ("after", "an after")])
def test_a_row_whose_variant_is_no_longer_measured_is_noticed(changed: Any, end: str, lost: str) -> None:
    row = named(changed, "D4")
    scenario = changed.scenarios["dropout_grad"]
    kept = tuple(name for name in scenario.variants if name != getattr(row, end))
    changed.scenarios["dropout_grad"] = replace(scenario, variants=kept)
    assert changed.lacks(row) == [lost]


def test_a_row_whose_run_is_gone_is_noticed(changed: Any) -> None:
    row = named(changed, "D4")
    assert changed.lacks(row) == []
    changed.runs = {
        name: run for name, run in changed.runs.items() if "dropout_grad" not in {m.case.op for m in run.measurements}
    }
    assert changed.lacks(row) == ["a run"]


def test_a_run_without_a_time_of_both_is_no_run(changed: Any) -> None:
    row = named(changed, "D4")
    for name, run in changed.runs.items():
        failed = tuple(
            replace(m, status="crashed", samples=()) if m.case.variant == row.after else m for m in run.measurements
        )
        changed.runs[name] = replace(run, measurements=failed)
    assert changed.lacks(row) == ["a run"]


@pytest.mark.parametrize("change", [{"value": 0.9}, {"metric": "traffic"}, {"variant": "naive"}, {"over": "compile"}])
def test_a_figure_without_a_claim_is_noticed(changed: Any, change: dict[str, Any]) -> None:
    row = named(changed, "R2")
    first = row.figures[0]
    with_row(changed, replace(row, figures=(replace(first, **change), *row.figures[1:])))
    assert changed.lacks(named(changed, "R2")) == [f"a claim of '{first.text}'"]


def test_before_and_after_may_be_values_of_a_choice(changed: Any) -> None:
    row = replace(named(changed, "S5"), op="bn_add_relu", before="layout=nchw", after="layout=nhwc")
    changed.scenarios = {"bn_add_relu": replace(changed.scenarios["bn_add_relu"], rows=("S5",))}
    assert changed.lacks(replace(row, figures=())) == []
    assert changed.lacks(replace(row, figures=(), after="layout=other")) == ["an after", "a run"]
    assert changed.lacks(replace(row, figures=(), after="form=nhwc")) == ["an after", "a run"]


def test_a_figure_that_may_be_several_claims_is_noticed(changed: Any) -> None:
    row = named(changed, "O11")
    with_row(changed, replace(row, figures=(*row.figures[:2], replace(row.figures[2], over=""))))
    told = list(SCRIPT.problems(changed))
    assert told == ["O11: '8 words are better than one' may be several claims of relu_mask: give 'over' or 'where'"]


def test_a_claim_that_is_gone_is_noticed(changed: Any) -> None:
    scenario = changed.scenarios["prelu"]
    changed.scenarios["prelu"] = replace(scenario, claims=tuple(c for c in scenario.claims if c.metric != "arithmetic"))
    assert changed.lacks(named(changed, "R2")) == ["a claim of 'arithmetic share down 20-30%'"]


def test_what_a_row_has_now_is_to_be_taken_from_the_register(changed: Any) -> None:
    with_row(changed, replace(named(changed, "D4"), lacks=("a run",)))
    assert "D4: has a run now; remove it from 'lacks' in reports/rows.yaml" in list(SCRIPT.problems(changed))


# ---- Outcomes.


def test_an_outcome_without_a_reason_is_noticed(changed: Any) -> None:
    row = named(changed, "O8")
    (figure,) = row.figures
    assert changed.answers["O8", figure.text].comparison.verdict == "disagrees"
    with_row(changed, replace(row, figures=(replace(figure, whys={"can't tell": "the moon was full"}),)))
    wanted = f"O8: '{figure.text}': say in reports/rows.yaml why the verdict is \"disagrees\""
    assert wanted in list(SCRIPT.problems(changed)), "the reason of another outcome is none"
    assert "the moon" not in SCRIPT.page(changed)


def test_counters_answer_what_they_can_and_else_the_newest_run(register: Any) -> None:
    assert register.answers["O9", "3D -> 2D + D/32 bytes"].run in COUNTED
    assert register.answers["R2", "throughput up 30% and more"].run not in COUNTED
    answer = register.answers["S2", "1.63x, with TF32 before"]
    cases = {line.case for found in answer.comparison.found for line in found.lines}
    having = [name for name, run in register.runs.items() if cases <= {m.case for m in run.measurements}]
    assert len(having) > 1
    assert answer.run == max(having, key=lambda name: register.runs[name].header.started)


def with_header(register: Any, name: str, **fields: Any) -> Any:
    """The register with other words in the header of a run, and its answers to be found anew."""
    run = register.runs[name]
    register.runs[name] = replace(run, header=replace(run.header, **fields))
    register.__dict__.pop("answers", None)
    return register


def test_several_processes_answer_before_a_newer_recording_of_one(changed: Any) -> None:
    time, share = ("P1", "8.49 -> 8.91 steps/s of ERNIE-doc"), ("P1", "1.5% of the timeline after")
    assert changed.runs["row_shares"].header.started > changed.runs["row_unscale"].header.started
    assert changed.answers[time].run == "row_unscale"
    assert changed.answers[share].run == "row_shares", "a share is of one recording in any run"
    assert with_header(changed, "row_unscale", repeat=1).answers[time].run == "row_shares"


def test_a_run_of_cases_that_were_chosen_by_their_results_answers_no_row(register: Any) -> None:
    assert COMMITTED.CHOSEN
    assert all((COMMITTED.RUNS / name / "run.json").is_file() for name in COMMITTED.CHOSEN)
    assert not {*COMMITTED.CHOSEN} & {*register.runs}


def test_todays_code_answers_before_a_newer_run_of_older_code(changed: Any) -> None:
    measured = changed.runs["row_swin"].measurements
    changed.__dict__["codes"] = {(m.case.op, m.case.variant): m.code for m in measured}
    key = ("S2", "1.63x, with TF32 before")
    assert "today's code" in with_header(changed, "row_swin").answers[key].state
    older = "row_swin_timeline"
    assert with_header(changed, older, started="2099-01-01T00:00:00+00:00").answers[key].run == "row_swin"
    changed.__dict__["codes"] = {}
    assert with_header(changed, older).answers[key].run == older


def test_of_several_scenarios_the_first_that_was_measured_counts(changed: Any) -> None:
    row = named(changed, "D4")
    (figure,) = row.figures
    with_row(changed, replace(row, figures=(replace(figure, scenario=("no_such", "dropout_grad")),)))
    assert of_run(changed, "dropout").answers["D4", figure.text].comparison.claim.row == "D4"


# ---- Whether a run is evidence.


def test_a_run_says_what_keeps_it_from_being_evidence(changed: Any) -> None:
    run = of_run(changed, "prelu").runs["prelu"]
    codes = {(m.case.op, m.case.variant): m.code for m in run.measurements}
    changed.__dict__["codes"] = codes
    key = ("R3", "ties with PyTorch")
    assert changed.answers[key].state == ("today's code",)
    del changed.__dict__["answers"]
    changed.runs["prelu"] = replace(run, header=replace(run.header, git_dirty=True, finished=None))
    assert changed.answers[key].state == ("today's code", "uncommitted changes", "not finished")
    del changed.__dict__["answers"]
    changed.__dict__["codes"] = codes | {("prelu", "eager"): None}
    assert changed.answers[key].state[0] == "older code", "the code of the case that it is compared with counts, too"
    assert "older code, uncommitted changes, not finished" in SCRIPT.page(changed)
    told = list(SCRIPT.unreleasable(changed))
    assert "R3: 'ties with PyTorch' is from prelu: older code, uncommitted changes, not finished" in told


def test_a_release_needs_everything(register: Any) -> None:
    told = list(SCRIPT.unreleasable(register))
    assert any(text.startswith("O22: lacks ") for text in told) == bool(named(register, "O22").lacks)
    assert any("has no run" in text for text in told) or all(
        (row.name, figure.text) in register.answers or figure.unanswered
        for row in register.rows
        for figure in row.figures
    )


def test_the_check_writes_nothing_and_says_what_differs(
    register: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setattr(SCRIPT, "Register", lambda _: register)
    made = SCRIPT.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(SCRIPT, "page", lambda of: made if of is register else "")
    monkeypatch.setattr(SCRIPT, "ROOT", tmp_path)
    for name in ("PAGE", "LIST"):
        copy = tmp_path / f"{name}.md"
        copy.write_text(getattr(SCRIPT, name).read_text(encoding="utf-8"), encoding="utf-8")
        monkeypatch.setattr(SCRIPT, name, copy)
    assert SCRIPT.main(["--check"]) == 0
    SCRIPT.PAGE.write_text("old")
    assert SCRIPT.main(["--check"]) == 1
    assert SCRIPT.PAGE.read_text() == "old"
    assert "PAGE.md: differs from the runs; run scripts/make_rows.py" in capsys.readouterr().out
    assert SCRIPT.main([]) == 0
    assert SCRIPT.PAGE.read_text(encoding="utf-8") == made
    assert SCRIPT.main(["--check"]) == 0
    capsys.readouterr()
    wrong = list(SCRIPT.unreleasable(register))
    assert SCRIPT.main(["--release"]) == (1 if wrong else 0)
    assert capsys.readouterr().out.splitlines() == wrong


# ---- What is to be measured again.


def test_the_cases_of_answers_that_are_no_evidence_are_measured_again(changed: Any) -> None:
    """Each has a scenario today too, and nothing else is measured. A file may have several scenarios."""
    states = {"D": ("older code",), "S": (SCRIPT.TODAY, "uncommitted changes"), "R": (SCRIPT.TODAY,)}
    answers = {key: one for key, one in changed.answers.items() if key[0][0] in states}
    changed.__dict__["answers"] = {key: replace(one, state=states[key[0][0]]) for key, one in answers.items()}
    words = [*FIGURE_CASES.arguments(changed)]
    globs = [case for only, case in pairwise(words) if only == "--only"]
    catalogue = Catalogue()
    definitions = scenario.load(scenario.find(words[: words.index("--only")]), catalogue)
    planned = scenario.plan(definitions, catalogue, scenario.Selection("cuda", only=tuple(globs)))
    found = [(key, line) for key, one in answers.items() for each in one.comparison.found for line in each.lines]
    assert (
        {job.case.id for job in planned.jobs} == {*globs} == {line.case.id for key, line in found if key[0][0] != "R"}
    )
    runs = {one.run for key, one in answers.items() if key[0] == "D4"}
    some = [*FIGURE_CASES.arguments(changed, [*runs])]
    assert {line.case.id for key, line in found if key[0] == "D4"} <= {*some} < {*words}


def test_the_runs_that_are_missing_answer_figures_of_older_code(register: Any) -> None:
    """missing.md gives each of them to figure_cases.py, which ends with an error or nothing otherwise."""
    page = (ROOT / "reports" / "missing.md").read_text(encoding="utf-8")
    loops = re.findall(r"for run in (.*)\ndo python scripts/figure_cases.py \$run", page)
    assert loops
    for run in " ".join(loops).split():
        assert [*FIGURE_CASES.arguments(register, [run])], run


def test_cases_are_named_that_answer_figures_without_an_answer(changed: Any) -> None:
    runs = ("row_layouts", "row_layouts_again")  # of which the newer one answers, or the one of today's code
    lost = {key: one for key, one in changed.answers.items() if one.run in runs and one.comparison.found}
    assert lost
    changed.__dict__["answers"] = {key: one for key, one in changed.answers.items() if key not in lost}
    words = [*FIGURE_CASES.missing(changed, [row for row, _ in lost])]
    catalogue = Catalogue()
    definitions = scenario.load(scenario.find(words[: words.index("--only")]), catalogue)
    globs = tuple(case for only, case in pairwise(words) if only == "--only")
    planned = {
        job.case.id for job in scenario.plan(definitions, catalogue, scenario.Selection("cuda", only=globs)).jobs
    }
    wanted = {line.case.id for one in lost.values() for found in one.comparison.found for line in found.lines}
    assert wanted <= planned
    every = {case.id for definition in definitions for case in definition.cases("cuda")}
    assert len(planned) < len(every)


def compared(register: Any, row: str, text: str) -> list[Any]:
    """The cases that a figure needs."""
    (figure,) = (one for one in named(register, row).figures if one.text == text)
    return [case for _, case in register.needed(named(register, row), figure)]


def test_a_figure_over_devices_needs_one_device_and_one_over_a_choice_both_values(register: Any) -> None:
    cases = compared(register, "O6", "near-linear scaling")
    assert {(case.variant, case.world) for case in cases} == {("replicas", 1), ("ddp", 2)}
    cases = compared(register, "O22", "the same on one device")
    assert {(case.variant, case.world) for case in cases} == {("amp", 1)}
    assert len({case.values["clip"] for case in cases}) == 2


def test_a_figure_of_some_sizes_needs_no_other_size(register: Any) -> None:
    cases = compared(register, "S14", "weights a quarter of float32")
    assert {case.variant for case in cases} == {"float32", "int8_merged_graph"}
    assert {case.values["B"] for case in cases} == {128}


def test_a_row_that_isnt_there_is_refused(register: Any) -> None:
    with pytest.raises(SystemExit, match="S99: no row"):
        [*FIGURE_CASES.missing(register, ["S9", "S99"])]


def test_a_run_that_answers_nothing_is_refused(register: Any) -> None:
    with pytest.raises(SystemExit, match=r"peak, dropout: answers no figure; the runs that do: .*row_access"):
        [*FIGURE_CASES.arguments(register, ["peak", "dropout"])]


def test_a_key_that_means_nothing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.yaml"
    file.write_text("P1: {technique: one, claims: two, afterwards: three}")
    with pytest.raises(TypeError, match="afterwards"):
        SCRIPT.read(file)
