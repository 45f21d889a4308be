"""What a report says of steps of training beside their table: the ladder, families of kernels, losses of trainings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.model import Run
from harness.report import draw_steps, losses, rungs
from harness.report.frame import Line, by_scenario
from harness.report.plotting import FOLDER, file_name
from harness.report.tree import Block, Figure, Section


@dataclass(frozen=True, slots=True)
class StepPicture:
    """A picture of a page. path: in the run's folder. draw: writes it to a path."""

    path: str
    alt: str
    draw: Callable[[Path], list[Path]]

    @property
    def figure(self) -> Figure:
        return Figure(self.path, self.alt)


def sections(lines: Sequence[Line]) -> Iterator[Section]:
    """The sections of one scenario; none if its op isn't one of training."""
    climbed: list[Block] = []
    for group in rungs.groups(lines):
        climbed += [picture.figure for picture in _of_rungs(group)]
        climbed += rungs.tables(group)
    if climbed:
        yield Section("Rungs", tuple(climbed))
    if learned := [block for group in losses.groups(lines) for block in _learned(group)]:
        yield Section("Losses", tuple(learned))


def verdicts(lines: Sequence[Line]) -> Iterator[Block]:
    """What a console says of the losses of one scenario."""
    for group in losses.groups(lines):
        yield from losses.verdicts(group)


def pictures(run: Run) -> Iterator[StepPicture]:
    """Every picture of these sections."""
    for _, lines in by_scenario(run):
        for group in rungs.groups(lines):
            yield from _of_rungs(group)
        for learned in losses.groups(lines):
            yield _of_losses(learned)


def _learned(group: losses.LossGroup) -> Iterator[Block]:
    yield _of_losses(group).figure
    yield from losses.blocks(group)


def _of_rungs(group: rungs.RungGroup) -> Iterator[StepPicture]:
    """The ladder of rungs that have items, and the families of those that were traced."""
    scenario, named = group.lines[0].scenario.name, group.setting
    if len(group.lines) > 1 and all(line.values["items"] for line in group.lines):
        alt = f"{group.op}, {named}: {group.item} a second, rung by rung, with the speed-ups that a text claims"
        yield StepPicture(_path(scenario, named, "ladder"), alt, partial(draw_steps.ladder, group))
    if group.parts:
        alt = f"{group.op}, {named}: the time of a step by family of kernels, rung by rung"
        yield StepPicture(_path(scenario, named, "families"), alt, partial(draw_steps.families, group))


def _of_losses(group: losses.LossGroup) -> StepPicture:
    case = group.baseline.line.case
    alt = f"{case.op}, {group.setting}: losses of each rung over the steps, with the range of the baseline's seeds"
    path = _path(group.baseline.line.scenario.name, case.group.partition("/")[2], "losses")
    return StepPicture(path, alt, partial(draw_steps.losses, group))


def _path(*words: str) -> str:
    return f"{FOLDER}/{file_name(*words)}.svg"
