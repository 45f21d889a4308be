"""What every format tells of a gate run: a row a case, worst first; findings, gravest first; the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness import units
from harness.errors import Exit
from harness.gate.records import GRAVITY, CaseEvidence, Code, Finding, GateRun, Severity, Stage, share
from harness.report._columns import Column

STAGES: tuple[Stage, ...] = ("screen", "confirm")
MEANINGS = {
    Exit.OK: ("passed", "no case of ours lost more than its margin"),
    Exit.GATE_FAILED: ("FAILED", "a case is slower, below its floor, or missing"),
    Exit.UNDECIDED: ("undecided", "the pairs don't tell whether a case lost more than its margin"),
    Exit.ENVIRONMENT: ("not valid", "the machine can't give valid numbers, or the runs can't be compared"),
}
_REVISION = 12  # digits: as many as tell revisions apart in any repository


@dataclass(frozen=True, slots=True)
class Row:
    """A case: its evidence, the findings about it, gravest first, and what stands in the table's `verdict`."""

    evidence: CaseEvidence
    findings: tuple[Finding, ...]
    verdict: str

    @property
    def case(self) -> str:
        return self.evidence.case.id

    @property
    def severity(self) -> Severity:
        """Of the gravest finding; 'note' where there is none."""
        return self.findings[0].severity if self.findings else "note"

    @property
    def counts(self) -> dict[Stage, int]:
        """Pairs of each stage that has some."""
        counts = Counter(pair.stage for pair in self.evidence.pairs)
        return {stage: counts[stage] for stage in STAGES if counts[stage]}


def rows(run: GateRun) -> list[Row]:
    """A row a case: those that fail first, then those that are undecided; among equals the largest loss first."""
    found = [_row(evidence, findings(run, evidence.case.id)) for evidence in run.cases]
    return sorted(found, key=_rank)


def findings(run: GateRun, case: str | None = None) -> tuple[Finding, ...]:
    """All findings, or those about one case, the gravest first."""
    chosen = [f for f in run.findings if case is None or (f.case is not None and f.case.id == case)]
    return tuple(sorted(chosen, key=lambda finding: GRAVITY.index(finding.severity)))


def _row(evidence: CaseEvidence, about: tuple[Finding, ...]) -> Row:
    decision = evidence.decision
    # What the rule `slower` says stands there already, as the outcome.
    rules = [f.rule for f in about if f.severity != "note" and (f.rule != "slower" or decision is None)]
    # An 'ok' beside the name of a rule that fails the case would only mislead.
    outcomes = [decision.outcome] if decision and not (rules and decision.outcome in ("ok", "improved")) else []
    words = " + ".join([*outcomes, *dict.fromkeys(rules)]) or "not compared"
    return Row(evidence, about, f"{words} (control)" if evidence.control else words)


def _rank(row: Row) -> tuple[int, float]:
    decision, grave = row.evidence.decision, row.severity != "note"
    estimate = decision.estimate if decision else float("-inf") if grave else float("inf")
    return GRAVITY.index(row.severity), estimate


def columns(table: Sequence[Row]) -> list[Column]:
    """The table as text."""
    decisions = [row.evidence.decision for row in table]
    return [
        Column("case", tuple(row.case for row in table), right=False, code=True),
        Column("change", tuple(units.change(share(d.estimate)) if d else "" for d in decisions)),
        Column("interval", tuple(_interval(d.low, d.high) if d else "" for d in decisions)),
        Column("margin", tuple(units.percent(row.evidence.margin.value, 2) for row in table)),
        Column("pairs", tuple(" + ".join(map(str, row.counts.values())) for row in table)),
        Column("verdict", tuple(row.verdict for row in table), right=False),
    ]


def _interval(low: float, high: float) -> str:
    return f"{units.change(share(low)).removesuffix('%')} to {units.change(share(high))}"


def told(finding: Finding) -> str:
    """A finding as a sentence on one line: what it is about, what was found, what to do."""
    about = f"{finding.case.id}: " if finding.case else ""
    return " ".join(f"{about}{finding.message}{f'; {finding.advice}' if finding.advice else ''}".split())


def outcome(run: GateRun) -> str:
    """How many cases ended in which way, the gravest first: '14 cases: 1 regressed, 13 ok'."""
    counts = Counter(row.verdict for row in rows(run))
    ended = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{plural(len(run.cases), 'case')}" + (f": {ended}" if ended else "")


def verdict(run: GateRun) -> tuple[str, str]:
    """The word for the exit code, and what the code means."""
    word, meaning = MEANINGS[run.exit]
    if run.advisory:
        strict = replace(run, advisory=False).exit
        meaning = f"advisory, so it never fails; else it were exit {strict:d}, {MEANINGS[strict][0]}"
    return word, meaning


def code(side: Code) -> str:
    """A side in words: what it was called, its revision, and whether that is all of it."""
    revision = side.revision[:_REVISION]
    known = f" ({revision})" if revision and revision != side.label else ""
    return f"{side.label}{known}" + (" with uncommitted changes" if side.dirty else "")


def method(run: GateRun) -> str:
    """How it was measured, as a sentence."""
    per_case = [row.counts for row in rows(run)]
    stages = {stage: max((counts.get(stage, 0) for counts in per_case), default=0) for stage in STAGES}
    most = " and ".join(f"{count} to {stage}" for stage, count in stages.items() if count) or "none"
    ways = {
        "paired": f"Pairs of fresh processes, at most {most}, their order drawn with seed {run.seed}",
        "stored": f"Processes of two stored runs, paired by their index: {most}",
    }
    return f"{ways[run.mode]}. Losses no larger than the margin fail {units.percent(run.alpha)} of runs at most."


def plural(count: int, noun: str) -> str:
    """'1 case', '2 cases'."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def limited(items: Iterable[str], most: int, rest: str) -> list[str]:
    """The first of them; where there are more than `most`, the last one says how many more, by `rest` with a {}."""
    every = list(items)
    if len(every) <= most:
        return every
    return [*every[: most - 1], rest.format(len(every) - most + 1)]
