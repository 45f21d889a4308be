"""The gate on two stored runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import gate
from harness.errors import Exit, UsageError
from harness.gate import noise_store, two_codes
from harness.gate.offsets import Block
from harness.gate.records import GateRun, Waiver
from harness.model import Case, Code, Header, Measurement, Run, Scenario, Work

MakeRun = Callable[..., Run]
TUNED, COPY = (Case(op, v, "float32", (("N", 8),), device="cpu") for op, v in (("prelu", "tuned"), ("copy", "memcpy")))


@pytest.fixture
def make_run(header: Header) -> MakeRun:
    """A finished run of both cases in so many processes, each a little different; `slower` slows prelu down."""

    def make(processes: int = 12, slower: float = 1.0, cases: tuple[Case, ...] = (TUNED, COPY), **fields: Any) -> Run:
        scenario = Scenario("s", "t", "prelu", tuple(case.id for case in cases))
        known = {"finished": "2026-01-01T00:01:00+00:00", "scenarios": (scenario,), "git_revision": "a" * 40}
        measurements = [
            Measurement(
                case,
                "ok",
                samples=((slower if case == TUNED else 1.0) * (1e-3 + process % 3 * 1e-6),),
                timer="graph",
                work=Work(4, 4),
                process=process,
            )
            for process in range(processes)
            for case in cases
        ]
        return Run(replace(header, **{**known, **fields}), tuple(measurements))

    return make


def judge(before: Run, after: Run, **options: Any) -> GateRun:
    later = replace(after, header=replace(after.header, started="2026-01-02T00:00:00+00:00"))
    return gate.stored((Path("before"), before), (Path("after"), later), **options)


@pytest.mark.parametrize("folder", ["after", "before", "other/../before"])
def test_a_run_is_not_compared_with_itself_or_a_copy(make_run: MakeRun, folder: str) -> None:
    run = make_run()
    other = run if folder == "after" else replace(run, header=replace(run.header, started="later"))
    with pytest.raises(UsageError, match=f"{folder} is the reference itself: nothing is compared") as caught:
        gate.stored((Path("before"), run), (Path(folder), other), advisory=True)
    assert caught.value.advice == "name two folders, each measured by itself"


def test_the_record_says_how_long_it_took_and_which_loss_passes(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((500.0, 502.0))
    monkeypatch.setattr(two_codes, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    made = judge(make_run(), make_run())
    assert made.seconds == 2.0
    assert {found.margin.asked for found in made.cases} == {0.01}


def test_offsets_are_assumed_for_our_cases_that_both_runs_have(make_run: MakeRun, tmp_path: Path) -> None:
    """Each case that may fail makes it more probable that one does by chance. A control never fails."""
    cases = [Case("prelu", "tuned", "float32", (("N", n),), device="cpu") for n in (8, 9, 10, 11)]
    before, after = make_run(cases=(*cases[:3], COPY)), make_run(cases=(*cases[1:], COPY))
    made = judge(before, after, advisory=True)
    noise = noise_store.load(after.header.machine, tmp_path / "none.json")
    [margin] = {found.margin for found in made.cases if found.pairs and not found.control}
    assert margin == noise.margin(cases[1].id, "graph", 0.01, 2, 0.0)
    assert margin != noise.margin(cases[1].id, "graph", 0.01, 3, 0.0)
    alone = {found.case: found.scenario for found in made.cases if not found.pairs}
    assert alone == {cases[0]: "", cases[3]: "s"}, "what is gone, and what is new"


@pytest.mark.parametrize(
    ("slower", "processes", "code"),
    [
        (1.0, 12, Exit.OK),
        (0.9, 12, Exit.OK),
        (1.05, 12, Exit.GATE_FAILED),
        (1.05, 5, Exit.UNDECIDED),
        (1.0, 5, Exit.OK),
    ],
)
def test_processes_of_the_same_index_are_pairs(make_run: MakeRun, slower: float, processes: int, code: Exit) -> None:
    made = judge(make_run(processes), make_run(processes, slower))
    assert made.exit == code
    assert [len(found.pairs) for found in made.cases] == [processes] * 2
    assert (made.mode, made.base.label, made.now.label, made.seed) == ("stored", "before", "after", None)


@pytest.mark.parametrize(
    ("bad", "slower", "code", "accepted"),
    [
        (1, 1.0, Exit.OK, Exit.OK),
        (1, 2.0, Exit.GATE_FAILED, Exit.GATE_FAILED),
        (4, 1.0, Exit.UNDECIDED, Exit.OK),
        (4, 3.0, Exit.UNDECIDED, Exit.OK),
        (4, 20.0, Exit.GATE_FAILED, Exit.GATE_FAILED),
    ],
)
def test_one_bad_block_of_a_calibration_hides_no_loss_and_a_noisy_machine_never_passes(
    make_run: MakeRun, tmp_path: Path, bad: int, slower: float, code: Exit, accepted: Exit
) -> None:
    """Bad blocks differ by a factor of e^0.7 = 2.01. accepted: how it ends with a margin that allows such noise."""
    before, after = make_run(), make_run(slower=slower)
    file = tmp_path / "noise.json"
    blocks = [*[0.7] * bad, *[0.001] * (5 - bad)]
    noise_store.load(after.header.machine, file).add({(TUNED.id, "graph"): list(map(Block, blocks))})
    made = judge(before, after, noise=file)
    assert made.exit == code
    assert judge(before, after, noise=file, margin=0.45).exit == accepted
    noisy = [finding for finding in made.findings if finding.message.startswith("this machine is too noisy")]
    assert [finding.case for finding in noisy] == ([TUNED] if code == Exit.UNDECIDED else [])


def test_single_processes_decide_nothing(make_run: MakeRun) -> None:
    made = judge(make_run(1), make_run(1))
    assert made.exit == Exit.UNDECIDED
    assert {finding.message for finding in made.findings} == {"2 cases have too few processes to decide (pairs: 1)"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"finished": None}, "the run isn't finished"),
        ({"git_dirty": True}, "the run was measured with changes that weren't committed"),
        ({"plan": "8" * 64}, "the same cases, timed or described otherwise"),
        ({"plan": "8" * 64, "cases": (TUNED,)}, "timing differ: only in the reference: copy/memcpy/float32/N8|"),
        (
            {"plan": "8" * 64, "cases": (replace(TUNED, dtype="float64"),)},
            "only in the reference: prelu/tuned/float32/N8 and 1 more; only in the run: prelu/tuned/float64/N8|",
        ),
    ],
)
def test_runs_that_differ_are_refused_unless_advisory(make_run: MakeRun, fields: dict[str, Any], words: str) -> None:
    refused = judge(make_run(), make_run(**fields))
    assert refused.exit == Exit.ENVIRONMENT
    assert any(words in f"{text}|" for text in refused.refused)
    assert (refused.cases, refused.findings) == ((), ()), "what isn't compared is not judged"
    allowed = judge(make_run(), make_run(slower=1.05, **fields), advisory=True)
    assert allowed.exit == Exit.OK
    assert allowed.refused == ()
    assert any(words[4:] in f"{finding.message}|" for finding in allowed.findings if finding.severity == "note")
    assert any(finding.severity == "failure" for finding in allowed.findings)


@pytest.mark.parametrize("fields", [{"finished": None}, {"git_dirty": True}])
def test_a_reference_is_refused_for_the_same_reasons(make_run: MakeRun, fields: dict[str, Any]) -> None:
    [found] = judge(make_run(**fields), make_run()).refused
    assert found.startswith("the reference ")


def test_a_run_whose_results_can_not_all_be_read_is_refused(make_run: MakeRun) -> None:
    run = replace(make_run(), losses=("results.jsonl, line 7: no JSON",))
    made = judge(make_run(), run)
    assert made.exit == Exit.ENVIRONMENT
    assert "the run has results that can't be read: results.jsonl, line 7: no JSON" in made.refused


def test_other_work_under_the_same_name_is_undecided_unless_it_is_accepted(make_run: MakeRun) -> None:
    before = make_run()
    leaner = tuple(replace(m, work=Work(4, 1)) if m.case == TUNED else m for m in before.measurements)
    made = judge(before, replace(before, measurements=leaner))
    assert (made.exit, made.refused) == (Exit.UNDECIDED, ())
    accepted = judge(before, replace(before, measurements=leaner), accept=("work",))
    assert (accepted.exit, accepted.accept) == (Exit.OK, ("work",))
    assert {f.severity for f in accepted.findings if f.rule == "work"} == {"accepted"}
    [note] = [finding for finding in made.findings if finding.rule == "work"]
    assert note.message.endswith(f"{TUNED.id} (bytes written)")
    found = {found.case.variant: found.decision.estimate for found in made.cases if found.decision}
    assert found == {"tuned": 0, "memcpy": 0}


def test_another_version_of_the_harness_is_a_note(make_run: MakeRun) -> None:
    run = make_run()
    newer = replace(run, header=replace(run.header, started="later", harness_version="0.2.0"))
    older = replace(run, header=replace(run.header, harness_version="0.1.0"))
    made = judge(older, newer)
    assert (made.exit, made.refused) == (Exit.OK, ())
    assert ("note", "The harness differs: 0.1.0 -> 0.2.0") in [(f.severity, f.message) for f in made.findings]


@pytest.mark.parametrize(
    ("roles", "controls"),
    [
        ((), {"memcpy"}),  # the names tell
        ((("tuned", "ours"), ("memcpy", "ours")), set()),
        ((("tuned", "control"), ("memcpy", "ours")), {"tuned"}),
    ],
)
def test_a_control_is_told_by_its_role(
    make_run: MakeRun, roles: tuple[tuple[str, str], ...], controls: set[str]
) -> None:
    scenarios = tuple(Scenario(case.op, "t", case.op, (case.id,), roles=roles) for case in (TUNED, COPY))
    run = make_run(scenarios=scenarios)
    assert {found.case.variant for found in judge(run, run).cases if found.control} == controls


def test_the_digest_of_a_run_is_over_the_code_of_its_cases(make_run: MakeRun) -> None:
    def of_code(digest: str) -> Run:
        run = make_run()
        coded = tuple(replace(m, code=Code(m.case.op, digest)) for m in run.measurements)
        return replace(run, measurements=coded)

    made = judge(of_code("a"), of_code("b"))
    assert len(made.base.digest) == 64
    assert made.base.digest != made.now.digest == judge(make_run(), of_code("b")).now.digest
    assert judge(make_run(), make_run()).base.digest == ""


def test_another_machine_is_refused(make_run: MakeRun, header: Header) -> None:
    other = make_run(machine=replace(header.machine, fingerprint="beef"))
    made = judge(make_run(), other)
    assert made.exit == Exit.ENVIRONMENT
    assert made.refused[0].startswith("the machines differ")


def test_a_case_that_crashed_in_some_process_fails(make_run: MakeRun) -> None:
    after = make_run()
    broken = replace(after.measurements[0], status="crashed", error="killed")
    made = judge(make_run(), replace(after, measurements=(broken, *after.measurements[1:])))
    assert made.exit == Exit.GATE_FAILED
    assert "ended as crashed in 1 of 12 processes: killed" in made.findings[0].message


def test_a_waiver_covers_our_case_and_no_control(make_run: MakeRun) -> None:
    """Otherwise a waiver of all cases would hide that the machine changed, which the control tells."""
    waiver = Waiver(("*",), 0.5, "r", "o", "2999-12-31", "w:1")
    made = judge(make_run(12), make_run(12, 1.5), waivers=(waiver,))
    waived = {found.control: found.margin.waived for found in made.cases}
    assert waived == {True: 0.0, False: 0.5}
    assert [finding.severity for finding in made.findings if finding.rule == "waivers"] == ["accepted"]


def test_a_waiver_that_has_expired_covers_nothing(make_run: MakeRun) -> None:
    waiver = Waiver(("*",), 0.5, "r", "o", "2026-01-01", "w:1")
    made = judge(make_run(12), make_run(12, 1.5), waivers=(waiver,), command=("harness", "gate"))
    assert (made.exit, made.waivers, made.command) == (Exit.GATE_FAILED, (waiver,), ("harness", "gate"))
    [note] = [finding for finding in made.findings if finding.rule == "waivers"]
    assert (note.severity, "expired on 2026-01-01" in note.message) == ("note", True)
