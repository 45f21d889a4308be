"""Losses of longer trainings, as the tool `losses` found them: whether each rung learns as the baseline does."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.model import Attachment
from harness.report.frame import Line, setting
from harness.report.tree import Block, Column, Kind, Note, Table, text_column

_TOOL = "losses"
_LOSS = "the mean loss of all steps and seeds"
_SEEDS = "the smallest and the largest mean loss of a seed"
_LAST = "the mean loss of the last sixth of the steps"
_WITHIN = "whether the mean loss lies between the smallest and the largest mean loss of the baseline's seeds"
_SKIPPED = "steps, counted from 0, that changed no weight since gradients had overflowed; several lists if seeds differ"


@dataclass(frozen=True, slots=True)
class RungLosses:
    """What the trainings of a rung gave.

    plan: steps, size of a batch, and number of seeds. loss, last: the mean of all steps, and of the last steps. means:
    of each seed. curves: of each seed; a point is the mean of a few steps. skipped: the steps that each seed skipped.
    forced: the steps that were made to overflow.
    """

    line: Line
    plan: tuple[int, int, int]
    loss: float
    last: float
    means: tuple[float, ...]
    curves: tuple[tuple[float, ...], ...]
    skipped: tuple[tuple[int, ...], ...]
    forced: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.line.case.variant

    @property
    def is_skipped_alike(self) -> bool:
        """Whether every seed skipped the steps that were made to overflow, and no other steps."""
        return all(steps == self.forced for steps in self.skipped)

    @property
    def curve(self) -> tuple[float, ...]:
        """The mean of the seeds' curves."""
        return tuple(map(statistics.fmean, zip(*self.curves, strict=True)))

    @property
    def steps(self) -> list[float]:
        """The step in the middle of each point of a curve, counted from 0."""
        length = self.plan[0] / len(self.curves[0])
        return [length * (point + 0.5) - 0.5 for point in range(len(self.curves[0]))]


@dataclass(frozen=True, slots=True)
class LossGroup:
    """The rungs of a ladder that were trained on the same data.

    setting: dtype and choices. baseline: the rung whose seeds the other rungs are held to.
    """

    setting: str
    baseline: RungLosses
    rungs: tuple[RungLosses, ...]

    @property
    def band(self) -> tuple[float, float]:
        """The smallest and the largest mean loss of the baseline's seeds."""
        return min(self.baseline.means), max(self.baseline.means)

    @property
    def others(self) -> list[RungLosses]:
        return [rung for rung in self.rungs if rung is not self.baseline]

    def is_within(self, rung: RungLosses) -> bool:
        """Whether the mean loss of a rung lies within the band."""
        low, high = self.band
        return low <= rung.loss <= high

    @property
    def off(self) -> list[RungLosses]:
        """The rungs that don't lie within the band."""
        return [rung for rung in self.others if not self.is_within(rung)]

    @property
    def odd(self) -> list[RungLosses]:
        """The rungs that skipped other steps than the steps that were made to overflow; none if none was made to."""
        return [rung for rung in self.rungs if rung.forced and not rung.is_skipped_alike]


def groups(lines: Sequence[Line]) -> list[LossGroup]:
    """The rungs of one scenario that were trained, by their setting, dtype and training plan.

    The scenario's baseline is held to; without it, the first rung that was trained.
    """
    found: dict[tuple[object, ...], list[RungLosses]] = defaultdict(list)
    for line in lines:
        if attachment := next((each for each in line.attachments if each.tool == _TOOL), None):
            rung = _rung(line, attachment)
            found[line.case.dtype, setting(line.case), rung.plan].append(rung)
    return [_group(rungs, lines[0].scenario.baseline) for rungs in found.values()]


def _rung(line: Line, found: Attachment) -> RungLosses:
    values, series = dict(found.values), dict(found.series)
    numbers = range(1, len(series["means"]) + 1)
    return RungLosses(
        line,
        (int(values["steps"]), int(values["size"]), int(values["seeds"])),
        values["loss"],
        values["last"],
        series["means"],
        tuple(series[f"losses_{number}"] for number in numbers),
        tuple(tuple(map(int, series[f"skipped_{number}"])) for number in numbers),
        tuple(map(int, series["forced"])),
    )


def _group(rungs: Sequence[RungLosses], baseline: str) -> LossGroup:
    held_to = next((rung for rung in rungs if rung.name == baseline), rungs[0])
    case = held_to.line.case
    # The batch of the trainings isn't the case's.
    several = f"{case.world} devices" if case.world > 1 else ""
    named = ", ".join(filter(None, [case.dtype, case.choices_text.replace(",", ", "), several]))
    return LossGroup(named, held_to, tuple(rungs))


def blocks(group: LossGroup) -> Iterator[Block]:
    """How the trainings were made, the verdict, and a table with a row for each rung."""
    steps, size, seeds = group.baseline.plan
    forced = (
        " Two of the steps are made to overflow by a huge scale of the loss; a rung whose loss isn't scaled leaves "
        "these out."
    )
    yield Note(
        f"{steps} steps on a few batches of {size} that repeat, from {seeds} seeds, the same for all rungs."
        f"{forced if group.baseline.forced else ''}"
    )
    yield from verdicts(group)
    yield _table(group)


def verdicts(group: LossGroup) -> Iterator[Note]:
    """Whether every rung's mean loss lies within the spread of the baseline's seeds, and whether all skip alike."""
    name, (low, high) = group.baseline.name, group.band
    if group.others:
        spread = f"the spread of the seeds of {name}, {low:.4f} to {high:.4f}"
        inside = len(group.others) - len(group.off)
        told = f"The mean losses of {inside} of {len(group.others)} rungs lie within {spread}"
        yield Note(f"{told}{_named(group.off)}.", "failure" if group.off else "strong")
    if not group.baseline.forced:
        return
    forced = " and ".join(map(str, group.baseline.forced))
    alike = len(group.rungs) - len(group.odd)
    told = f"{alike} of {len(group.rungs)} rungs skip steps {forced}, which overflow, and no other steps"
    yield Note(f"{told}{_named(group.odd)}.", "failure" if group.odd else "strong")


def _named(rungs: Sequence[RungLosses]) -> str:
    return f"; exceptions: {', '.join(rung.name for rung in rungs)}" if rungs else ""


def _table(group: LossGroup) -> Table:
    rungs = group.rungs
    columns = (
        text_column("rung", (rung.name for rung in rungs)),
        Column("loss", tuple(f"{rung.loss:.4f}" for rung in rungs), hint=_LOSS),
        Column("seeds", tuple(f"{min(rung.means):.4f} to {max(rung.means):.4f}" for rung in rungs), hint=_SEEDS),
        Column("last", tuple(f"{rung.last:.4f}" for rung in rungs), keep=3, hint=_LAST),
        text_column("within", (_within(group, rung) for rung in rungs), hint=_WITHIN),
        text_column("skipped", map(_skipped, rungs), hint=_SKIPPED),
    )
    kinds: tuple[Kind, ...] = tuple("failure" if rung in [*group.off, *group.odd] else "" for rung in rungs)
    return Table(columns, group.setting, kinds)


def _within(group: LossGroup, rung: RungLosses) -> str:
    if rung is group.baseline:
        return "baseline"
    low, high = group.band
    return "yes" if group.is_within(rung) else f"no: {max(low - rung.loss, rung.loss - high):.4f} off"


def _skipped(rung: RungLosses) -> str:
    written = dict.fromkeys(", ".join(map(str, steps)) or "none" for steps in rung.skipped)
    return "; ".join(written)
