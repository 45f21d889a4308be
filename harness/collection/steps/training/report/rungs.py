"""Steps of training, rung by rung: how many a second, and what each rung takes off a step by family of kernels.

The times of families and the idle time add up to the step, also as they are written: see `_hundredths`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness import units
from harness.collection.steps.training import _ladders, _traced
from harness.collection.steps.training._traced import StepParts
from harness.families import FAMILIES
from harness.metrics import METRICS
from harness.model import Claim
from harness.report.frame import Line, setting
from harness.report.tree import Block, Column, Note, Table, text_column

OTHER, IDLE = "other", "idle"
_LEAST = 0.01
"""Families with less than this share of every rung's step are counted as `other`."""
_SPEEDUP = "speedup"
_BASE = "the rung above it whose steps differ least from its own"
_CHANGE = "time of a step, or of its kernels of this family, less the same time of the rung that it is compared with"
_UNIT = 1e-5
"""Seconds of a hundredth of a millisecond, in which the tables have times."""


@dataclass(frozen=True, slots=True)
class ClaimedRung:
    """A claimed speed-up beside the measured one. rate: items a second that the claimed one would be here."""

    claim: Claim
    over: str
    measured: float
    rate: float


@dataclass(frozen=True, slots=True)
class RungGroup:
    """The rungs of one setting that have a time, in the order of the scenario. parts: of the traced rungs."""

    op: str
    setting: str
    lines: tuple[Line, ...]
    parts: Mapping[str, StepParts]

    @property
    def names(self) -> list[str]:
        return [line.case.variant for line in self.lines]

    def rate(self, name: str) -> float:
        """Items a second of a rung; 0 if it isn't one of them."""
        return next((line.values["items"] or 0.0 for line in self.lines if line.case.variant == name), 0.0)

    def rates(self, name: str) -> tuple[float, float]:
        """The 95% interval of the items a second of a rung; its rate twice where no interval is known."""
        rate = self.rate(name)
        values = next(line.values for line in self.lines if line.case.variant == name)
        time, low, high = values["time"], values["low"], values["high"]
        return (rate * time / high, rate * time / low) if time and low and high else (rate, rate)

    @property
    def item(self) -> str:
        """What is counted, such as images."""
        work = self.lines[0].result.work
        return work.item if work else "items"

    @property
    def claimed(self) -> dict[str, ClaimedRung]:
        """For each rung the first speed-up with a figure that a text claims of it, where both rungs were measured."""
        found: dict[str, ClaimedRung] = {}
        first = self.lines[0]
        for claim in first.scenario.claims:
            over = claim.over or first.scenario.baseline
            base, own = self.rate(over), self.rate(claim.variant)
            fits = claim.metric == _SPEEDUP and claim.value and first.case.group_matches(claim.where)
            if fits and claim.value and base and own:
                found.setdefault(claim.variant, ClaimedRung(claim, over, own / base, claim.value * base))
        return found

    @property
    def families(self) -> list[str]:
        """The families that matter in some rung, the longest in all rungs first; `other` comes last."""
        sums: dict[str, float] = defaultdict(float)
        matter = set()
        for parts in self.parts.values():
            for family, seconds in parts.families.items():
                sums[family] += seconds
                if seconds >= _LEAST * parts.time:
                    matter.add(family)
        ordered = [name for name in sorted(sums, key=lambda name: -sums[name]) if name in matter - {OTHER}]
        return [*ordered, *([OTHER] if sums.keys() - set(ordered) else [])]

    def seconds(self, name: str) -> dict[str, float]:
        """Seconds of a traced rung's step by the names of `families`, and `idle`. They add up to the step."""
        parts, shown = self.parts[name], [family for family in self.families if family != OTHER]
        found = {family: parts.families.get(family, 0.0) for family in shown}
        if OTHER in self.families:
            found[OTHER] = sum(seconds for family, seconds in parts.families.items() if family not in shown)
        return found | {IDLE: parts.idle}


def groups(lines: Sequence[Line]) -> list[RungGroup]:
    """The rungs of one scenario by their setting; none if its op isn't one of training."""
    found: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if _ladders.is_ladder(line.case.op) and line.result.time:
            found[line.case.group].append(line)
    return [_group(own) for own in found.values()]


def _group(lines: Sequence[Line]) -> RungGroup:
    case = lines[0].case
    parts = {line.case.variant: _traced.parts(line.attached, line.result.time) for line in lines}
    known = {name: found for name, found in parts.items() if found}
    return RungGroup(case.op, f"{case.dtype}, {setting(case)}", tuple(lines), known)


def title(name: str) -> str:
    """A family as tables and legends call it."""
    return name if name == IDLE else FAMILIES[name].title


def tables(group: RungGroup) -> Iterator[Block]:
    """Three tables of the traced rungs: the time of a step by family, their shares, and what each rung takes off."""
    if not group.parts:
        return
    times = {name: _hundredths(group.seconds(name)) for name in group.parts}
    yield _by_family(group, times)
    yield _of_busy(group)
    yield _taken_off(group, times)
    yield Note(
        "Times of families come from a trace; kernels that run at the same time share this time. The step was timed "
        "without the profiler, which slows the host down. Idle is what the kernels leave of it, so that a row adds up "
        "to the step. The shares are without idle time, as the shares of a profiler's summary of kernels are."
        f"{_scaled(group)}"
    )


def _scaled(group: RungGroup) -> str:
    """The sentence that names the rungs whose traced times were scaled down; nothing if there is none."""
    longer = {name: parts.longer for name, parts in group.parts.items() if parts.longer}
    if not longer:
        return ""
    told = ", ".join(f"{name} {units.percent(share, 2)}" for name, share in longer.items())
    return (
        " Where the kernels took longer in the trace than the whole step without it, their times are scaled down to "
        f"the step, by: {told}."
    )


def _hundredths(parts: Mapping[str, float]) -> dict[str, int]:
    """The times of parts in hundredths of a millisecond, whose sum is the rounded sum of the times.

    Each time is rounded up or down: the times with the largest remainders are rounded up, as many as the sum needs.
    """
    exact = {name: seconds / _UNIT for name, seconds in parts.items()}
    found = {name: math.floor(time) for name, time in exact.items()}
    lacking = round(sum(exact.values())) - sum(found.values())
    for name in sorted(exact, key=lambda name: found[name] - exact[name])[:lacking]:
        found[name] += 1
    return found


def _by_family(group: RungGroup, times: Mapping[str, Mapping[str, int]]) -> Table:
    """A row for each rung: the step, its families, and what is left without a kernel."""
    columns = [
        text_column("rung", times),
        Column("step", tuple(_milliseconds(sum(own.values())) for own in times.values()), hint=METRICS["time"].hint),
        *(
            Column(title(key), tuple(_milliseconds(own[key]) for own in times.values()))
            for key in (*group.families, IDLE)
        ),
        Column(
            "idle share",
            tuple(parts.idle / parts.time for parts in group.parts.values()),
            units.SHARE,
            hint="share of a step in which no kernel ran: the host hadn't launched one, or the next one hadn't started",
        ),
    ]
    return Table(tuple(columns), f"Milliseconds of a step by family of kernels, {group.setting}")


def _of_busy(group: RungGroup) -> Table:
    """A row for each rung: the share of each family in the time in which a kernel ran."""
    shares = [
        {key: seconds / parts.busy for key, seconds in group.seconds(name).items()}
        for name, parts in group.parts.items()
    ]
    columns = [
        text_column("rung", group.parts),
        *(Column(title(key), tuple(own[key] for own in shares), units.SHARE) for key in group.families),
    ]
    return Table(tuple(columns), f"Share of each family in the time in which a kernel runs, {group.setting}")


def _taken_off(group: RungGroup, times: Mapping[str, Mapping[str, int]]) -> Table:
    """A row for each rung that has one to be compared with: the changes of the step and of each family."""
    bases = {name: _ladders.base(group.op, name, group.parts.keys()) for name in group.parts}
    pairs = [(name, base) for name, base in bases.items() if base]

    def change(key: str) -> tuple[str, ...]:
        return tuple(_signed(times[name][key] - times[base][key]) for name, base in pairs)

    steps = (_signed(sum(times[name].values()) - sum(times[base].values())) for name, base in pairs)
    columns = [
        text_column("rung", (name for name, _ in pairs)),
        text_column("compared with", (base for _, base in pairs), hint=_BASE),
        Column("step", tuple(steps), hint=_CHANGE),
        *(Column(title(key), change(key), hint=_CHANGE) for key in (*group.families, IDLE)),
    ]
    return Table(tuple(columns), f"Milliseconds that each rung adds to a step (+) or takes off (-), {group.setting}")


def _milliseconds(hundredths: int) -> str:
    return f"{hundredths / 100:.2f}"


def _signed(hundredths: int) -> str:
    """A change in milliseconds; one of zero has no sign."""
    return f"{hundredths / 100:+.2f}" if hundredths else "0.00"
