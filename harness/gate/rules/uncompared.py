"""Rule: a gate that passes has compared times. What the base couldn't measure, or too rarely, isn't compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.gate.ended import complaint, is_worse, is_wrong, needs_other, never_timed
from harness.gate.evidence import Evidence
from harness.gate.looks import CONFIRM_PAIRS
from harness.gate.records import CaseEvidence, Finding

ACCEPT = "cases aren't compared, since the base couldn't measure them or too few pairs could"
_ENOUGH = f"run the gate again; for stored runs, measure each with --repeat {CONFIRM_PAIRS} or more"
_ACCEPT = "if that is known: --accept uncompared"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Undecided findings for cases without a decision, and for a gate that compared no case of ours."""
    if evidence.same:
        text = "nothing was measured, since both sides used the same code"
        yield Finding("uncompared", "note", text, "measure it all the same: --always")
        return
    few = [found for found in evidence.cases if _is_short(found)]
    together = few if len(few) > 1 else []
    findings = [found for case in evidence.cases if case not in together if (found := _judge(case, evidence.base))]
    findings += [_all_too_few(together)] if together else []
    yield from findings
    # Where a case is worse, the rule 'wrong' says why it has no times, and nobody can accept that.
    if any(f.severity == "undecided" for f in findings) or any(
        is_worse(f.base, f.now) for f in evidence.cases if f.base
    ):
        return
    if not any(found.decision and not found.control and evidence.is_ours(found.case) for found in evidence.cases):
        yield _none(evidence)


def _none(evidence: Evidence) -> Finding:
    """The finding about a gate that compared no case of ours: with what to do, by why there was none."""
    count = len(evidence.cases)
    message = f"no case of our code was compared ({count} case{'' if count == 1 else 's'} in all)"
    advice = f"see that both sides can measure the scenario on this device, which 'harness run' shows; {_ACCEPT}"
    if not any(found.base and found.now for found in evidence.cases):
        if any(found.now for found in evidence.cases):
            message += f": {evidence.base} has none of the cases that there are now"
            advice = (
                "if they are new, they are compared from the next change on; let this one pass: --accept uncompared"
            )
        elif evidence.cases:
            message += f": all that {evidence.base} has are gone"
            advice = "bring back a case; if all should go, so should the command that gates them"
    return Finding("uncompared", "undecided", message, advice)


def _judge(found: CaseEvidence, base: str) -> Finding | None:
    before, after = complaint(found.base), complaint(found.now)
    if not found.base:
        text = f"new: {base} doesn't have it" + (f"; {after}" if after else "")
        return None if is_wrong(found.now) else Finding("uncompared", "note", text, "", found.case)
    if not found.now or found.decision is not None or is_worse(found.base, found.now):
        return None  # where it is worse, the rule 'wrong' fails it
    if not never_timed(found.base):
        return _too_few(found, base, before, after)
    if never_timed(found.now):
        text, needs = f"not compared: {after}; in {base} it {before}", (*found.base, *found.now)
    else:
        text, needs = f"not compared: ok now; in {base} it {before}", found.base
    if needs_other(needs):  # the machine or its software can't do it, so it says nothing about the code
        return Finding("uncompared", "note", text, "", found.case)
    prepared = "a package, or what is built, each side gets by --prepare 'pip install --no-deps --target {site} {root}'"
    advice = f"name a base that can measure it; {prepared}; {_ACCEPT}"
    return Finding("uncompared", "undecided", text, advice, found.case)


def _is_short(found: CaseEvidence) -> bool:
    """Whether a case lacks nothing but processes: each that there is has a time."""
    fine = found.base and found.now and not complaint(found.base) and not complaint(found.now)
    return bool(fine) and found.decision is None


def _all_too_few(cases: Sequence[CaseEvidence]) -> Finding:
    """One finding about all cases that lack nothing but processes, since the reason is how the runs were made."""
    pairs = sorted({len(found.pairs) for found in cases})
    counts = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    message = f"{len(cases)} cases have too few processes to decide (pairs: {counts})"
    return Finding("uncompared", "undecided", message, _ENOUGH)


def _too_few(found: CaseEvidence, base: str, before: str, after: str) -> Finding:
    """The finding about a case that some processes of both sides could measure, but too few pairs."""
    why = "".join(f"; {where} it {text}" for where, text in ((f"in {base}", before), ("now", after)) if text)
    message = f"too few processes to decide (pairs: {len(found.pairs)}){why}"
    return Finding("uncompared", "undecided", message, _ENOUGH, found.case)
