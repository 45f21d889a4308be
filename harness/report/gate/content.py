"""What every format shows of a gate run: a row for each case, worst first; findings, gravest first; how it ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness import units
from harness.errors import Exit
from harness.gate.offsets import ASSUMED
from harness.gate.records import GRAVITY, CaseEvidence, Decision, Finding, GateRun, Revision, Severity, Stage, share
from harness.gate.waiving import waiver_of
from harness.report.tree import Cell, Column, Kind, Range, Table, text_column
from harness.units import plural

STAGES: tuple[Stage, ...] = ("screen", "confirm")
MEANINGS = {
    Exit.OK: ("passed", "no case of ours lost more than its margin"),
    Exit.GATE_FAILED: ("FAILED", "a case is slower, wrong, below its floor, or missing, or the scenario asks for less"),
    Exit.UNDECIDED: ("undecided", "there isn't enough evidence that no case lost more than its margin"),
    Exit.ENVIRONMENT: ("not valid", "the machine can't give valid numbers, or the runs can't be compared"),
}
KINDS: dict[Severity, Kind] = {
    "environment": "environment", "failure": "failure", "undecided": "undecided", "accepted": "undecided", "note": "",
}  # fmt: skip
WAIVERS = "waivers"
"""The rule whose notes are told wherever findings are, since somebody has to change a line of a file."""
_REVISION = 12  # digits: enough to tell revisions apart in any repository


@dataclass(frozen=True, slots=True)
class CaseRow:
    """A case: its evidence, the findings about it, gravest first, and what stands in the table's `verdict`."""

    evidence: CaseEvidence
    findings: tuple[Finding, ...]
    verdict: str

    @property
    def case(self) -> str:
        return self.evidence.case.id

    @property
    def severity(self) -> Severity:
        """The severity of the gravest finding; 'note' where there is none."""
        return self.findings[0].severity if self.findings else "note"

    @property
    def counts(self) -> dict[Stage, int]:
        """How many pairs each stage has, without stages that have none."""
        counts = Counter(pair.stage for pair in self.evidence.pairs)
        return {stage: counts[stage] for stage in STAGES if counts[stage]}


def rows(run: GateRun) -> list[CaseRow]:
    """A row a case: failures first, then undecided cases; among equals the largest loss first."""
    about: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings(run):
        if finding.case:
            about[finding.case.id].append(finding)
    found = [_row(evidence, tuple(about[evidence.case.id])) for evidence in run.cases]
    return sorted(found, key=_rank)


def findings(run: GateRun) -> tuple[Finding, ...]:
    """All findings, the gravest first."""
    return tuple(sorted(run.findings, key=lambda finding: GRAVITY.index(finding.severity)))


def _row(evidence: CaseEvidence, about: tuple[Finding, ...]) -> CaseRow:
    decision = evidence.decision
    # The outcome already says what the rule `slower` found.
    rules = [f.rule for f in about if KINDS[f.severity] and (f.rule != "slower" or decision is None)]
    accepted = {f.rule for f in about if f.severity == "accepted"}
    names = [_called(rule, rule in accepted) for rule in dict.fromkeys(rules)]
    # An 'ok' beside the name of a rule that fails the case would mislead.
    outcomes = [decision.outcome] if decision and not (rules and decision.outcome in ("ok", "improved")) else []
    words = " + ".join([*outcomes, *names]) or "not compared"
    return CaseRow(evidence, about, f"{words} (control)" if evidence.control else words)


def _called(rule: str, accepted: bool) -> str:
    if rule == WAIVERS:
        return "waived"
    return f"{rule} (accepted)" if accepted else rule


def _rank(row: CaseRow) -> tuple[int, float]:
    decision, grave = row.evidence.decision, row.severity != "note"
    estimate = decision.estimate if decision else float("-inf") if grave else float("inf")
    return GRAVITY.index(row.severity), estimate


def table(found: Sequence[CaseRow]) -> Table:
    """The rows as a table."""
    decisions = [row.evidence.decision for row in found]
    columns = (
        text_column("case", (row.case for row in found), code=True),
        Column("change", tuple(share(d.estimate) if d else "" for d in decisions), units.CHANGE),
        Column("interval", tuple(map(_interval, decisions)), units.CHANGE),
        Column("margin", tuple(row.evidence.margin.value for row in found), units.FINE_SHARE),
        Column("pairs", tuple(" + ".join(map(str, row.counts.values())) for row in found)),
        text_column("verdict", (row.verdict for row in found)),
    )
    return Table(columns, kinds=tuple(map(_kind, found)))


def _interval(decision: Decision | None) -> Cell:
    return Range(share(decision.low), share(decision.high)) if decision else ""


def _kind(row: CaseRow) -> Kind:
    return KINDS[row.severity] or ("good" if row.verdict == "improved" else "")


def told(finding: Finding) -> str:
    """A finding as a sentence on one line: what it is about, what was found, what to do."""
    about = ("accepted: " if finding.severity == "accepted" else "") + (f"{finding.case.id}: " if finding.case else "")
    return " ".join(f"{about}{finding.message}{f'; {finding.advice}' if finding.advice else ''}".split())


def outcome(run: GateRun) -> str:
    """How many cases ended in which way, the gravest first: '14 cases: 1 regressed, 13 ok'."""
    counts = Counter(row.verdict for row in rows(run))
    ended = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{plural(len(run.cases), 'case')}" + (f": {ended}" if ended else "")


def ending(run: GateRun) -> tuple[str, str]:
    """The word for the exit code, and what the code means."""
    word, meaning = MEANINGS[run.exit]
    if run.exit == Exit.OK and nothing_measured(run):
        meaning = "both sides use the same code, so nothing was measured"
    if run.advisory:
        strict = replace(run, advisory=False).exit
        meaning = f"with --advisory it never fails; without, the exit code would be {strict:d}, {MEANINGS[strict][0]}"
    return word, f"{meaning}{accepted(run)}{waived(run)}"


def nothing_measured(run: GateRun) -> bool:
    """Whether both sides use the same code, and so nothing was measured."""
    return run.used is not None and run.used.same and not run.cases


def accepted(run: GateRun) -> str:
    """What --accept lets pass, as the end of a sentence: '; accepted: missing (2 findings), work (none)'."""
    counts = Counter(finding.rule for finding in run.findings if finding.severity == "accepted")
    told = [f"{rule} ({plural(counts[rule], 'finding') if counts[rule] else 'none found'})" for rule in run.accept]
    return f"; accepted with --accept: {', '.join(told)}" if told else ""


def waived(run: GateRun) -> str:
    """What waivers let pass, as the end of a sentence: '; waived: 2 cases, 1 by a waiver that is new since main'."""
    passed = [f.case for f in run.findings if f.rule == WAIVERS and f.severity == "accepted" and f.case]
    by = [waiver_of(run.waivers, case.id, run.started[:10]) for case in passed]
    new = sum(bool(waiver and waiver.new) for waiver in by)
    more = f", {new} by a waiver that is new since {run.base.label}" if new else ""
    return f"; waived: {plural(len(passed), 'case')}{more}" if passed else ""


def waivers(run: GateRun) -> str:
    """Where the waivers stand, until when they hold, and which are new since the base; '' where there are none."""
    return ", ".join(
        f"{each.place} until {each.until}{f' (new since {run.base.label})' if each.new else ''}" for each in run.waivers
    )


def revision(side: Revision) -> str:
    """A side in words: what it was called, its revision, and whether it has changes that aren't in that revision."""
    known = side.revision[:_REVISION]
    shown = f" ({known})" if known and known != side.label else ""
    return f"{side.label}{shown}" + (" with uncommitted changes" if side.dirty else "")


def method(run: GateRun) -> str:
    """How it was measured, as a sentence."""
    if nothing_measured(run):
        return "Both sides used the same files, each its own, so there was nothing to compare."
    per_case = [row.counts for row in rows(run)]
    stages = {stage: max((counts.get(stage, 0) for counts in per_case), default=0) for stage in STAGES}
    most = " and ".join(f"{count} to {stage}" for stage, count in stages.items() if count) or "none"
    ways = {
        "paired": f"Pairs of fresh processes, at most {most}, their order drawn with seed {run.seed}",
        "stored": f"Processes of two stored runs, paired by their index: {most}",
    }
    if not any(found.decision for found in run.cases):
        return f"{ways[run.mode]}."
    return f"{ways[run.mode]}. {_errors(run)}"


def _errors(run: GateRun) -> str:
    """How often identical code fails, and under which condition."""
    known = [found for found in run.cases if found.decision and not found.control]
    rest = sum(found.margin.noise is None for found in known)
    measured = "as they were calibrated on this machine"
    assumed = f"with a standard deviation of {units.percent(ASSUMED.scale, 2)}, which is assumed"
    mixed = f"{measured}, or {assumed} for {plural(rest, 'case')}"
    offsets = measured if not rest else assumed if rest == len(known) else mixed
    cases = "this case" if len(known) == 1 else f"these {plural(len(known), 'case')}"
    return (
        f"Identical code fails in {units.percent(run.alpha)} of runs at most, if offsets, which all pairs of a "
        f"run share, are normal, {offsets}; by offsets alone in {units.percent(run.chance, 2)} of runs of {cases}. "
        "So does a loss of exactly the margin, if pairs share nothing."
    )


def limited(items: Iterable[str], most: int, rest: str) -> list[str]:
    """The first items; where there are more than `most`, the last one says how many more, by `rest` with a {}."""
    every = list(items)
    if len(every) <= most:
        return every
    return [*every[: most - 1], rest.format(len(every) - most + 1)]
