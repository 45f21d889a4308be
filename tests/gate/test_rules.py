"""The rules together: how they are found, and in which order they speak."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from harness.errors import UsageError
from harness.gate import Evidence, acceptable, all_rules, check_accept, findings, rulebook, rules
from harness.gate.records import CaseEvidence, Finding
from harness.model import Case


def test_rules_are_found_by_their_files_and_the_gravest_finding_comes_first(
    evidence: Callable[..., CaseEvidence], case: Callable[..., Case]
) -> None:
    folder = Path(rules.__file__ or "").parent
    assert set(all_rules()) == {file.stem for file in folder.glob("[!_]*.py")}
    assert "slower" in all_rules()
    cases = (evidence("improved"), evidence("inconclusive", of=case(n=2)), evidence("regressed", of=case(n=3)))
    found = findings(Evidence("main", (), cases, shared="1 other process"))
    assert [finding.severity for finding in found] == ["environment", "failure", "undecided", "note", "note"]


def test_a_file_without_a_judge_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lenient.py").write_text("def jugde(evidence): ...\n")
    monkeypatch.setattr(rules, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(rules, "__path__", [str(tmp_path)])
    with pytest.raises(UsageError, match=r"lenient\.py: defines no judge"):
        all_rules()


def test_accepted_findings_stay_and_decide_nothing(evidence: Callable[..., CaseEvidence]) -> None:
    cases = (evidence("regressed"), evidence(None, now=(), pairs=()))
    found = findings(Evidence("main", (), cases), ("missing", "work"))
    assert [(f.rule, f.severity) for f in found][:2] == [("slower", "failure"), ("missing", "accepted")]


def test_the_page_about_the_gate_has_every_rule_and_whether_it_may_be_accepted() -> None:
    text = (Path(rules.__file__ or "").parents[1] / "README.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \|.*\| (.*?) ?\|$", text, re.MULTILINE)
    assert {name for name, _ in table} == set(all_rules())
    assert {name for name, accept in table if accept == "yes"} == set(acceptable())


def test_what_may_be_accepted_is_said_and_nothing_else_may() -> None:
    compared = {"missing", "uncompared", "floor", "scenario", "check", "work", "timer", "tail"}
    assert set(acceptable()) == compared | {"code", "measuring", "software"}
    with pytest.raises(UsageError, match="--accept slower: what this rule finds can't be accepted") as caught:
        check_accept(["slower"])
    assert "waivers.yaml or by a larger --margin" in caught.value.advice
    assert caught.value.advice.endswith(f"allowed: {', '.join(sorted(acceptable()))}")
    with pytest.raises(UsageError) as caught:
        check_accept(["missing", "flor"])
    assert caught.value.advice == "did you mean 'floor'?"


@pytest.mark.parametrize("raised", [SystemExit(0), GeneratorExit(), typer.Exit(0)], ids=repr)
@pytest.mark.parametrize("asked", ["judge", "review"])
def test_a_rule_that_ends_the_program_is_an_error_that_names_it(
    asked: str, raised: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: object) -> Iterator[Finding]:
        yield Finding("leaving", "note", "before it leaves")
        raise raised

    rule = SimpleNamespace(**{"judge": lambda _: iter(()), asked: leave})
    monkeypatch.setattr(rulebook, "all_rules", lambda: {"leaving": rule})
    with pytest.raises(UsageError, match=f"rule 'leaving': .*{type(raised).__name__}"):
        findings(Evidence("main", (), ()))


def test_each_rule_judges_once_and_a_review_sees_what_all_of_them_found(
    evidence: Callable[..., CaseEvidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: Counter[str] = Counter()
    seen: list[str] = []

    def counted(name: str, judge: Callable[[Evidence], Iterator[Finding]]) -> Callable[[Evidence], Iterator[Finding]]:
        def wrapped(evidence: Evidence) -> Iterator[Finding]:
            judged[name] += 1
            return judge(evidence)

        return wrapped

    def review(_: Evidence, found: Sequence[Finding]) -> Iterator[Finding]:
        seen.extend(finding.rule for finding in found)
        yield Finding("first", "environment", "reviewed")

    for name, rule in all_rules().items():
        monkeypatch.setattr(rule, "judge", counted(name, rule.judge))
    first = SimpleNamespace(judge=lambda _: iter(()), review=review)
    every = {"a first one": first, **all_rules()}
    monkeypatch.setattr(rulebook, "all_rules", lambda: every)
    found = findings(Evidence("main", (), (evidence("regressed"),)))
    assert judged == dict.fromkeys(every.keys() - {"a first one"}, 1)
    assert seen == ["calibration", "slower"]
    assert [finding.rule for finding in found] == ["first", "slower", "calibration"]
