"""The rows of reports/rows.yaml: what each lacks, and what the committed runs answer to each of its figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from committed import CHOSEN, COUNTED, ROOT, RUNS, SKIPPED, read_yaml

from harness.metrics import METRICS
from harness.model import Case, Claim, Run, Scenario
from harness.model.case import written
from harness.ops import Catalogue, known_cases
from harness.ops.codes import Codes, codes
from harness.report.claims import VERDICTS, Comparison, comparisons
from harness.scenario import load
from harness.scenario.definition import Definition

REGISTER = ROOT / "reports" / "rows.yaml"
SCENARIOS = ROOT / "scenarios"
TODAY, OLDER, DIRTY, CUT = "today's code", "older code", "uncommitted changes", "not finished"
"""What is told of a run: whose code it measured, and what else makes it no evidence."""


@dataclass(frozen=True)
class Figure:
    """A figure of a text, and which claim answers it; the keys of reports/rows.yaml say what each is."""

    text: str
    scenario: tuple[str, ...] = ()
    variant: str = ""
    metric: str = ""
    over: str = ""
    where: str = ""
    value: float | None = None
    unanswered: str = ""
    whys: Mapping[str, str] = field(default_factory=dict)

    def why(self, verdict: str | None) -> str:
        """The sentence on why the outcome is this one; '' if nobody wrote one."""
        return self.whys.get(verdict or "", "")

    def is_of(self, claim: Claim) -> bool:
        """Whether the claim is the one that this figure names."""
        base = ", ".join(f"{name}={written(value)}" for name, value in claim.base)
        named = (claim.variant, claim.metric, claim.value) == (self.variant or claim.variant, self.metric, self.value)
        return named and self.over in ("", claim.over, base) and self.where in ("", claim.where)


@dataclass(frozen=True)
class Row:
    """A technique of a text; the keys of reports/rows.yaml say what each field is."""

    name: str
    technique: str
    claims: str
    op: str = ""
    before: str = ""
    after: str = ""
    figures: tuple[Figure, ...] = ()
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a committed run answers to a figure. state: of the run, its first word whose code it measured."""

    comparison: Comparison
    run: str
    day: str
    state: tuple[str, ...]


def read(file: Path = REGISTER) -> list[Row]:
    """The rows of the register. Raises TypeError for a key that isn't one."""
    found: dict[str, dict[str, Any]] = read_yaml(file)
    return [_row(name, keys) for name, keys in found.items()]


def _row(name: str, keys: Mapping[str, Any]) -> Row:
    made = {**keys, "figures": tuple(map(_figure, keys.get("figures", ()))), "lacks": tuple(keys.get("lacks", ()))}
    return Row(name, **made)


def _figure(keys: Mapping[str, Any]) -> Figure:
    named = keys.get("scenario", ())
    whys = {verdict: why for verdict, why in keys.items() if verdict in VERDICTS}
    made = {key: value for key, value in keys.items() if key not in VERDICTS}
    return Figure(**{**made, "scenario": (named,) if isinstance(named, str) else tuple(named), "whys": whys})


class Register:
    """The rows, with the scenarios and the committed runs that they need."""

    def __init__(self, rows: Sequence[Row], folder: Path = RUNS) -> None:
        self.rows = rows
        self._ops = Catalogue()  # loading the ops registers the metrics that they declare
        self.scenarios = {one.name: one for one in load(sorted(SCENARIOS.glob("*.yaml")), self._ops)}
        files = sorted(file for file in folder.glob("*/run.json") if file.parent.name not in SKIPPED + CHOSEN)
        self.runs = {file.parent.name: known_cases.load(file.parent) for file in files}
        self._timed: dict[str, tuple[Run, dict[str, list[Case]]]] = {}

    @cached_property
    def codes(self) -> Codes:
        """Today's code of the ops whose scenarios answer figures."""
        named = {name for row in self.rows for figure in row.figures for name in figure.scenario}
        ops = {self.scenarios[name].op for name in named if name in self.scenarios}
        return codes((op for op in self._ops.values() if op.name in ops), "cuda")

    # ---- What a row lacks.

    def lacks(self, row: Row) -> list[str]:
        """Everything that a row must have and hasn't, in words."""
        own = [one for one in self.scenarios.values() if row.name in one.rows]
        measured = [one for one in own if one.op == row.op]
        found = {
            "a scenario": bool(own),
            "a before": any(_has_side(one, row.before) for one in measured),
            "an after": any(_has_side(one, row.after) for one in measured),
            "a run": bool(row.op) and any(self._has(name, row) for name in self.runs),
        }
        unclaimed = [figure for figure in row.figures if not figure.unanswered and not self.claims(row, figure)]
        return [what for what, is_there in found.items() if not is_there] + [
            f"a claim of '{figure.text}'" for figure in unclaimed
        ]

    def _has(self, name: str, row: Row) -> bool:
        """Whether a run has times of a row's before and after that can be compared: nothing else differs."""
        run = self.runs[name]
        if name not in self._timed or self._timed[name][0] is not run:
            timed: dict[str, list[Case]] = defaultdict(list)
            for result in run.results:
                if result.time is not None:
                    timed[result.case.op].append(result.case)
            self._timed[name] = (run, timed)
        found: dict[object, set[str]] = defaultdict(set)
        for case in self._timed[name][1].get(row.op, ()):
            for side in (row.before, row.after):
                if _is_side(case, side):
                    found[_rest(case, side)].add(side)
        return any(sides == {row.before, row.after} for sides in found.values())

    def claims(self, row: Row, figure: Figure) -> list[tuple[Definition, Claim]]:
        """The claims that answer a figure, with their scenarios, in the order in which the figure names these."""
        named = [self.scenarios[name] for name in figure.scenario if name in self.scenarios]
        return [(one, claim) for one in named for claim in one.claims if claim.row == row.name and figure.is_of(claim)]

    def needed(self, row: Row, figure: Figure) -> list[tuple[Definition, Case]]:
        """The cases on GPUs that the first claim of a figure compares, each with its scenario; none without a claim."""
        claims = self.claims(row, figure)
        if not claims:
            return []
        definition, claim = claims[0]
        relative, base = METRICS[claim.metric].relative, dict(claim.base)
        over = claim.over or (claim.variant if base else definition.baseline)
        if relative == "world":
            over, base = definition.baseline, {"world": 1}
        cases = [*definition.cases("cuda")]
        after = [case for case in cases if case.variant == claim.variant and case.group_matches(claim.where)]
        after = [case for case in after if relative != "world" or case.world > 1]
        others = [(case.dtype, {**case.values, **base}) for case in after] if relative else []
        before = [case for case in cases if case.variant == over and (case.dtype, case.values) in others]
        return [(definition, case) for case in (*before, *after)]

    # ---- What the runs answer.

    @cached_property
    def answers(self) -> dict[tuple[str, str], Answer]:
        """The answer to each figure that has one, by the row's name and the figure's text."""
        found: dict[tuple[str, str], list[tuple[Any, Answer]]] = defaultdict(list)
        # Run by run, since the lines of a run are made once and kept until the next run's are.
        for name, run in self.runs.items():
            for stored in run.header.scenarios:
                for row, figure, rank, claim in self._asked(stored):
                    (comparison,) = comparisons(replace(stored, claims=(claim,)), run)
                    if comparison.found:
                        answer = self._answer(comparison, name, run)
                        # A newer run of one process, such as a recording, is no better evidence than several processes.
                        is_of_several = run.header.repeat > 1 and not METRICS[claim.metric].attached
                        is_of_times = name not in COUNTED
                        surer = (comparison.is_by_counters, is_of_times, TODAY in answer.state, is_of_several)
                        found[row.name, figure.text].append(((-rank, *surer, run.header.started), answer))
        return {asked: max(given, key=lambda pair: pair[0])[1] for asked, given in found.items()}

    def _asked(self, stored: Scenario) -> Iterator[tuple[Row, Figure, int, Claim]]:
        """The figures that a stored scenario may answer, the rank of the scenario, and today's claim of each."""
        now = self.scenarios.get(stored.name)
        if now is None or now.op != stored.op:
            return
        for row in self.rows:
            for figure in row.figures:
                if stored.name in figure.scenario:
                    yield from (
                        (row, figure, figure.scenario.index(stored.name), claim)
                        for definition, claim in self.claims(row, figure)
                        if definition is now
                    )

    def _answer(self, comparison: Comparison, name: str, run: Run) -> Answer:
        lines = [line for one in comparison.found for line in one.lines]
        is_of_today = all(
            m.code is not None and m.code == self.codes.get((m.case.op, m.case.variant))
            for line in lines
            for m in line.result.measurements
        )
        header = run.header
        told = {TODAY: is_of_today, OLDER: not is_of_today, DIRTY: header.git_dirty, CUT: not header.finished}
        return Answer(comparison, name, header.started[:10], tuple(word for word, is_so in told.items() if is_so))


def _has_side(scenario: Definition, side: str) -> bool:
    """Whether a scenario measures a row's before or after: a variant, or a choice such as 'clip=none'."""
    name, is_choice, value = side.partition("=")
    if not is_choice:
        return side in scenario.variants
    return any(written(setting.values[name]) == value for setting in scenario.settings if name in setting.values)


def _is_side(case: Case, side: str) -> bool:
    name, is_choice, value = side.partition("=")
    return written(case.values.get(name, "")) == value if is_choice else case.variant == side


def _rest(case: Case, side: str) -> object:
    """What else a case is told by. A case on several devices may be compared with the same case on one."""
    name, is_choice, _ = side.partition("=")
    values = tuple((key, written(value)) for key, value in case.values.items() if key not in (name, "world"))
    return case.dtype, values, case.variant if is_choice else ""


def told(words: Iterable[str]) -> str:
    """A list in a sentence; 'nothing' for an empty one."""
    return ", ".join(words) or "nothing"
