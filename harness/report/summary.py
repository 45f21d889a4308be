"""What a run says first: who is behind whom, how much is gained, how far the ceiling is, what to know of the numbers.

It is computed here once, so that all formats say the same. `overview.py` makes sentences and tables of it.

A comparison is all variants of one op at one type and size (a group of cases). In a comparison stand:

- ours: `tuned`, else the variant of ours that its op declares last, of those that the scenario measured;
- the rival: the fastest variant of PyTorch or of another library (the roles baseline and peer);
- the ratio: the rival's time over the time of ours, with its 95% interval. Above 1 ours is faster.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.model import Run
from harness.ops.baselines import MODES
from harness.report import preface
from harness.report.frame import Line, by_scenario
from harness.report.roles import foremost, roles
from harness.report.tree import Note

RIVALS = ("baseline", "peer")
"""Roles of variants that a user could take in place of ours."""
MARGIN = 0.01
"""Ours is behind where it is slower than the rival by more than this share, as the gate has it."""
TUNED = "tuned"
"""The name that an op gives to the variant which a user would take."""
COMPILE = "compile"
"""What the modes of torch.compile are called together: the fastest one counts in each comparison."""


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """A ratio of times with its 95% interval; above 1 is faster. low, high: None with too few samples."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Standing:
    """One comparison. group: its cases' id without the variant. best: the fastest variant of all, whatever its role.

    ours: None where no variant of ours has a time. rival: None where none has one. ratio: None without either.
    """

    group: str
    ours: Line | None
    rival: Line | None
    best: Line
    lines: tuple[Line, ...]
    ratio: TimeRatio | None

    @property
    def shown(self) -> Line:
        """The variant that the comparison is about: ours, or the fastest one where there is none of ours."""
        return self.ours or self.best

    @property
    def next(self) -> Line | None:
        """The second fastest variant."""
        return _fastest(line for line in self.lines if line is not self.best and line.subject.time is not None)

    @property
    def is_behind(self) -> bool:
        """Whether ours is slower than the rival by more than `MARGIN`, and the whole interval says so."""
        ratio = self.ratio
        return ratio is not None and ratio.value < 1 - MARGIN and ratio.high is not None and ratio.high < 1

    @property
    def may_be_behind(self) -> bool:
        """Whether ours looks slower by more than `MARGIN`, but the interval doesn't say so for sure."""
        return self.ratio is not None and self.ratio.value < 1 - MARGIN and not self.is_behind


@dataclass(frozen=True, slots=True)
class Gain:
    """Geometric mean of the ratios over one rival in `count` comparisons. over: a baseline's name, or `COMPILE`.

    The interval takes each ratio at the same end of its own interval, so it is rather too wide.
    """

    over: str
    ratio: TimeRatio
    count: int


@dataclass(frozen=True, slots=True)
class Standings:
    """Comparisons of one op (`op` is its name) or of a whole run (`op` is empty), those of one op together.

    gains: over each scenario's baseline, and over the best mode of torch.compile. lowest: the line of ours (of the
    fastest variant where there is none of ours) with the lowest share of the ceiling; None where no ceiling is known.
    outcomes: how many cases ended in which way.
    """

    op: str
    every: tuple[Standing, ...]
    gains: tuple[Gain, ...]
    lowest: Line | None
    outcomes: tuple[tuple[str, int], ...]

    @property
    def compared(self) -> tuple[Standing, ...]:
        """Comparisons of ours with a rival."""
        return tuple(standing for standing in self.every if standing.ratio)

    @property
    def behind(self) -> tuple[Standing, ...]:
        """Comparisons in which ours is behind, the largest loss first."""
        return tuple(sorted((s for s in self.compared if s.is_behind), key=_ratio))

    @property
    def unsure(self) -> tuple[Standing, ...]:
        """Comparisons in which ours may be behind, the largest loss first."""
        return tuple(sorted((s for s in self.compared if s.may_be_behind), key=_ratio))

    @property
    def worst(self) -> Standing | None:
        """The comparison with the smallest ratio."""
        return min(self.compared, key=_ratio, default=None)


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a run.

    whole: all comparisons. ops: the comparisons of each op, in the run's order. warnings: each code once with its
    count, as `preface.warnings` gives them. noise: the median of the noise of all timed cases. noisiest: the widest.
    """

    whole: Standings
    ops: tuple[Standings, ...]
    warnings: tuple[Note, ...]
    noise: float | None
    noisiest: Line | None

    @property
    def worst_op(self) -> Standings | None:
        """The op with the smallest ratio; where nothing is compared, the op farthest from the ceiling."""
        compared = [(op.worst.ratio.value, op) for op in self.ops if op.worst and op.worst.ratio]
        if compared:
            return min(compared, key=lambda pair: pair[0])[1]
        known = [(op.lowest.values["of_ceiling"] or 0.0, op) for op in self.ops if op.lowest]
        return min(known, key=lambda pair: pair[0], default=(0.0, None))[1]


@lru_cache(maxsize=1)
def summarise(run: Run) -> Summary:
    """The summary of a run. A comparison that several scenarios have counts once, as the first scenario has it."""
    standings: dict[str, Standing] = {}
    lines: dict[str, Line] = {}
    for _, own in by_scenario(run):
        for standing in _standings(own):
            standings.setdefault(standing.group, standing)
        for line in own:
            lines.setdefault(line.case.id, line)
    ops = dict.fromkeys(line.case.op for line in lines.values())
    by_op = tuple(_together(op, standings.values(), lines.values()) for op in ops)
    noisy = [line for line in lines.values() if line.values["noise"] is not None]
    return Summary(
        whole=_together("", standings.values(), lines.values()),
        ops=by_op,
        warnings=tuple(preface.warnings(run)),
        noise=statistics.median(_value(line, "noise") for line in noisy) if noisy else None,
        noisiest=max(noisy, key=lambda line: _value(line, "noise"), default=None),
    )


def _standings(lines: Sequence[Line]) -> Iterator[Standing]:
    """The comparisons of one scenario; none where no case has a time."""
    our_name = _name_of_ours(lines)
    groups: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        groups[line.case.group].append(line)
    for group, own in groups.items():
        timed = [line for line in own if line.subject.time is not None]
        if timed:
            ours = next((line for line in timed if line.case.variant == our_name), None)
            rival = _fastest(line for line in timed if line.role in RIVALS)
            ratio = _over(rival, ours) if ours and rival else None
            yield Standing(group, ours, rival, _fastest(timed) or timed[0], tuple(own), ratio)


def _name_of_ours(lines: Sequence[Line]) -> str:
    """The variant of ours that a user would take: `tuned`, else the last one; '' for none.

    Others that are declared after `tuned` show a single step, or need their data in a layout of their own.
    """
    measured = {line.case.variant: line.role for line in lines}
    known = roles(lines[0].scenario, sorted(measured))
    return TUNED if measured.get(TUNED) == "ours" else foremost({n: r for n, r in known.items() if n in measured})


def _fastest(lines: Iterable[Line]) -> Line | None:
    return min(lines, key=lambda line: line.subject.time or math.inf, default=None)


def _over(other: Line, ours: Line) -> TimeRatio:
    """The time of another variant over the time of ours, its interval as `harness.compare` takes it."""
    theirs, own = other.subject, ours.subject
    low = high = None
    if theirs.interval and own.interval:
        low, high = theirs.interval[0] / own.interval[1], theirs.interval[1] / own.interval[0]
    return TimeRatio((theirs.time or math.nan) / (own.time or math.nan), low, high)


def _together(op: str, standings: Iterable[Standing], lines: Iterable[Line]) -> Standings:
    every = tuple(standing for standing in standings if op in ("", standing.best.case.op))
    own = [line for line in lines if op in ("", line.case.op)]
    limited = [standing.shown for standing in every if standing.shown.values["of_ceiling"] is not None]
    outcomes = Counter(str(line.result.status) for line in own)
    return Standings(
        op=op,
        every=every,
        gains=tuple(_gains(every)),
        lowest=min(limited, key=lambda line: _value(line, "of_ceiling"), default=None),
        outcomes=tuple(sorted(outcomes.items(), key=lambda item: (item[0] != "ok", item[0]))),
    )


def _gains(standings: Sequence[Standing]) -> Iterator[Gain]:
    """The gain over each baseline, then over the best mode of torch.compile."""
    ratios: dict[str, list[TimeRatio]] = defaultdict(list)
    for standing in standings:
        if standing.ours:
            for name, other in _opponents(standing):
                ratios[name].append(_over(other, standing.ours))
    for name in sorted(ratios, key=lambda name: name == COMPILE):
        yield Gain(name, _geometric_mean(ratios[name]), len(ratios[name]))


def _opponents(standing: Standing) -> Iterator[tuple[str, Line]]:
    """The scenario's baseline and the fastest mode of torch.compile, where they have a time."""
    timed = [line for line in standing.lines if line.subject.time is not None and line is not standing.ours]
    baseline = next((line for line in timed if line.case.variant == line.scenario.baseline), None)
    if baseline and baseline.case.variant not in MODES:
        yield baseline.case.variant, baseline
    if best := _fastest(line for line in timed if line.case.variant in MODES):
        yield COMPILE, best


def _geometric_mean(ratios: Sequence[TimeRatio]) -> TimeRatio:
    low = [ratio.low for ratio in ratios if ratio.low]
    high = [ratio.high for ratio in ratios if ratio.high]
    known = len(low) == len(high) == len(ratios)
    return TimeRatio(
        statistics.geometric_mean(ratio.value for ratio in ratios),
        statistics.geometric_mean(low) if known else None,
        statistics.geometric_mean(high) if known else None,
    )


def _ratio(standing: Standing) -> float:
    return standing.ratio.value if standing.ratio else math.inf


def _value(line: Line, metric: str) -> float:
    value = line.values[metric]
    return math.nan if value is None else value
