"""Several verdicts as one: of several machines, and against several bases."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from harness import store
from harness.errors import Exit, HarnessError, MachineError, UsageError
from harness.gate import joining
from harness.gate.joining import Joined, JoinedPart
from harness.gate.records import CaseEvidence, Finding, GateRun, Margin, Revision
from harness.model import Case, Machine
from harness.report import gate as report
from harness.report.gate import joined, stopped

Made = Callable[..., GateRun]
NOW = Revision("the working tree", "f" * 40, False, "a" * 64)


@pytest.fixture
def made(evidence: Callable[..., CaseEvidence], case: Callable[..., Case], machine: Machine) -> Made:
    """A verdict of two cases on a machine, one of which ended as `outcome`."""

    def make(outcome: str = "ok", name: str = "H100", base: str = "main", extra: str = "", **fields: object) -> GateRun:
        loss = 0.05 if outcome == "regressed" else 0.0
        cases = (evidence(outcome, loss, of=case(n=1)), evidence("ok", of=case(n=2)))
        severities = {"regressed": "failure", "inconclusive": "undecided", "throttled": "environment"}
        of_outcome = severities.get(extra or outcome)
        findings = (Finding("slower", of_outcome, f"{outcome} there", case=cases[0].case),) if of_outcome else ()
        own = replace(machine, fingerprint=name.lower(), devices=(replace(machine.devices[0], name=name),))
        known = {"mode": "paired", "scenarios": (), "seed": 7, "alpha": 0.01, "started": "2026-11-25T10:00:00+00:00"}
        known |= {"seconds": 1.0, "base": Revision(base, base[0] * 40, False, "b" * 64), "now": NOW}
        return GateRun(**{**known, "machine": own, "cases": cases, "findings": findings, **fields})

    return make


def written(folder: Path, *runs: GateRun) -> list[Path]:
    """A folder with the files of each verdict."""
    folders = [folder / f"m{number}" for number, _ in enumerate(runs)]
    for place, run in zip(folders, runs, strict=True):
        place.mkdir()
        store.write(run, place / "gate.json")
    return folders


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (("ok", "ok"), 0),
        (("ok", "regressed"), 1),
        (("inconclusive", "ok"), 3),
        (("throttled", "inconclusive"), 4),
        (("throttled", "regressed", "ok"), 1),
    ],
)
def test_the_gravest_verdict_counts(tmp_path: Path, made: Made, outcomes: tuple[str, ...], code: int) -> None:
    runs = [made("ok" if o == "throttled" else o, f"GPU {n}", extra=o) for n, o in enumerate(outcomes)]
    found = joining.merge(written(tmp_path, *runs))
    assert found.exit == code
    assert [part.label for part in found.joined] == [run.machine.name for run in runs]


@pytest.mark.parametrize("error", [MachineError("no device"), UsageError("no such op"), RuntimeError("oops")])
def test_a_machine_that_gave_no_verdict_is_not_passed_over(tmp_path: Path, made: Made, error: Exception) -> None:
    [good] = written(tmp_path, made())
    ended = stopped.Stopped.by(error, ("harness", "gate"))
    stopped.write(ended, tmp_path / "bad")
    found = joining.merge([good, tmp_path / "bad"])
    assert found.exit == ended.exit != 0
    assert str(error) in found.joined[1].message
    # What one machine has shown to be slower stays slower.
    slow = written(tmp_path / "m0", made("regressed", "other"))
    assert joining.merge([*slow, tmp_path / "bad"]).exit == Exit.GATE_FAILED


def test_verdicts_of_several_bases_on_several_machines_are_told_apart(tmp_path: Path, made: Made) -> None:
    for name in ("H100", "H200"):
        both = joining.against([made(name=name), made("regressed", name, base="v1.0")])
        assert [part.label for part in both.joined] == ["main", "v1.0"]
        joined.write(both, tmp_path / name)
    found = joining.merge([tmp_path / "H100", tmp_path / "H200" / "gate.json"])
    assert [part.label for part in found.joined] == [
        "H100, against main", "H100, against v1.0", "H200, against main", "H200, against v1.0",
    ]  # fmt: skip
    assert found.exit == Exit.GATE_FAILED


def test_two_machines_of_one_name_are_numbered(tmp_path: Path, made: Made) -> None:
    found = joining.merge(written(tmp_path, made(), made(started="2026-11-25T11:00:00+00:00")))
    assert [part.label for part in found.joined] == ["H100", "H100 (2)"]


def test_what_cannot_be_joined_is_refused(tmp_path: Path, made: Made) -> None:
    same, again = written(tmp_path, made(), made())
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "list.json").write_text("[]")
    other = tmp_path / "o"
    other.mkdir()
    codes = [replace(NOW, digest="c" * 64, dirty=True), replace(NOW, revision="e" * 40)]
    edited, third = written(other, *(made(name=f"X{number}", now=code) for number, code in enumerate(codes)))
    (tmp_path / "p").mkdir()
    [moved] = written(tmp_path / "p", made(name="X", base="main", seed=8))
    content = json.loads((moved / "gate.json").read_text())
    content["base"]["revision"] = "e" * 40
    (moved / "gate.json").write_text(json.dumps(content))
    for places, words in (
        ([same], "only one was named"),
        ([same, again], "is the same verdict as"),
        ([same, same], "is the same verdict as"),
        ([same, tmp_path / "none"], "holds no verdict of a gate"),
        ([same, tmp_path / "bad.json"], r"holds no verdict of a gate: \d+ validation errors for GateRun$"),
        ([same, tmp_path / "list.json"], "holds no verdict of a gate"),
        ([same, edited], "about different codes: ffffffffffff and ffffffffffff with changes"),
        ([same, edited, third], "about different codes: ffffffffffff and ffffffffffff with changes$"),
        ([same, moved], "the base main of these verdicts is of two revisions: mmmmmmmmmmmm and eeeeeeeeeeee"),
    ):
        with pytest.raises(HarnessError, match=words):
            joining.merge(places)


def test_every_output_has_every_verdict(
    tmp_path: Path, made: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = JoinedPart("H300", None, 4, "no device works")
    both = Joined((JoinedPart("H100", made()), JoinedPart("H200", made("regressed", "H200")), failed))
    console = Console(width=80, force_terminal=False)
    joined.draw(both, console)
    screen = capsys.readouterr().out
    assert all(len(line) <= 80 for line in screen.splitlines())
    assert "\ngate FAILED: exit 1, H200: a case is slower" in screen
    paths = joined.write(both, tmp_path)
    assert [path.name for path in paths] == ["gate.json", "gate.md", "junit.xml"]
    page = (tmp_path / "gate.md").read_text()
    suites = ET.parse(tmp_path / "junit.xml").getroot()
    assert [suite.get("name") for suite in suites] == ["gate, H100", "gate, H200", "gate, H300"]
    assert [suite.get("failures") for suite in suites] == ["0", "1", "0"]
    for text in (screen, page):
        for part in ("H100", "H200", "H300", "-5.00% regressed", "no device works", "regressed there"):
            assert part in text, part
    assert store.parse(Joined, (tmp_path / "gate.json").read_text()) == both
    summary = tmp_path / "summary.md"
    joined.publish(both, {"GITHUB_ACTIONS": "true", report.SUMMARY: str(summary)})
    assert summary.read_text() == page
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("::")[2].split("::")[-1][:5] for line in lines] == ["H200:", "no de"]


def test_nothing_is_told_where_all_is_well(tmp_path: Path, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    both = Joined((JoinedPart("H100", made()), JoinedPart("H200", made(name="H200", cases=made().cases[:1]))))
    joined.draw(both, Console(width=80))
    assert "gate passed: exit 0" in capsys.readouterr().out
    joined.publish(both, {"GITHUB_ACTIONS": "true"})
    assert capsys.readouterr().out == ""
    assert Margin(0.01).value == 0.01


def test_a_working_tree_that_was_edited_between_two_bases_has_no_verdict(made: Made) -> None:
    edited = replace(NOW, digest="e" * 64)
    with pytest.raises(UsageError, match="these verdicts are about different codes"):
        joining.against([made(), made(base="v1.0", now=edited)])


@pytest.mark.parametrize("field", [{"revision": "e" * 40}, {"dirty": True}, {"digest": "e" * 64}])
def test_each_thing_by_which_codes_differ_counts(tmp_path: Path, made: Made, field: dict[str, Any]) -> None:
    """A package that was edited and not committed shows in nothing but `dirty`: the digest is of the ops' own files."""
    folders = written(tmp_path, made(), made(name="H200", now=replace(NOW, **field)))
    with pytest.raises(UsageError, match="about different codes") as caught:
        joining.merge(folders)
    assert caught.value.advice


def test_one_verdict_that_is_named_twice_is_told_with_both_places(tmp_path: Path, made: Made) -> None:
    """Two gates may begin in one second, and their seeds differ then."""
    first, again, other = written(tmp_path, made(), made(), made(seed=8))
    assert len(joining.merge([first, other]).joined) == 2
    with pytest.raises(UsageError, match=f"^{again} is the same verdict as {first}$"):
        joining.merge([first, again])
    joined.write(joining.against([made(), made(base="v1.0")]), tmp_path / "both")
    with pytest.raises(UsageError, match=f"^{tmp_path / 'both'}, main is the same verdict as {first}$"):
        joining.merge([first, tmp_path / "both"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file or directory"),
        ("{", "Expecting property name"),
        ("[]", "'list' object has no attribute 'get'"),
        ('{"stopped": {"exit": 2}}', "'message'"),
        ('{"stopped": 4}', "'int' object is not subscriptable"),
        ('{"stopped": {"exit": 99, "message": ""}}', "99 is not a valid Exit"),
        ('{"joined": [{"label": "\\u00e9"}, 1]}', "\\d+ validation error"),
    ],
)
def test_a_file_that_holds_no_verdict_is_told_with_the_reason(
    tmp_path: Path, made: Made, text: str | None, reason: str
) -> None:
    [good] = written(tmp_path, made())
    file = tmp_path / "odd.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=f"^{file}: holds no verdict of a gate: {reason}") as caught:
        joining.merge([good, file])
    assert "name the gate.json of each gate" in caught.value.advice
