"""`harness gate REF RUN`: the same decision from two stored runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.differences import other_harness, other_setup
from harness.errors import UsageError
from harness.gate import deciding, noise_store
from harness.gate.case_lists import is_control, scenario_of
from harness.gate.evidence import Evidence
from harness.gate.pairing import pair_of
from harness.gate.records import CaseEvidence, Finding, GateRun, Pair, Revision, Waiver
from harness.gate.rulebook import findings
from harness.gate.two_codes import Start
from harness.gate.waiving import waived
from harness.model import Result, Run


def stored(  # noqa: PLR0913 - the command line passes all of it, by name
    reference: tuple[Path, Run],
    run: tuple[Path, Run],
    *,
    margin: float = 0.01,
    noise: Path | None = None,
    advisory: bool = False,
    accept: tuple[str, ...] = (),
    command: tuple[str, ...] = (),
    waivers: tuple[Waiver, ...] = (),
) -> GateRun:
    """Compare two runs, each given with its folder. Processes of the same index make pairs.

    If the runs differ in more than code, they aren't compared; with `advisory` they are, and the differences are notes.
    Raises UsageError for a run that is compared with itself.
    """
    start = Start.now()
    (before_at, before), (after_at, after) = reference, run
    if before_at.resolve() == after_at.resolve() or _is_same(before, after):
        raise UsageError(
            f"{after_at} is the reference itself: nothing is compared", "name two folders, each measured by itself"
        )
    differences = tuple(_differences(before, after))
    # Another version of the harness is a part of what is judged, where its own kernels are: no reason to refuse.
    noted = (*differences, *other_harness(before, after))
    refused = () if advisory else differences
    every = (result.case for result in (*after.results, *before.results))
    ours = (case.id for case in every if not is_control(case, (*after.header.scenarios, *before.header.scenarios)))
    known = waived(waivers, ours, start.day)
    cases = () if refused else tuple(_cases(before, after, margin, noise, known))
    scenarios = after.header.scenarios
    old = before.header.scenarios
    evidence = Evidence(
        str(before_at),
        scenarios,
        cases,
        after.limits,
        asked=scenarios,
        before=old,
        waivers=waivers,
        today=start.day,
    )
    notes = tuple(Finding("environment", "note", f"{text[0].upper()}{text[1:]}") for text in noted)
    return GateRun(
        mode="stored",
        base=_revision(before_at, before),
        now=_revision(after_at, after),
        machine=after.header.machine,
        scenarios=scenarios,
        cases=cases,
        findings=() if refused else (*findings(evidence, accept), *notes),
        seed=None,
        alpha=deciding.ALPHA,
        started=start.text,
        seconds=Start.now().seconds - start.seconds,
        command=command,
        advisory=advisory,
        refused=refused,
        accept=accept,
        waivers=waivers,
    )


def _is_same(before: Run, after: Run) -> bool:
    """Whether the runs are the same run, or one is a copy: a machine measures one run at a time."""
    old, new = before.header, after.header
    return (old.started, old.machine.fingerprint) == (new.started, new.machine.fingerprint)


def _differences(before: Run, after: Run) -> Iterator[str]:
    """Why a change between the two runs need not be a change of the code, one sentence each."""
    yield from other_setup(before, after)
    for name, run in (("the reference", before), ("the run", after)):
        if not run.header.finished:
            yield f"{name} isn't finished: finish it with --resume"
        if run.header.git_dirty:
            yield f"{name} was measured with changes that weren't committed"
        if run.losses:
            yield f"{name} has results that can't be read: {run.losses[0]}"
    if before.header.differs_from(after.header):
        yield f"the scenarios, cases or their timing differ: {_plans(before, after)}"


def _plans(before: Run, after: Run) -> str:
    old, new = (dict.fromkeys(c for s in run.header.scenarios for c in s.cases) for run in (before, after))
    gone, added = [c for c in old if c not in new], [c for c in new if c not in old]
    sides = {"the reference": gone, "the run": added}
    texts = [f"only in {where}: {cases[0]}{_more(cases)}" for where, cases in sides.items() if cases]
    return "; ".join(texts) or "the same cases, timed or described otherwise"


def _more(cases: list[str]) -> str:
    return f" and {len(cases) - 1} more" if len(cases) > 1 else ""


def _cases(
    before: Run, after: Run, asked: float, file: Path | None, known: Mapping[str, float]
) -> Iterator[CaseEvidence]:
    noise = noise_store.load(after.header.machine, file)
    old, new = ({result.case.id: result for result in run.results} for run in (before, after))
    timers = {key: noise_store.timer(result.measurements) for key, result in (old | new).items()}
    scenarios = (*after.header.scenarios, *before.header.scenarios)
    family = sum(not is_control(old[key].case, scenarios) for key in old if key in new)
    margins = {key: noise.margin(key, timer, asked, family, known.get(key, 0.0)) for key, timer in timers.items()}
    pairs = {key: tuple(_pairs(old[key], new[key])) for key in old if key in new}
    decisions = deciding.stored({key: [p.change for p in found] for key, found in pairs.items()}, margins)
    names = scenario_of(after.header.scenarios)
    for key, result in (new | old).items():
        yield CaseEvidence(
            case=result.case,
            scenario=names.get(key, ""),
            base=old[key].measurements if key in old else (),
            now=new[key].measurements if key in new else (),
            pairs=pairs.get(key, ()),
            margin=margins[key],
            control=is_control(result.case, scenarios),
            decision=decisions.get(key),
        )


def _pairs(before: Result, after: Result) -> Iterator[Pair]:
    later = {m.process: m for m in after.measurements}
    for m in before.measurements:
        if m.process in later and (pair := pair_of(m, later[m.process], "base", "screen")):
            yield pair


def _revision(folder: Path, run: Run) -> Revision:
    """The code that measured a run. Its hash is over the hashes of the cases' code; empty if the run has none."""
    codes = sorted({f"{m.code.op} {m.code.digest}" for m in run.measurements if m.code})
    digest = hashlib.sha256("\n".join(codes).encode()).hexdigest() if codes else ""
    return Revision(str(folder), run.header.git_revision, run.header.git_dirty, digest)
