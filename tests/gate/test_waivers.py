"""Waivers: the file, which cases they cover, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import InputError
from harness.gate import Evidence, findings, waiver_file
from harness.gate.records import CaseEvidence, Decision, Margin, Waiver, change
from harness.gate.rules import waivers
from harness.gate.waiving import waived, waiver_of
from harness.model import Case

TODAY = "2026-11-25"
GOOD = """\
waivers:
  - cases: ["prelu/tuned/*", "softmax/*"]
    largest_loss: 3%
    reason: the new mask
      is checked
    owner: alice
    until: 2026-12-31
  - {cases: copy/*, largest_loss: 0.02, reason: r, owner: bob, until: "2026-11-25"}
"""


def waiver(
    cases: str = "prelu/*", loss: float = 0.03, until: str = "2026-12-31", line: int = 2, new: bool | None = None
) -> Waiver:
    return Waiver((cases,), loss, "the new mask", "alice", until, f"waivers.yaml:{line}", new)


def judged(*cases: CaseEvidence, of: tuple[Waiver, ...]) -> list[tuple[str, str]]:
    found = waivers.judge(Evidence("main", (), cases, waivers=of, today=TODAY))
    return [(finding.severity, finding.message) for finding in found]


@pytest.fixture
def lost(evidence: Callable[..., CaseEvidence]) -> Callable[..., CaseEvidence]:
    """A case that lost a share, with bounds 0.1% around it, decided with a waiver of 3%."""

    def make(loss: float, outcome: str = "ok", waived: float = 0.03, **fields: object) -> CaseEvidence:
        mean = change(-loss)
        decision = Decision(outcome, "confirm", mean, mean - 0.001, mean + 0.001, 10)
        return evidence(decision=decision, margin=Margin(0.01, 0.001, 0.002, waived=waived), **fields)

    return make


# --- the file ---


def test_a_file_of_waivers(tmp_path: Path) -> None:
    file = tmp_path / "waivers.yaml"
    file.write_text(GOOD)
    first, second = waiver_file.load(file, "waivers.yaml")
    assert first == Waiver(
        ("prelu/tuned/*", "softmax/*"), 0.03, "the new mask is checked", "alice", "2026-12-31", "waivers.yaml:2"
    )
    assert (second.cases, second.largest_loss, second.place) == (("copy/*",), 0.02, "waivers.yaml:8")
    assert waiver_file.load(file)[0].place == f"{file}:2"
    file.write_text("waivers: []\n")
    assert waiver_file.load(file) == ()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("largest_loss: 3%", "largest_loss: 300%", ":3: waivers[0].largest_loss: must be a share between 0 and 1"),
        ("largest_loss: 3%", "largest_loss: 0", ":3: waivers[0].largest_loss: must be a share between 0 and 1"),
        ("largest_loss: 3%", "largest_loss: yes", ":3: waivers[0].largest_loss: must be a share"),
        ("    owner: alice\n", "", ":2: waivers[0].owner: is missing (who answers for it)"),
        ("owner: alice", "owner: ''", ":6: waivers[0].owner: must not be empty, found ''"),
        ("    until: 2026-12-31\n", "", ":2: waivers[0].until: is missing"),
        ("until: 2026-12-31", "until: soon", ":7: waivers[0].until: must be a day, such as 2027-03-31, found 'soon'"),
        ("until: 2026-12-31", "until: 2026", ":7: waivers[0].until: must be a day"),
        ("until: 2026-12-31", "until: 2026-13-31", ":7: waivers[0].until: "),
        ("owner: alice", "owned: alice", ":6: waivers[0].owned: unknown key 'owned' (did you mean 'owner'?)"),
        ('["prelu/tuned/*", "softmax/*"]', "[]", ":2: waivers[0].cases: must not be empty"),
        ("waivers:", "waiver:", ":1: waivers: is missing"),
        ("waivers:\n", "", ":1: holds a list"),
        ("reason: the", "reason: [the", "isn't valid YAML"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    file = tmp_path / "waivers.yaml"
    file.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        waiver_file.load(file)
    text = "\n".join(caught.value.told())
    assert told in text
    assert text.startswith(str(file))
    assert "scenario" not in text.removeprefix(str(file))


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "waivers.yaml"
    file.write_text(GOOD.replace("3%", "-1").replace("owner: bob", "owner: []"))
    with pytest.raises(InputError) as caught:
        waiver_file.load(file)
    assert len(caught.value.problems) == 2


# --- which cases are covered ---


def test_the_largest_loss_of_the_waivers_that_hold_today_covers_a_case() -> None:
    every = (waiver(loss=0.02), waiver(loss=0.03, line=5), waiver(loss=0.5, until="2026-11-24"), waiver("copy/*", 0.9))
    assert waiver_of(every, "prelu/tuned/float32/N8", TODAY) == every[1]
    assert waived(every, ["prelu/a", "copy/b", "other"], TODAY) == {"prelu/a": 0.03, "copy/b": 0.9}
    assert waiver(until=TODAY).covers("prelu/a", TODAY)  # the last day is a day
    either = Waiver(("prelu/*", "softmax/*"), 0.03, "", "", "2026-12-31", "")
    assert [either.names(case) for case in ("prelu/a", "softmax/a", "copy/a")] == [True, True, False]


# --- what is told ---


def test_a_case_that_passes_by_its_waiver_is_told_as_accepted_with_all_that_the_file_says(
    lost: Callable[..., CaseEvidence],
) -> None:
    [(severity, message)] = judged(lost(0.02), of=(waiver(),))
    assert severity == "accepted"
    for part in ("-2.00%", "up to 3.00%", "until 2026-12-31", "the new mask", "alice", "waivers.yaml:2"):
        assert part in message


@pytest.mark.parametrize("outcome", ["regressed", "inconclusive"])
def test_a_case_that_fails_or_is_undecided_beyond_its_waiver_is_not_accepted(
    lost: Callable[..., CaseEvidence], outcome: str
) -> None:
    assert judged(lost(0.04, outcome), of=(waiver(),)) == []


def test_waivers_that_do_nothing_are_notes(lost: Callable[..., CaseEvidence]) -> None:
    for of, words in (
        (waiver(until="2026-11-24"), "expired on 2026-11-24, and covers nothing"),
        (waiver("softmax/*"), "fits no case of this run"),
        (waiver(), "isn't needed against main"),
    ):
        [(severity, message)] = judged(lost(0.0), of=(of,))
        assert severity == "note"
        assert message.startswith("waivers.yaml:2: the waiver of ")
        assert message.endswith(words)


def test_a_waiver_whose_case_was_not_compared_is_not_called_needless(lost: Callable[..., CaseEvidence]) -> None:
    found = replace(lost(0.0), decision=None)
    [(severity, message)] = judged(found, of=(waiver(),))
    assert (severity, message.endswith("has no case that was compared with main")) == ("note", True)


@pytest.mark.parametrize("loss", [0.02, 0.0])
def test_a_waiver_that_is_new_since_the_base_is_told_whether_it_is_needed_or_not(
    lost: Callable[..., CaseEvidence], loss: float
) -> None:
    """The commit that loses may allow its own loss."""
    found = judged(lost(loss), of=(waiver(new=True),))
    told = "waivers.yaml:2: the waiver of prelu/* (alice) is new since main, which doesn't allow a loss of up to 3.00%"
    assert ("note", f"{told} until 2026-12-31") in found
    assert [message.endswith("(alice, waivers.yaml:2, new since main)") for severity, message in found] == (
        [True, False] if loss else [False, False]
    )
    assert ("note", f"{told} until 2026-12-31") in judged(of=(waiver(new=True),)), "though nothing was measured"
    for old in (False, None):
        assert "new since" not in str(judged(lost(loss), of=(waiver(new=old),)))
    assert "new since" not in str(judged(lost(loss), of=(waiver(new=True, until="2026-11-24"),)))


def test_where_nobody_knows_which_waivers_are_new_a_note_says_so(lost: Callable[..., CaseEvidence]) -> None:
    evidence = Evidence("main", (), (lost(0.02),), waivers=(waiver(),), unsure="can't be read", today=TODAY)
    assert [(f.severity, f.message) for f in waivers.judge(evidence)][1:] == [("note", "can't be read")]


def test_a_waiver_fits_a_run_if_it_fits_one_of_its_cases(
    lost: Callable[..., CaseEvidence], case: Callable[..., Case]
) -> None:
    other = lost(0.0, of=case("tuned", op="copy"))
    [(_, message)] = judged(lost(0.0), other, of=(waiver(),))
    assert message.endswith("isn't needed against main")


def test_nothing_is_said_of_what_is_needed_where_nothing_was_measured() -> None:
    assert judged(of=(waiver(),)) == []
    [(severity, message)] = judged(of=(waiver(until="2026-11-24"),))
    assert (severity, "expired" in message) == ("note", True)
    assert judged(of=(waiver(until=TODAY),)) == []


def test_a_waiver_has_not_expired_on_its_last_day(lost: Callable[..., CaseEvidence]) -> None:
    [(_, message)] = judged(lost(0.0), of=(waiver(until=TODAY),))
    assert message.endswith("isn't needed against main")


def test_a_waiver_of_a_control_covers_nothing(lost: Callable[..., CaseEvidence], case: Callable[..., Case]) -> None:
    control = lost(0.02, of=case("memcpy", op="copy"), control=True)
    [(severity, message)] = judged(control, of=(waiver("copy/*"),))
    assert severity == "note"
    assert message.endswith("isn't needed against main")


def test_a_wrong_result_fails_whatever_is_waived(
    lost: Callable[..., CaseEvidence], measured: Callable[..., object]
) -> None:
    wrong = (measured(status="wrong_result", error="0.5 instead of 1"),) * 4
    of_case = lost(0.02, now=wrong)
    evidence = Evidence("main", (), (of_case,), waivers=(waiver("*", 0.9),), today=TODAY)
    found = {finding.rule: finding.severity for finding in findings(evidence)}
    assert found["wrong"] == "failure"


def test_the_exit_code_follows_the_times_not_the_dates(lost: Callable[..., CaseEvidence]) -> None:
    """An expired waiver covers nothing, so its case fails by its own margin; by itself the date fails nothing."""
    gone = waiver(until="2026-11-24")
    for case_, severities in (
        (lost(0.02, "regressed", waived=0.0), ["failure", "note"]),
        (lost(0.0, waived=0.0), ["note"]),
    ):
        evidence = Evidence("main", (), (case_,), waivers=(gone,), today=TODAY)
        told = [f.severity for f in findings(evidence) if f.rule in ("slower", "waivers")]
        assert told == severities
